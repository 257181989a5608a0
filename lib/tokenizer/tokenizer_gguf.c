#include "lib/tokenizer/tokenizer_gguf.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/tokenizer_cuts.h"
#include "lib/tokenizer/tokenizer_pieces.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

/* The tokenizer.json that is made from a GGUF file. */
struct reading {
    const struct kv_gguf *g;
    struct kv_pieces pieces;
    json_t *out, *model; /* the whole tokenizer.json, and its "model" */
    int64_t bos;
};

/* ---- keys -------------------------------------------------------------- */

#define KEY "tokenizer.ggml."

/* Keys that are read, and keys that cannot change ids. */
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
                                   "remove_extra_whitespaces",
                                   "precompiled_charsmap"};

/* Whether a key names tokens, as "bos_token_id" and "eog_token_ids" do. */
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

/* Fails if the flag is true. */
static int refuse_flag(const struct kv_gguf *g, const char *key,
                       struct kv_err *e)
{
    bool flag;

    if (get_flag(g, key, false, &flag, e))
        return -1;
    return flag ? kv_fail(e, "key %s is true, which is not supported", key) : 0;
}

/* Reads a token id; -1 if there is no such key. */
static int get_id(const struct reading *r, const char *key, int64_t *id,
                  struct kv_err *e)
{
    const struct kv_gguf_value *v;

    if (kv_gguf_get(r->g, key, KV_GGUF_INT, false, &v, e))
        return -1;
    *id = v ? kv_gguf_int(v, 0) : -1;
    if (v && (*id < 0 || (size_t)*id >= r->pieces.n))
        return kv_fail(e, "key %s is %lld, no id of a vocabulary of %zu", key,
                       (long long)*id, r->pieces.n);
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

/* Reads the score of each token, if the file has scores. */
static int read_scores(struct reading *r, struct kv_err *e)
{
    const struct kv_gguf_value *scores;

    if (kv_gguf_get(r->g, KEY "scores", KV_GGUF_REAL, true, &scores, e))
        return -1;
    if (scores && scores->n != r->pieces.n)
        return kv_fail(e, "key " KEY "scores has %zu values for %zu tokens",
                       scores->n, r->pieces.n);
    for (size_t i = 0; scores && i < scores->n; i++)
        r->pieces.piece[i].score = kv_gguf_real(scores, i);
    return 0;
}

static int read_tokens(struct reading *r, struct kv_err *e)
{
    const struct kv_gguf_value *tokens, *types;

    if (get_list(r->g, KEY "tokens", KV_GGUF_TEXT, &tokens, e) ||
        get_list(r->g, KEY "token_type", KV_GGUF_INT, &types, e))
        return -1;
    if (types->n != tokens->n)
        return kv_fail(e, "key " KEY "token_type has %zu values for %zu tokens",
                       types->n, tokens->n);
    r->pieces.n = tokens->n;
    r->pieces.piece = kv_alloc(tokens->n, sizeof(*r->pieces.piece));
    for (size_t i = 0; i < tokens->n; i++) {
        struct kv_piece *p = &r->pieces.piece[i];

        p->s = kv_gguf_text(tokens, i, &p->n);
        p->type = kv_gguf_int(types, i);
    }
    return read_scores(r, e);
}

/* ---- "llama": merges by scores ----------------------------------------- */

/* Refuses GGUF fields that only the tokenizer "t5" may have. */
static int refuse_rest(const struct reading *r, struct kv_err *e)
{
    if (kv_gguf_find(r->g, KEY "precompiled_charsmap"))
        return kv_fail(e, "key " KEY "precompiled_charsmap is not supported "
                          "where " KEY "model is not t5");
    return refuse_flag(r->g, KEY "add_eos_token", e) ||
                   refuse_flag(r->g, KEY "remove_extra_whitespaces", e)
               ? -1
               : 0;
}

static int read_llama(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    bool prefix;
    int64_t unk;

    *adds_bos = true;
    if (refuse_rest(r, e))
        return -1;
    if (!kv_gguf_find(r->g, KEY "scores"))
        return kv_fail(e, "no key " KEY "scores");
    if (get_flag(r->g, KEY "add_space_prefix", true, &prefix, e) ||
        get_id(r, KEY "unknown_token_id", &unk, e))
        return -1;
    kv_pieces_add_spaces(r->out, &(struct kv_spaces){.prefix = prefix});
    return kv_pieces_add_bpe(&r->pieces, r->out, unk < 0 ? 0 : (size_t)unk, e);
}

/* ---- "t5": Unigram ------------------------------------------------------ */

/* Reads the table of characters.  *table: the caller's to free; NULL if there
 * is none. */
static int read_table(const struct reading *r, uint8_t **table, size_t *bytes,
                      struct kv_err *e)
{
    const struct kv_gguf_value *v;

