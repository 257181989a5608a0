#include "lib/tokenizer/tokenizer_pieces.h"
#include "lib/base/alloc.h"
#include "lib/base/base64.h"
#include "lib/tokenizer/tokenizer_text.h"
#include "lib/tokenizer/tokenizer_vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The maximum length of a token, more than any known token has.  It limits the
 * work of find_merges(), which cuts a token in two at every position. */
enum { TOKEN_BYTES = 1024 };

#define SPACE "\xe2\x96\x81" /* U+2581 represents a space */

/* ---- tokens ------------------------------------------------------------ */

static int add_token(json_t *vocab, const struct kv_piece *p, size_t id,
                     struct kv_err *e)
{
    char name[TOKEN_BYTES + 1];
    const json_t *twin;

    if (p->n > TOKEN_BYTES)
        return kv_fail(e, "token %zu has %zu bytes; at most %d are", id, p->n,
                       TOKEN_BYTES);
    if (memchr(p->s, 0, p->n) || kv_utf8_valid(p->s, p->n) != p->n)
        return kv_fail(e, "token %zu is not UTF-8 without a zero", id);
    if (p->type < 0 || p->type >= KV_N_PIECE_TYPES)
        return kv_fail(e, "token %zu has type %lld, which is not known", id,
                       (long long)p->type);
    if (isnan(p->score))
        return kv_fail(e, "the score of token %zu is no number", id);
    if (!p->n)
        return 0;
    memcpy(name, p->s, p->n);
    name[p->n] = 0;
    twin = json_object_get(vocab, name);
    if (twin)
        return kv_fail(e, "tokens %lld and %zu are both \"%s\"",
                       (long long)json_integer_value(twin), id, name);
    json_object_set_new_nocheck(vocab, name, json_integer((json_int_t)id));
    return 0;
}

/* Whether the token is an added token, which is matched in a text verbatim. */
static bool is_added(const struct kv_piece *p)
{
    return p->n &&
           (p->type == KV_PIECE_UNKNOWN || p->type == KV_PIECE_CONTROL ||
            p->type == KV_PIECE_USER_DEFINED);
}

static json_t *text_of(const struct kv_piece *p)
{
    return json_stringn_nocheck(p->s, p->n);
}

int kv_pieces_add(const struct kv_pieces *p, json_t *out, struct kv_err *e)
{
    json_t *vocab = json_object(), *added = json_array();

    json_object_set_new(json_object_get(out, "model"), "vocab", vocab);
    json_object_set_new(out, "added_tokens", added);
    if (!p->n || p->n > KV_TOKEN_IDS)
        return kv_fail(e, "%zu tokens, not 1 to %d", p->n, KV_TOKEN_IDS);
    for (size_t i = 0; i < p->n; i++) {
        const struct kv_piece *x = &p->piece[i];

        if (add_token(vocab, x, i, e))
            return -1;
        if (is_added(x))
            json_array_append_new(
                added,
                json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (int)i,
                          "content", text_of(x), "special",
                          x->type != KV_PIECE_USER_DEFINED, "normalized", 0,
                          "single_word", 0, "lstrip", 0, "rstrip", 0));
    }
    return 0;
}

void kv_pieces_add_bos(const struct kv_pieces *p, json_t *out, size_t id)
{
    json_t *name = text_of(&p->piece[id]);

    json_object_set_new(
        out, "post_processor",
        json_pack("{s:s, s:[{s:{s:O}}, {s:{s:s}}], s:{s:{s:[i]}}}", "type",
                  "TemplateProcessing", "single", "SpecialToken", "id", name,
                  "Sequence", "id", "A", "special_tokens",
                  json_string_value(name), "ids", (int)id));
    json_decref(name);
}

/* ---- merges by scores -------------------------------------------------- */

/* A merge: two tokens that make a third. */
struct merge {
    double score;
    int32_t whole;
    uint32_t left_bytes, left_chars, right_chars;
};

struct merges {
    struct merge *at;
    size_t n, capacity;
};

/* Sorts merges by the score of the merged token, best first.  Equal scores are
 * sorted as in transformers: longest left half, longest right half, then the
 * order of the vocabulary. */
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

/* Whether merges can make the token.  Other tokens are matched before merges,
 * represent bytes, or never occur in a text. */
static bool is_made(const struct kv_pieces *p, int32_t id)
{
    const int64_t type = id < 0 ? KV_PIECE_CONTROL : p->piece[id].type;

    return type == KV_PIECE_NORMAL || type == KV_PIECE_UNUSED ||
           type == KV_PIECE_UNDEFINED;
}

