#include "lib/tokenizer/tokenizer_gguf.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/tokenizer_text.h"
#include "lib/tokenizer/tokenizer_vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type */
enum {
    UNDEFINED,
    NORMAL,
    UNKNOWN,
    CONTROL,
    USER_DEFINED,
    UNUSED,
    BYTE,
    N_TYPES
};

/* Longer than any that there is: each is cut in two everywhere. */
enum { TOKEN_BYTES = 1024 };

#define SPACE "\xe2\x96\x81" /* U+2581 stands for it */

/* What is made of a file, and where it goes. */
struct reading {
    const struct kv_gguf *g;
    const struct kv_gguf_value *tokens, *types;
    json_t *out, *model; /* the whole, and "model" in it */
    int64_t bos;
};

/* ---- keys -------------------------------------------------------------- */

#define KEY "tokenizer.ggml."

/* Those that are read, or tell nothing of ids. */
static const char *const keys[] = {"model",
                                   "pre",
                                   "tokens",
                                   "token_type",
                                   "token_type_count",
                                   "scores",
                                   "merges",
                                   "add_bos_token",
                                   "add_eos_token",
                                   "add_sep_token",
                                   "add_space_prefix",
                                   "remove_extra_whitespaces"};

/* "bos_token_id", "eog_token_ids": what tokens are called. */
static bool names_tokens(const char *key)
{
    const char *end = strstr(key, "_token_id");

    return end && (!end[9] || !strcmp(end + 9, "s"));
}

static int check_keys(const struct kv_gguf *g, struct kv_err *e)
{
    for (size_t i = 0; i < g->n_values; i++) {
        const char *key = g->value[i].key;
        bool known = false;

        if (strncmp(key, KEY, strlen(KEY)) != 0)
            continue;
        for (size_t j = 0; j < sizeof(keys) / sizeof(*keys); j++)
            known |= !strcmp(key + strlen(KEY), keys[j]);
        if (!known && !names_tokens(key))
            return kv_fail(e, "key %s is not supported", key);
    }
    return 0;
}

static int get_flag(const struct kv_gguf *g, const char *key, bool otherwise,
                    bool *flag, struct kv_err *e)
{
    const struct kv_gguf_value *v;

    if (kv_gguf_get(g, key, KV_GGUF_BOOL, false, &v, e))
        return -1;
    *flag = v ? kv_gguf_bool(v, 0) : otherwise;
    return 0;
}

/* A flag that must be false. */
static int refuse_flag(const struct kv_gguf *g, const char *key,
                       struct kv_err *e)
{
    bool flag;

    if (get_flag(g, key, false, &flag, e))
        return -1;
    return flag ? kv_fail(e, "key %s is true, which is not supported", key) : 0;
}

/* -1: there is no such key. */
static int get_id(const struct reading *r, const char *key, int64_t *id,
                  struct kv_err *e)
{
    const struct kv_gguf_value *v;

    if (kv_gguf_get(r->g, key, KV_GGUF_INT, false, &v, e))
        return -1;
    *id = v ? kv_gguf_int(v, 0) : -1;
    if (v && (*id < 0 || (size_t)*id >= r->tokens->n))
        return kv_fail(e, "key %s is %lld, no id of a vocabulary of %zu", key,
                       (long long)*id, r->tokens->n);
    return 0;
}

static int get_list(const struct kv_gguf *g, const char *key,
                    enum kv_gguf_kind kind, const struct kv_gguf_value **v,
                    struct kv_err *e)
{
    if (kv_gguf_get(g, key, kind, true, v, e))
        return -1;
    return *v ? 0 : kv_fail(e, "no key %s", key);
}

/* ---- tokens ------------------------------------------------------------ */

static int64_t type_of(const struct reading *r, size_t id)
{
    return kv_gguf_int(r->types, id);
}

static json_t *text_of(const struct reading *r, size_t id)
{
    size_t n;
    const char *s = kv_gguf_text(r->tokens, id, &n);

    return json_stringn_nocheck(s, n);
}