    *table = NULL;
    *bytes = 0;
    if (kv_gguf_get(r->g, KEY "precompiled_charsmap", KV_GGUF_INT, true, &v, e))
        return -1;
    if (!v)
        return 0;
    *table = kv_alloc(v->n, 1);
    *bytes = v->n;
    for (size_t i = 0; i < v->n; i++) {
        const int64_t x = kv_gguf_int(v, i);

        if (x < INT8_MIN || x > UINT8_MAX) {
            free(*table);
            return kv_fail(e,
                           "key " KEY "precompiled_charsmap has %lld, which is "
                           "no byte",
                           (long long)x);
        }
        (*table)[i] = (uint8_t)x;
    }
    return 0;
}

/* Never adds T5's EOS after a text: it is for encoders, and a text here may go
 * on. */
static int read_t5(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    struct kv_spaces spaces;
    uint8_t *table;
    int64_t unk;

    *adds_bos = false;
    if (!kv_gguf_find(r->g, KEY "scores"))
        return kv_fail(e, "no key " KEY "scores");
    if (get_flag(r->g, KEY "add_space_prefix", false, &spaces.prefix, e) ||
        get_flag(r->g, KEY "remove_extra_whitespaces", false,
                 &spaces.remove_extra, e) ||
        get_id(r, KEY "unknown_token_id", &unk, e))
        return -1;
    if (unk < 0)
        return kv_fail(e, "no key " KEY "unknown_token_id");
    if (read_table(r, &table, &spaces.table_bytes, e))
        return -1;
    spaces.table = table;
    kv_pieces_add_spaces(r->out, &spaces);
    free(table);
    kv_pieces_add_unigram(&r->pieces, r->out, (size_t)unk, false, false);
    return 0;
}

/* ---- "gpt2" and "gemma4": listed merges -------------------------------- */

static int find_cut(const struct reading *r, const struct kv_cut **cut,
                    struct kv_err *e)
{
    const struct kv_gguf_value *pre;
    const char *name;
    size_t n;

    if (kv_gguf_get(r->g, KEY "pre", KV_GGUF_TEXT, false, &pre, e))
        return -1;
    if (!pre)
        return kv_fail(e, "no key " KEY "pre: how a text is cut is not known");
    name = kv_gguf_text(pre, 0, &n);
    *cut = kv_cut_find(name, n);
    if (!*cut)
        return kv_fail(e, "key " KEY "pre is \"%.*s\", which is not supported",
                       n < 64 ? (int)n : 64, name);
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

static int add_raw(const struct reading *r, struct kv_err *e)
{
    int64_t unk;

    if (get_id(r, KEY "unknown_token_id", &unk, e))
        return -1;
    if (unk < 0)
        return kv_fail(e, "no key " KEY "unknown_token_id");
    kv_pieces_add_spaces(r->out, &(struct kv_spaces){.prefix = false});
    kv_pieces_add_fallback(&r->pieces, r->out, (size_t)unk);
    return 0;
}

static int read_listed(const struct reading *r, const struct kv_cut *cut,
                       bool *adds_bos, struct kv_err *e)
{
    if (refuse_rest(r, e) || refuse_flag(r->g, KEY "add_space_prefix", e) ||
        add_listed(r, e) || (cut->raw && add_raw(r, e)))
        return -1;
    kv_cut_add(cut, r->out);
    *adds_bos = cut->adds_bos;
    json_object_set_new(r->model, "ignore_merges",
                        json_boolean(cut->ignores_merges));
    return 0;
}

static int read_gpt2(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    const struct kv_cut *cut;

    return find_cut(r, &cut, e) ? -1 : read_listed(r, cut, adds_bos, e);
}

static int read_gemma4(const struct reading *r, bool *adds_bos,
                       struct kv_err *e)
{
    static const char name[] = "gemma4";

    return read_listed(r, kv_cut_find(name, strlen(name)), adds_bos, e);
}

/* ---- all --------------------------------------------------------------- */

static int read_model(const struct reading *r, bool *adds_bos, struct kv_err *e)
{
    static const struct {
        const char *name;
        int (*read)(const struct reading *r, bool *adds_bos, struct kv_err *e);
    } models[] = {{"gpt2", read_gpt2},
                  {"gemma4", read_gemma4},
                  {"llama", read_llama},
                  {"t5", read_t5}};
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
                   "only gpt2, gemma4, llama and t5",
                   n < 64 ? (int)n : 64, name);
}

static int add_bos(struct reading *r, bool adds, struct kv_err *e)
{
    if (get_flag(r->g, KEY "add_bos_token", adds, &adds, e) ||
        get_id(r, KEY "bos_token_id", &r->bos, e))
        return -1;
    if (!adds)
        return 0;
    if (r->bos < 0)
        return kv_fail(e, "no key " KEY "bos_token_id, but a text begins with "
                          "that token");
    kv_pieces_add_bos(&r->pieces, r->out, (size_t)r->bos);
    return 0;
}

static int read_all(struct reading *r, struct kv_err *e)
{
    bool adds_bos;

    r->model = json_object();
    json_object_set_new(r->out, "model", r->model);
    if (check_keys(r->g, e) || refuse_flag(r->g, KEY "add_sep_token", e) ||
        read_tokens(r, e) || kv_pieces_add(&r->pieces, r->out, e) ||
        read_model(r, &adds_bos, e))
        return -1;
    return add_bos(r, adds_bos, e);
}

json_t *kv_tokenizer_of_gguf(const struct kv_gguf *g, int32_t *bos,
                             struct kv_err *e)
{
    struct reading r = {.g = g, .out = json_object()};

    const int rc = read_all(&r, e);

    free(r.pieces.piece);
    if (rc) {
        json_decref(r.out);
        return NULL;
    }
    *bos = (int32_t)r.bos;
    return r.out;
}
