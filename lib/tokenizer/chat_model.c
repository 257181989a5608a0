#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/json_file.h"
#include "lib/model/gguf_model.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/chat_template.h"
#include "lib/tokenizer/chat_text.h"
#include "lib/tokenizer/gguf_ends.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

static void add_end(struct kv_chat_model *m, json_int_t id)
{
    if (id < 0 || id > INT32_MAX)
        return;
    m->end = kv_realloc(m->end, m->n_ends + 1, sizeof(*m->end));
    m->end[m->n_ends++] = (int32_t)id;
}

/* ---- Hugging Face -------------------------------------------------------- */

/* Reads a JSON file of the folder; *json is NULL, without a failure, if the
 * file is missing. */
static int read_json(const char *dir, const char *name, json_t **json,
                     struct kv_err *e)
{
    char *path = kv_model_file(dir, name);
    const bool there = kv_file_exists(path);

    *json = there ? kv_json_read(path, e) : NULL;
    free(path);
    return there && !*json ? -1 : 0;
}

/* Reads "<s>" or {"content": "<s>"}; returns NULL if x is neither. */
static const char *token_text(const json_t *x)
{
    return json_string_value(json_is_object(x) ? json_object_get(x, "content")
                                               : x);
}

/* Takes the special tokens of a file: its members whose names end in
 * "_token". */
static void take_tokens(json_t *tokens, const json_t *file)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)file, key, value)
    {
        const size_t n = strlen(key);
        const char *text = token_text(value);

        if (n > 6 && !strcmp(key + n - 6, "_token") && text)
            json_object_set_new(tokens, key, json_string(text));
    }
}

/* Takes the special tokens of a transformers class, for folders whose files do
 * not name them. */