static void find_merges(const struct kv_pieces *p, const struct kv_vocab *v,
                        int32_t whole, struct merges *out)
{
    const struct kv_token t = v->token[whole];
    uint32_t chars = 0, left = 1;

    for (size_t i = 0; i < t.n; i += kv_utf8_bytes(t.s + i))
        chars++;
    for (size_t i = kv_utf8_bytes(t.s); i < t.n;
         i += kv_utf8_bytes(t.s + i), left++) {
        if (!is_made(p, kv_vocab_id(v, t.s, i)) ||
            !is_made(p, kv_vocab_id(v, t.s + i, t.n - i)))
            continue;
        if (out->n == out->capacity) {
            out->capacity = 2 * out->capacity + 1024;
            out->at = kv_realloc(out->at, out->capacity, sizeof(*out->at));
        }
        out->at[out->n++] = (struct merge){.score = p->piece[whole].score,
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

int kv_pieces_add_merges(const struct kv_pieces *p, json_t *out,
                         struct kv_err *e)
{
    json_t *model = json_object_get(out, "model");
    json_t *list = json_array();
    struct merges m = {0};
    struct kv_vocab v;

    json_object_set_new(model, "merges", list);
    if (kv_vocab_init(&v, json_object_get(model, "vocab"), e))
        return -1;
    for (size_t i = 0; i < v.n_ids; i++)
        if (v.token[i].s && is_made(p, (int32_t)i))
            find_merges(p, &v, (int32_t)i, &m);
    list_merges(&v, &m, list);
    kv_vocab_clear(&v);
    free(m.at);
    return 0;
}

void kv_pieces_add_unigram(const struct kv_pieces *p, json_t *out, size_t unk,
                           bool byte_fallback, bool single)
{
    json_t *model = json_object_get(out, "model"), *list = json_array();
    double min = INFINITY;

    for (size_t i = 0; i < p->n; i++) {
        json_t *pair = json_array();

        if (p->piece[i].type == KV_PIECE_NORMAL && p->piece[i].score < min)
            min = p->piece[i].score;
        json_array_append_new(pair, text_of(&p->piece[i]));
        json_array_append_new(pair, json_real(p->piece[i].score));
        json_array_append_new(list, pair);
    }
    json_object_set_new(model, "type", json_string("Unigram"));
    json_object_set_new(model, "vocab", list);
    json_object_set_new(model, "unk_id", json_integer((json_int_t)unk));
    json_object_set_new(model, "byte_fallback", json_boolean(byte_fallback));
    if (isfinite(min))
        json_object_set_new(model, "min_score", json_real(min));
    json_object_set_new(model, "single_precision", json_boolean(single));
}

/* ---- spaces ------------------------------------------------------------ */

static json_t *replace(const char *kind, const char *pattern, const char *by)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind,
                     pattern, "content", by);
}

static void add_table(const struct kv_spaces *s, json_t *steps)
{
    char *text = kv_base64_encode(s->table, s->table_bytes);

    json_array_append_new(
        steps, json_pack("{s:s, s:s, s:b}", "type", "Precompiled",
                         "precompiled_charsmap", text, "longest_match", 1));
    free(text);
}

void kv_pieces_add_spaces(json_t *out, const struct kv_spaces *s)
{
    json_t *steps = json_array();

    if (s->table_bytes)
        add_table(s, steps);
    if (s->remove_extra) {
        json_array_append_new(steps, replace("Regex", " {2,}", " "));
        json_array_append_new(steps, replace("Regex", "\\A | \\z", ""));
    }
    if (s->prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend",
                                               "prepend", SPACE));
    json_array_append_new(steps, replace("String", " ", SPACE));
    json_object_set_new(
        out, "normalizer",
        json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps));

    steps = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace",
                      "pattern", "String", SPACE, "content", " ", "type",
                      "ByteFallback", "type", "Fuse");
    if (s->prefix)
        json_array_append_new(steps,
                              json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                        "content", " ", "start", 1, "stop", 0));
    json_object_set_new(
        out, "decoder",
        json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps));
}

void kv_pieces_add_fallback(const struct kv_pieces *p, json_t *out, size_t unk)
{
    json_t *model = json_object_get(out, "model");

    json_object_set_new(model, "unk_token", text_of(&p->piece[unk]));
    json_object_set_new(model, "fuse_unk", json_true());
    json_object_set_new(model, "byte_fallback", json_true());
}

int kv_pieces_add_bpe(const struct kv_pieces *p, json_t *out, size_t unk,
                      struct kv_err *e)
{
    kv_pieces_add_fallback(p, out, unk);
    return kv_pieces_add_merges(p, out, e);
}
