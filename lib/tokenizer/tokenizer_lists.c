#include "lib/tokenizer/tokenizer_lists.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/tokenizer_cuts.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

/* ---- the class of the tokenizer ---------------------------------------- */

#define END "<|endoftext|>"

/* The built-in settings of a class of transformers. */
struct class
{
    const char *name;  /* the class name; "Fast" may follow it */
    const char *types; /* model types with this class, separated by spaces */
    const char *cut;   /* NULL: ByteLevel's own rule, which is GPT-2's */
    bool nfc;
    const char *bos, *others[2]; /* special tokens, if the vocabulary has them;
                                  * NULL ends the list */
};

static const struct class classes[] = {
    {"GPT2Tokenizer",
     "gpt2 gpt_neo gptj codegen phi opt gpt_bigcode starcoder2",
     NULL,
     false,
     END,
     {0}},
    {"CodeGenTokenizer", "", NULL, false, END, {0}},
    {"GPTNeoXTokenizer", "gpt_neox", NULL, true, END, {"<|padding|>"}},
    {"Qwen2Tokenizer",
     "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe",
     "qwen2",
     true,
     NULL,
     {END}},
};

enum { N_CLASSES = sizeof(classes) / sizeof(*classes) };

static const struct class *find_class(const char *name)
{
    for (size_t i = 0; i < N_CLASSES; i++) {
        const size_t n = strlen(classes[i].name);

        if (!strncmp(name, classes[i].name, n) &&
            (!name[n] || !strcmp(name + n, "Fast")))
            return &classes[i];
    }
    return NULL;
}

static const struct class *find_type(const char *type)
{
    const size_t n = strlen(type);

    for (size_t i = 0; i < N_CLASSES; i++)
        for (const char *p = classes[i].types; *p; p += *p == ' ') {
            const size_t bytes = strcspn(p, " ");

            if (n == bytes && !memcmp(p, type, n))
                return &classes[i];
            p += bytes;
        }
    return NULL;
}

struct reading {
    const char *dir;
    json_t *config, *map, *model; /* tokenizer_config.json,
                                   * special_tokens_map.json, config.json; empty
                                   * if the file is missing */
    const struct class *class;
    json_t *out, *vocab;
};

/* Reads a JSON object.  *j: an empty object if a file that is not needed is
 * missing. */
static int read_object(const char *dir, const char *name, bool needed,
                       json_t **j, struct kv_err *e)
{
    char *path = kv_model_file(dir, name);

    *j = needed || kv_file_exists(path) ? kv_json_read(path, e) : json_object();
    if (*j && !json_is_object(*j)) {
        kv_fail(e, "%s: not an object", path);
        json_decref(*j);
        *j = NULL;
    }
    free(path);
    return *j ? 0 : -1;
}

static int choose_class(struct reading *r, struct kv_err *e)
{
    const char *name, *type;

    if (kv_field_string_or(r->config, "tokenizer_class", NULL, &name, e))
        return kv_fail_in(e, "%s/tokenizer_config.json", r->dir);
    if (name) {
        r->class = find_class(name);
        return r->class ? 0
                        : kv_fail(e,
                                  "%s/tokenizer_config.json: "
                                  "\"tokenizer_class\" is \"%s\", whose "
                                  "vocab.json and merges.txt are not supported",
                                  r->dir, name);
    }
    if (kv_field_string_or(r->model, "model_type", NULL, &type, e))
        return kv_fail_in(e, "%s/config.json", r->dir);
    if (!type)
        return kv_fail(
            e,
            "%s: vocab.json and merges.txt do not say how a text is "
            "cut: neither \"tokenizer_class\" of "
            "tokenizer_config.json nor \"model_type\" of config.json "
            "is there",
            r->dir);
    r->class = find_type(type);
    return r->class ? 0
                    : kv_fail(e,
                              "%s/config.json: \"model_type\" is \"%s\", whose "
                              "vocab.json and merges.txt are not supported",
                              r->dir, type);
}

/* ---- tokens ------------------------------------------------------------ */

static int add_line(json_t *list, const char *s, size_t n, size_t number,
                    struct kv_err *e)
{
    const char *gap = memchr(s, ' ', n);

    if (memchr(s, 0, n) || kv_utf8_valid(s, n) != n)
        return kv_fail(e, "line %zu is not UTF-8 without a zero", number);
    if (!gap || gap == s || gap == s + n - 1 ||
        memchr(gap + 1, ' ', n - (size_t)(gap + 1 - s)))
        return kv_fail(e, "line %zu is not two tokens with a space between",
                       number);
    json_array_append_new(list, json_stringn_nocheck(s, n));
    return 0;
}

/* Reads one merge per line, after a first line "#version"; empty lines are
 * skipped. */