static void take_defaults(json_t *tokens, const json_t *config)
{
    static const struct {
        const char *name, *token[4][2];
    } classes[] = {
        {"LlamaTokenizer",
         {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
        {"CodeLlamaTokenizer",
         {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
        {"GemmaTokenizer",
         {{"bos_token", "<bos>"},
          {"eos_token", "<eos>"},
          {"unk_token", "<unk>"},
          {"pad_token", "<pad>"}}},
        {"GPT2Tokenizer",
         {{"bos_token", "<|endoftext|>"},
          {"eos_token", "<|endoftext|>"},
          {"unk_token", "<|endoftext|>"}}},
    };
    const char *name =
        json_string_value(json_object_get(config, "tokenizer_class"));

    for (size_t i = 0; name && i < sizeof(classes) / sizeof(*classes); i++) {
        const size_t n = strlen(classes[i].name);

        if (strncmp(name, classes[i].name, n) ||
            (name[n] && strcmp(name + n, "Fast")))
            continue;
        for (size_t t = 0; t < 4 && classes[i].token[t][0]; t++)
            if (!json_object_get(config, classes[i].token[t][0]))
                json_object_set_new(tokens, classes[i].token[t][0],
                                    json_string(classes[i].token[t][1]));
    }
}

/* Reads the special tokens as transformers 5 does.  Names in
 * special_tokens_map.json take precedence over the config's names, but are
 * ignored if the config lists its added tokens. */
static int read_tokens(struct kv_chat_model *m, const char *dir,
                       const json_t *config, struct kv_err *e)
{
    const json_t *list = json_object_get(config, "added_tokens_decoder");
    json_t *map;

    if (read_json(dir, "special_tokens_map.json", &map, e))
        return -1;
    m->tokens = json_object();
    take_defaults(m->tokens, config);
    take_tokens(m->tokens, config);
    if (!list || json_is_null(list))
        take_tokens(m->tokens, map);
    json_decref(map);
    return 0;
}

/* The template in a config: one text, or the template "default" of a list. */
static const char *template_of(const json_t *config)
{
    const json_t *x = json_object_get(config, "chat_template"), *one;
    size_t i;

    json_array_foreach(x, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(x);
}

static int read_template(struct kv_chat_model *m, const char *dir,
                         struct kv_err *e)
{
    char *path = kv_model_file(dir, "chat_template.jinja");
    json_t *config = NULL;
    const char *text;
    size_t bytes;
    int rc = read_json(dir, "tokenizer_config.json", &config, e);

    if (!rc)
        rc = read_tokens(m, dir, config, e);
    if (!rc) {
        text = template_of(config);
        if (kv_file_exists(path))
            rc = kv_text_read(path, KV_FILE_MAX, &m->template, &bytes, e);
        else if (text)
            m->template = kv_strdup(text);
    }
    json_decref(config);
    free(path);
    return rc;
}

/* Reads one id or a list of ids. */
static bool read_ends(struct kv_chat_model *m, const json_t *config)
{
    const json_t *x = json_object_get(config, "eos_token_id"), *one;
    size_t i;

    json_array_foreach(x, i, one)
    {
        add_end(m, json_is_integer(one) ? json_integer_value(one) : -1);
    }
    if (json_is_integer(x))
        add_end(m, json_integer_value(x));
    return m->n_ends;
}

/* Fields that would change greedy decoding, and their neutral values. */
static const struct {
    const char *name;
    double neutral;
} changes[] = {
    {"bad_words_ids", 0},
    {"begin_suppress_tokens", 0},
    {"constraints", 0},
    {"dola_layers", 0},
    {"encoder_repetition_penalty", 1},
    {"exponential_decay_length_penalty", 0},
    {"force_words_ids", 0},
    {"forced_bos_token_id", -1},
    {"forced_decoder_ids", 0},
    {"forced_eos_token_id", -1},
    {"guidance_scale", 1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"no_repeat_ngram_size", 0},
    {"num_beams", 1},
    {"penalty_alpha", 0},
    {"repetition_penalty", 1},
    {"sequence_bias", 0},
    {"stop_strings", 0},
    {"suppress_tokens", 0},
    {"watermarking_config", 0},
};

static bool is_neutral(const json_t *x, double neutral)
{
    if (json_is_number(x))
        return json_number_value(x) == neutral;
    if (json_is_array(x) || json_is_object(x))
        return !json_array_size(x) && !json_object_size(x);
    return !x || json_is_null(x) || json_is_false(x);
}

/* The file's settings that are not greedy decoding, "repetition_penalty 1.1,
 * ...", or NULL. */
static char *asked_for(const json_t *config)
{
    struct kv_text text = {0};
    char *copy = NULL;

    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        const json_t *x = json_object_get(config, changes[i].name);
        char *value;

        if (is_neutral(x, changes[i].neutral))
            continue;
        value = json_dumps(x, JSON_ENCODE_ANY | JSON_ENSURE_ASCII |
                                  JSON_REAL_PRECISION(6));
        if (text.n)
            kv_text_add(&text, ", ", 2);
        kv_text_add(&text, changes[i].name, strlen(changes[i].name));
        kv_text_add(&text, " ", 1);
        kv_text_add(&text, value, strlen(value) < 40 ? strlen(value) : 40);
        free(value);
    }
    if (text.n)
        copy = kv_strndup(text.s, text.n);
    kv_text_clear(&text);
    return copy;
}

static int read_folder(struct kv_chat_model *m, const char *dir,
                       struct kv_err *e)
{
    static const char *const files[] = {"generation_config.json",
                                        "config.json"};
    bool found = false, done = false;

    for (size_t i = 0; i < 2 && !done; i++) {
        json_t *config;

        if (read_json(dir, files[i], &config, e))
            return -1;
        if (config && !found) /* only the first file */
            m->asked = asked_for(config);
        found |= config != NULL;
        done = read_ends(m, config);
        json_decref(config);
    }
    return read_template(m, dir, e);
}

/* ---- GGUF ---------------------------------------------------------------- */

static char *text_of(const struct kv_gguf_value *v, size_t i)
{
    const bool there = v && v->kind == KV_GGUF_TEXT && i < v->n;
    size_t bytes = 0;
    const char *text = there ? kv_gguf_text(v, i, &bytes) : "";
    char *copy = kv_alloc(bytes + 1, 1);

    memcpy(copy, text, bytes);
    return copy;
}

static size_t id_of(const struct kv_gguf *g, const char *key)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);

    return v && v->kind == KV_GGUF_INT && !v->array ? (size_t)kv_gguf_int(v, 0)
                                                    : SIZE_MAX;
}

static int read_gguf(struct kv_chat_model *m, const char *path,
                     struct kv_err *e)
{
    static const char *const names[][2] = {
        {"bos_token", "tokenizer.ggml.bos_token_id"},
        {"eos_token", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "tokenizer.ggml.unknown_token_id"},
        {"sep_token",
         "tokenizer.ggml.seperator_token_id"}, /* the key's own spelling */
        {"pad_token", "tokenizer.ggml.padding_token_id"},
        {"cls_token", "tokenizer.ggml.cls_token_id"},
        {"mask_token", "tokenizer.ggml.mask_token_id"}};
    const struct kv_gguf_value *v, *tokens;
    struct kv_gguf g;

    if (kv_gguf_open(&g, path, e))
        return -1;
    tokens = kv_gguf_find(&g, "tokenizer.ggml.tokens");
    m->tokens = json_object();
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *text = text_of(tokens, id_of(&g, names[i][1]));

        if (*text)
            json_object_set_new(m->tokens, names[i][0], json_string(text));
        free(text);
    }
    m->n_ends = kv_gguf_ends(&g, &m->end);
    v = kv_gguf_find(&g, "tokenizer.chat_template");
    if (v && v->kind == KV_GGUF_TEXT && !v->array)
        m->template = text_of(v, 0);
    kv_gguf_clear(&g);
    return 0;
}

int kv_chat_model_read(struct kv_chat_model *m, const char *path,
                       struct kv_err *e)
{
    int rc;

    *m = (struct kv_chat_model){0};
    rc = kv_is_dir(path) ? read_folder(m, path, e) : read_gguf(m, path, e);
    if (rc)
        kv_chat_model_clear(m);
    return rc;
}

void kv_chat_model_clear(struct kv_chat_model *m)
{
    free(m->template);
    json_decref(m->tokens);
    free(m->asked);
    free(m->end);
    *m = (struct kv_chat_model){0};
}

/* ---- a prompt ------------------------------------------------------------ */

/* A mark that is appended to the assistant's last message while a template is
 * rendered.  Like the mark of transformers, it has a space, which shows whether
 * the template strips messages. */
static const char mark[] = "END_OF_THE_LAST_MESSAGE ";
enum { MARK = sizeof(mark) - 1 };

/* A copy of the messages with the mark; NULL if the last message is not the
 * assistant's. */
static json_t *marked(const json_t *messages)
{
    const json_t *last =
        json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    struct kv_text text = {0};
    json_t *copy;

    if (!role || strcmp(role, "assistant") != 0)
        return NULL;
    kv_text_add(&text, json_string_value(content), json_string_length(content));
    kv_text_add(&text, mark, MARK);
    copy = json_deep_copy(messages);
    json_object_set_new(json_array_get(copy, json_array_size(copy) - 1),
                        "content", json_stringn(text.s, text.n));
    kv_text_clear(&text);
    return copy;
}

/* Whether text has the last message, except for the white space around it. */
static bool has_last(const char *text, const json_t *messages)
{
    const json_t *last =
        json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *whole =
        json_is_string(content) ? json_string_value(content) : "";
    const char *begin = kv_chat_space_after(whole);
    const char *end = kv_chat_space_before(begin, begin + strlen(begin), false);
    char *copy = kv_strndup(begin, (size_t)(end - begin));
    const bool has = strstr(text, copy);

    free(copy);
    return has;
}

/* Ends the text at the mark's beginning or, if the template strips messages, at
 * the last character before it. */
static int cut_at_mark(char *text, size_t *n, const json_t *messages,
                       const char *path, struct kv_err *e)
{
    const char *end = NULL;

    for (char *at = text; (at = strstr(at, "END_OF_THE_LAST_MESSAGE")); at++)
        end = at;
    if (!end || !has_last(text, messages))
        return kv_fail(e,
                       "%s: the chat template does not write a last message "
                       "of the assistant's whole: it cannot be continued",
                       path);
    if (strncmp(end, mark, MARK))
        end = kv_chat_space_before(text, end, false);
    *n = (size_t)(end - text);
    text[*n] = '\0';
    return 0;
}

int kv_chat_messages(const struct kv_chat_model *m, const char *path,
                     const char *name, json_t *messages,
                     struct kv_chat_clock *clock, char **text, size_t *n,
                     struct kv_err *e)
{
    const char *template = m->template;
    json_t *values, *goes_on;
    int rc;

    if (strcmp(name, "model") && kv_chat_template_named(&template, name, e))
        return -1;
    if (!template)
        return kv_fail(e,
                       "%s has no chat template: name one, as in "
                       "--chat-template chatml",
                       path);
    goes_on = marked(messages);
    values =
        json_pack("{s:O,s:n,s:n,s:b}", "messages", goes_on ? goes_on : messages,
                  "tools", "documents", "add_generation_prompt", !goes_on);
    json_object_update(values, m->tokens);
    rc = kv_chat_render(path, template, values, clock, text, n, e);
    if (!rc && goes_on && cut_at_mark(*text, n, messages, path, e)) {
        free(*text);
        rc = -1;
    }
    json_decref(goes_on);
    json_decref(values);
    return rc;
}