static int read_tokens(struct reading *r, struct kv_err *e)
{
    if (get_list(r->g, KEY "tokens", KV_GGUF_TEXT, &r->tokens, e) ||
        get_list(r->g, KEY "token_type", KV_GGUF_INT, &r->types, e))
        return -1;
    if (!r->tokens->n || r->tokens->n > KV_TOKEN_IDS)
        return kv_fail(e, "key " KEY "tokens has %zu, not 1 to %d",
                       r->tokens->n, KV_TOKEN_IDS);
    if (r->types->n != r->tokens->n)
        return kv_fail(e, "key " KEY "token_type has %zu values for %zu tokens",
                       r->types->n, r->tokens->n);
    return 0;
}

/* A token without a name is none: no text becomes it. */
static int add_token(json_t *vocab, const struct reading *r, size_t id,
                     struct kv_err *e)
{
    char name[TOKEN_BYTES + 1];
    const json_t *twin;
    size_t n;
    const char *s = kv_gguf_text(r->tokens, id, &n);

    if (n > TOKEN_BYTES)
        return kv_fail(e, "token %zu has %zu bytes; at most %d are", id, n,
                       TOKEN_BYTES);
    if (memchr(s, 0, n) || kv_utf8_valid(s, n) != n)
        return kv_fail(e, "token %zu is not UTF-8 without a zero", id);
    if (type_of(r, id) < 0 || type_of(r, id) >= N_TYPES)
        return kv_fail(e, "token %zu has type %lld, which is not known", id,
                       (long long)type_of(r, id));
    if (!n)
        return 0;
    memcpy(name, s, n);
    name[n] = 0;
    twin = json_object_get(vocab, name);
    if (twin)
        return kv_fail(e, "tokens %lld and %zu are both \"%s\"",
                       (long long)json_integer_value(twin), id, name);
    json_object_set_new_nocheck(vocab, name, json_integer((json_int_t)id));
    return 0;
}

static int add_vocab(const struct reading *r, struct kv_err *e)
{
    json_t *vocab = json_object();

    json_object_set_new(r->model, "vocab", vocab);
    for (size_t i = 0; i < r->tokens->n; i++)
        if (add_token(vocab, r, i, e))
            return -1;
    return 0;
}

/* Tokens that are looked for in a text as they are. */
static void add_added(const struct reading *r)
{
    json_t *list = json_array();
    size_t n;

    json_object_set_new(r->out, "added_tokens", list);
    for (size_t i = 0; i < r->tokens->n; i++) {
        const int64_t type = type_of(r, i);

        kv_gguf_text(r->tokens, i, &n);
        if (!n || (type != UNKNOWN && type != CONTROL && type != USER_DEFINED))
            continue;
        json_array_append_new(
            list, json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (int)i,
                            "content", text_of(r, i), "special",
                            type != USER_DEFINED, "normalized", 0,
                            "single_word", 0, "lstrip", 0, "rstrip", 0));
    }
}

/* ---- "llama": merges by scores ----------------------------------------- */

/* Two tokens that make a third. */
struct merge {
    double score;
    int32_t whole;
    uint32_t left_bytes, left_chars, right_chars;
};

struct merges {
    struct merge *at;
    size_t n, capacity;
};

/* The best whole first; of equals, as transformers sorts them, the longest
 * left, the longest right, and the order of the vocabulary. */
static int by_rank(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars)
        return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars)
        return x->right_chars > y->right_chars ? -1 : 1;
    return (x->whole > y->whole) - (x->whole < y->whole);
}

/* Others are found in the text before it comes to merges, or stand for bytes,
 * or for nothing in a text. */
static bool is_made(const struct reading *r, int32_t id)
{
    const int64_t type = id < 0 ? CONTROL : type_of(r, (size_t)id);

    return type == NORMAL || type == UNUSED || type == UNDEFINED;
}

static void find_merges(const struct reading *r, const struct kv_vocab *v,
                        int32_t whole, double score, struct merges *out)
{
    const struct kv_token t = v->token[whole];
    uint32_t chars = 0, left = 1;

    for (size_t i = 0; i < t.n; i += kv_utf8_bytes(t.s + i))
        chars++;
    for (size_t i = kv_utf8_bytes(t.s); i < t.n;
         i += kv_utf8_bytes(t.s + i), left++) {
        if (!is_made(r, kv_vocab_id(v, t.s, i)) ||
            !is_made(r, kv_vocab_id(v, t.s + i, t.n - i)))
            continue;
        if (out->n == out->capacity) {
            out->capacity = 2 * out->capacity + 1024;
            out->at = kv_realloc(out->at, out->capacity, sizeof(*out->at));
        }
        out->at[out->n++] = (struct merge){.score = score,
                                           .whole = whole,
                                           .left_bytes = (uint32_t)i,
                                           .left_chars = left,
                                           .right_chars = chars - left};
    }
}