static int read_merges(const char *path, json_t *list, struct kv_err *e)
{
    char *text;
    size_t bytes, number = 1;
    int rc = 0;

    if (kv_file_read(path, &text, &bytes, e))
        return -1;
    for (size_t at = 0, end; at < bytes && !rc; at = end + 1, number++) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        size_t n;

        end = newline ? (size_t)(newline - text) : bytes;
        n = end - at;
        n -= n && text[at + n - 1] == '\r';
        if (n && (n < 8 || memcmp(text + at, "#version", 8) != 0))
            rc = add_line(list, text + at, n, number, e);
    }
    free(text);
    if (!rc && !json_array_size(list))
        rc = kv_fail(e, "no merges; expected two tokens on each line");
    return rc ? kv_fail_in(e, "%s", path) : 0;
}

static int add_model(struct reading *r, struct kv_err *e)
{
    char *path = kv_model_file(r->dir, "merges.txt");
    json_t *merges = json_array();

    json_object_set_new(r->out, "model",
                        json_pack("{s:s, s:O, s:o}", "type", "BPE", "vocab",
                                  r->vocab, "merges", merges));

    const int rc = read_merges(path, merges, e);

    free(path);
    return rc;
}

static void add_words(const struct reading *r, bool prefix)
{
    const char *cut = r->class->cut;
    json_t *bytes = json_pack("{s:s, s:b}", "type", "ByteLevel",
                              "add_prefix_space", prefix);

    if (cut) {
        kv_cut_add(kv_cut_find(cut, strlen(cut)), r->out);
        json_decref(bytes);
    } else {
        json_object_set(r->out, "pre_tokenizer", bytes);
        json_object_set_new(r->out, "decoder", bytes);
    }
    if (r->class->nfc)
        json_object_set_new(r->out, "normalizer",
                            json_pack("{s:s}", "type", "NFC"));
}

/* ---- special tokens ---------------------------------------------------- */

static const char *content_of(const json_t *value)
{
    return json_string_value(
        json_is_object(value) ? json_object_get(value, "content") : value);
}

/* The BOS that the files name, even if null, else the class's BOS. */
static const char *bos_of(const struct reading *r)
{
    const json_t *of_map = json_object_get(r->map, "bos_token");
    const json_t *of_config = json_object_get(r->config, "bos_token");

    if (json_is_string(of_map) || json_is_object(of_map))
        return content_of(of_map);
    return of_config ? content_of(of_config) : r->class->bos;
}

static void add_special(const struct reading *r, json_t *list, const char *name)
{
    const json_t *id = name ? json_object_get(r->vocab, name) : NULL;

    if (id)
        json_array_append_new(list, json_pack("{s:O, s:s, s:b}", "id", id,
                                              "content", name, "special", 1));
}

/* Adds the class's special tokens, unless the config lists the added tokens.
 * Other files may name further tokens. */
static void add_specials(const struct reading *r)
{
    json_t *list = json_array();

    json_object_set_new(r->out, "added_tokens", list);
    if (json_is_object(json_object_get(r->config, "added_tokens_decoder")))
        return;
    add_special(r, list, r->class->bos);
    for (size_t i = 0; i < 2; i++)
        add_special(r, list, r->class->others[i]);
}

static int add_bos(const struct reading *r, struct kv_err *e)
{
    const char *name = bos_of(r);
    const json_t *id = name ? json_object_get(r->vocab, name) : NULL;
    bool adds, ends;

    if (kv_field_flag(r->config, "add_bos_token", false, &adds, e) ||
        kv_field_flag(r->config, "add_eos_token", false, &ends, e))
        return -1;
    if (ends)
        return kv_fail(e, "\"add_eos_token\" is true, which is not supported");
    if (!adds)
        return 0;
    if (!id)
        return kv_fail(e,
                       "\"add_bos_token\" is true, but vocab.json has no "
                       "\"bos_token\" \"%s\"",
                       name ? name : "");
    json_object_set_new(
        r->out, "post_processor",
        json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}], s:{s:{s:[O]}}}", "type",
                  "TemplateProcessing", "single", "SpecialToken", "id", name,
                  "Sequence", "id", "A", "special_tokens", name, "ids", id));
    return 0;
}

/* ---- both -------------------------------------------------------------- */

static int make(struct reading *r, struct kv_err *e)
{
    bool prefix;

    if (read_object(r->dir, "tokenizer_config.json", false, &r->config, e) ||
        read_object(r->dir, "special_tokens_map.json", false, &r->map, e) ||
        read_object(r->dir, "config.json", false, &r->model, e) ||
        read_object(r->dir, "vocab.json", true, &r->vocab, e) ||
        choose_class(r, e) || add_model(r, e))
        return -1;
    add_specials(r);
    if (kv_field_flag(r->config, "add_prefix_space", false, &prefix, e) ||
        (prefix && r->class->cut &&
         kv_fail(e, "\"add_prefix_space\" is true, which is not supported")) ||
        add_bos(r, e))
        return kv_fail_in(e, "%s/tokenizer_config.json", r->dir);
    add_words(r, prefix);
    return 0;
}

json_t *kv_tokenizer_of_lists(const char *dir, struct kv_err *e)
{
    struct reading r = {.dir = dir, .out = json_object()};

    if (make(&r, e)) {
        json_decref(r.out);
        r.out = NULL;
    }
    json_decref(r.config);
    json_decref(r.map);
    json_decref(r.model);
    json_decref(r.vocab);
    return r.out;
}