static void list_merges(const struct kv_vocab *v, struct merges *m,
                        json_t *list)
{
    if (m->n)
        qsort(m->at, m->n, sizeof(*m->at), by_rank);
    for (size_t i = 0; i < m->n; i++) {
        const struct kv_token t = v->token[m->at[i].whole];
        const size_t left = m->at[i].left_bytes;
        json_t *pair = json_array();

        json_array_append_new(pair, json_stringn_nocheck(t.s, left));
        json_array_append_new(pair,
                              json_stringn_nocheck(t.s + left, t.n - left));
        json_array_append_new(list, pair);
    }
}

static int add_scored(const struct reading *r, struct kv_err *e)
{
    const struct kv_gguf_value *scores;
    json_t *list = json_array();
    struct merges m = {0};
    struct kv_vocab v;
    int rc = 0;

    json_object_set_new(r->model, "merges", list);
    if (get_list(r->g, KEY "scores", KV_GGUF_REAL, &scores, e))
        return -1;
    if (scores->n != r->tokens->n)
        return kv_fail(e, "key " KEY "scores has %zu values for %zu tokens",
                       scores->n, r->tokens->n);
    if (kv_vocab_init(&v, json_object_get(r->model, "vocab"), e))
        return -1;
    for (size_t i = 0; i < v.n_ids && !rc; i++) {
        const double score = kv_gguf_real(scores, i);

        if (isnan(score))
            rc = kv_fail(e, "the score of token %zu is no number", i);
        else if (v.token[i].s && is_made(r, (int32_t)i))
            find_merges(r, &v, (int32_t)i, score, &m);
    }
    if (!rc)
        list_merges(&v, &m, list);
    kv_vocab_clear(&v);
    free(m.at);
    return rc;
}

/* Its normalizer and decoder.  prefix: a text gets a space before it. */
static void add_spaces(const struct reading *r, bool prefix)
{
    json_t *steps = json_array();

    if (prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend",
                                               "prepend", SPACE));
    json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type",
                                           "Replace", "pattern", "String", " ",
                                           "content", SPACE));
    json_object_set_new(
        r->out, "normalizer",
        json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps));

    steps = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace",
                      "pattern", "String", SPACE, "content", " ", "type",
                      "ByteFallback", "type", "Fuse");
    if (prefix)
        json_array_append_new(steps,
                              json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                        "content", " ", "start", 1, "stop", 0));
    json_object_set_new(
        r->out, "decoder",
        json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps));
}

static int read_llama(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    bool prefix;
    int64_t unk;

    *adds_bos = true;
    if (get_flag(r->g, KEY "add_space_prefix", true, &prefix, e) ||
        get_id(r, KEY "unknown_token_id", &unk, e) || add_scored(r, e))
        return -1;
    json_object_set_new(r->model, "unk_token",
                        text_of(r, unk < 0 ? 0 : (size_t)unk));
    json_object_set_new(r->model, "fuse_unk", json_true());
    json_object_set_new(r->model, "byte_fallback", json_true());
    add_spaces(r, prefix);
    return 0;
}

/* ---- "gpt2": merges as they are listed --------------------------------- */

static json_t *byte_level(void)
{
    return json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                     0, "use_regex", 0);
}

static int add_cuts(const struct reading *r, const struct kv_gguf_cut **cut,
                    struct kv_err *e)
{
    const struct kv_gguf_value *pre;
    json_t *steps;
    const char *name;
    size_t n;

    if (kv_gguf_get(r->g, KEY "pre", KV_GGUF_TEXT, false, &pre, e))
        return -1;
    if (!pre)
        return kv_fail(e, "no key " KEY "pre: how a text is cut is not known");
    name = kv_gguf_text(pre, 0, &n);
    *cut = kv_gguf_cut_find(name, n);
    if (!*cut)
        return kv_fail(e, "key " KEY "pre is \"%.*s\", which is not supported",
                       n < 64 ? (int)n : 64, name);
    steps = json_array();
    for (const char *const *regex = (*cut)->regex; *regex; regex++)
        json_array_append_new(steps,
                              json_pack("{s:s, s:{s:s}, s:s, s:b}", "type",
                                        "Split", "pattern", "Regex", *regex,
                                        "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps, byte_level());
    json_object_set_new(
        r->out, "pre_tokenizer",
        json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps));
    return 0;
}

static int add_listed(const struct reading *r, struct kv_err *e)
{
    const struct kv_gguf_value *merges;
    json_t *list = json_array();

    json_object_set_new(r->model, "merges", list);
    if (get_list(r->g, KEY "merges", KV_GGUF_TEXT, &merges, e))
        return -1;
    for (size_t i = 0; i < merges->n; i++) {
        size_t n;
        const char *s = kv_gguf_text(merges, i, &n);

        if (memchr(s, 0, n) || kv_utf8_valid(s, n) != n)
            return kv_fail(e, "merge %zu is not UTF-8 without a zero", i);
        json_array_append_new(list, json_stringn_nocheck(s, n));
    }
    return 0;
}

static int read_gpt2(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    const struct kv_gguf_cut *cut;

    if (refuse_flag(r->g, KEY "add_space_prefix", e) || add_cuts(r, &cut, e) ||
        add_listed(r, e))
        return -1;
    *adds_bos = cut->adds_bos;
    json_object_set_new(r->model, "ignore_merges",
                        json_boolean(cut->ignores_merges));
    json_object_set_new(r->out, "decoder", byte_level());
    return 0;
}

/* ---- both -------------------------------------------------------------- */

static int read_model(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    static const struct {
        const char *name;
        int (*read)(const struct reading *r, bool *adds_bos, struct kv_err *e);
    } models[] = {{"gpt2", read_gpt2}, {"llama", read_llama}};
    const struct kv_gguf_value *model;
    const char *name;
    size_t n;

    if (kv_gguf_get(r->g, KEY "model", KV_GGUF_TEXT, false, &model, e))
        return -1;
    if (!model)
        return kv_fail(e, "no key " KEY "model: the file has no vocabulary");
    name = kv_gguf_text(model, 0, &n);
    for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
        if (n == strlen(models[i].name) && !memcmp(name, models[i].name, n))
            return models[i].read(r, adds_bos, e);
    return kv_fail(e,
                   "key " KEY "model is \"%.*s\", which is not supported, "
                   "only gpt2 and llama",
                   n < 64 ? (int)n : 64, name);
}

static int add_bos(struct reading *r, bool adds, struct kv_err *e)
{
    json_t *name;

    if (get_flag(r->g, KEY "add_bos_token", adds, &adds, e) ||
        get_id(r, KEY "bos_token_id", &r->bos, e))
        return -1;
    if (!adds)
        return 0;
    if (r->bos < 0)
        return kv_fail(e, "no key " KEY "bos_token_id, but a text begins with "
                          "that token");
    name = text_of(r, (size_t)r->bos);
    json_object_set_new(
        r->out, "post_processor",
        json_pack("{s:s, s:[{s:{s:O}}, {s:{s:s}}], s:{s:{s:[i]}}}", "type",
                  "TemplateProcessing", "single", "SpecialToken", "id", name,
                  "Sequence", "id", "A", "special_tokens",
                  json_string_value(name), "ids", (int)r->bos));
    json_decref(name);
    return 0;
}

static int read_all(struct reading *r, struct kv_err *e)
{
    bool adds_bos;

    r->model = json_object();
    json_object_set_new(r->out, "model", r->model);
    if (check_keys(r->g, e) || refuse_flag(r->g, KEY "add_eos_token", e) ||
        refuse_flag(r->g, KEY "add_sep_token", e) ||
        refuse_flag(r->g, KEY "remove_extra_whitespaces", e) ||
        read_tokens(r, e) || add_vocab(r, e) || read_model(r, &adds_bos, e))
        return -1;
    add_added(r);
    return add_bos(r, adds_bos, e);
}

json_t *kv_tokenizer_of_gguf(const struct kv_gguf *g, int32_t *bos,
                             struct kv_err *e)
{
    struct reading r = {.g = g, .out = json_object()};

    if (read_all(&r, e)) {
        json_decref(r.out);
        return NULL;
    }
    *bos = (int32_t)r.bos;
    return r.out;
}
