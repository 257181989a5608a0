#include "lib/tokenizer/tokenizer_unigram.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model --------------------------------------------------------- */

/* Reads the pair ["name", score] of token id, and adds the name to names. */
static int read_token(struct kv_unigram *u, json_t *names, const json_t *pair,
                      size_t id, struct kv_err *e)
{
    const char *name = json_string_value(json_array_get(pair, 0));
    const json_t *score = json_array_get(pair, 1);

    if (!name || !json_is_number(score) || json_array_size(pair) != 2)
        return kv_fail(e, "not [\"token\", score]");
    if (json_object_get(names, name))
        return kv_fail(e, "\"%s\" is there twice", name);
    u->score[id] = json_number_value(score);
    if (u->score[id] < u->unk_score)
        u->unk_score = u->score[id];
    json_object_set_new_nocheck(names, name, json_integer((json_int_t)id));
    return 0;
}

static int read_vocab(struct kv_unigram *u, const json_t *model,
                      struct kv_err *e)
{
    json_t *list, *names;
    size_t n;
    int rc = 0;

    if (kv_field_array(model, "vocab", &list, e))
        return -1;
    n = json_array_size(list);
    if (n > KV_TOKEN_IDS)
        return kv_fail(e, "%zu tokens; at most %d are", n, KV_TOKEN_IDS);
    u->score = kv_alloc(n, sizeof(*u->score));
    u->hidden = kv_alloc(n, sizeof(*u->hidden));
    u->unk_score = INFINITY;
    names = json_object();
    for (size_t i = 0; i < n && !rc; i++)
        if (read_token(u, names, json_array_get(list, i), i, e))
            rc = kv_fail_in(e, "token %zu of \"vocab\"", i);
    u->unk_score -= 10;
    if (!rc)
        rc = kv_vocab_init(&u->vocab, names, e);
    json_decref(names);
    return rc;
}

static int by_bytes(const void *a, const void *b, void *vocab)
{
    const struct kv_vocab *v = vocab;
    const struct kv_token x = v->token[*(const int32_t *)a],
                          y = v->token[*(const int32_t *)b];
    const int c = memcmp(x.s, y.s, x.n < y.n ? x.n : y.n);

    return c ? c : (x.n > y.n) - (x.n < y.n);
}

static void sort_tokens(struct kv_unigram *u)
{
    const struct kv_vocab *v = &u->vocab;
    size_t at = 0;

    u->sorted = kv_alloc(v->n_ids, sizeof(*u->sorted));
    for (size_t i = 0; i < v->n_ids; i++)
        u->sorted[i] = (int32_t)i;
    if (v->n_ids)
        qsort_r(u->sorted, v->n_ids, sizeof(*u->sorted), by_bytes, &u->vocab);
    while (at < v->n_ids && !v->token[u->sorted[at]].n)
        at++; /* an empty token is in no text */
    for (unsigned c = 0; c <= 256; c++) {
        while (at < v->n_ids && (unsigned char)*v->token[u->sorted[at]].s < c)
            at++;
        u->first[c] = at;
    }
}

static int read_options(struct kv_unigram *u, const json_t *model,
                        struct kv_err *e)
{
    const json_t *unk = json_object_get(model, "unk_id");
    const json_t *min = json_object_get(model, "min_score");
    bool bytes;
    size_t id;

    u->unk = -1;
    if (unk && !json_is_null(unk)) {
        if (kv_field_count(model, "unk_id", u->vocab.n_ids, &id, e))
            return -1;
        u->unk = (int32_t)id;
    }
    if (kv_field_flag(model, "byte_fallback", false, &bytes, e) ||
        kv_field_flag(model, "single_precision", false, &u->single, e))
        return -1;
    if (json_is_number(min))
        u->unk_score = json_number_value(min) - 10;
    if (u->single)
        u->unk_score = (double)(float)u->unk_score;
    for (unsigned i = 0; i < 256; i++) {
        char name[8];

        snprintf(name, sizeof(name), "<0x%02X>", i);
        u->byte[i] = bytes ? kv_vocab_id(&u->vocab, name, 6) : -1;
    }
    return 0;
}

int kv_unigram_new(struct kv_unigram **u, const json_t *model, struct kv_err *e)
{
    struct kv_unigram *x = kv_alloc(1, sizeof(*x));

    if (kv_field_only(
            model, "type unk_id vocab byte_fallback min_score single_precision",
            e) ||
        read_vocab(x, model, e) || read_options(x, model, e)) {
        kv_unigram_free(x);
        return kv_fail_in(e, "model");
    }
    sort_tokens(x);
    *u = x;
    return 0;
}

void kv_unigram_free(struct kv_unigram *u)
{
    if (!u)
        return;
    kv_vocab_clear(&u->vocab);
    free(u->score);
    free(u->hidden);
    free(u->sorted);
    free(u);
}

void kv_unigram_hide(struct kv_unigram *u, int32_t id)
{
    if (id >= 0 && (size_t)id < u->vocab.n_ids)
        u->hidden[id] = true;
}

/* ---- the search -------------------------------------------------------- */

/* The best segmentation up to a place in the piece. */
struct kv_lattice_node {
    double score;
    uint32_t from; /* beginning of its last token; NONE: none found yet */
    uint32_t next; /* the next place in the whole piece's best one */
    int32_t id;
};

#define NONE UINT32_MAX

void kv_lattice_clear(struct kv_lattice *l)
{
    free(l->node);
    *l = (struct kv_lattice){0};
}

/* Offers a segmentation whose last token begins at `from` and ends at this
 * node; keeps the better one. */
static void offer(struct kv_lattice_node *node, uint32_t from, double score,
                  bool single, int32_t id)
{
    if (single)
        score = (double)(float)score;
    if (node->from != NONE && score <= node->score)
        return;
    node->score = score;
    node->from = from;
    node->id = id;
}

/* The first of sorted[low..high) whose byte at depth is c or more. */
static size_t bound(const struct kv_unigram *u, size_t low, size_t high,
                    size_t depth, unsigned c)
{
    while (low < high) {
        const size_t mid = low + (high - low) / 2;

        if ((unsigned char)u->vocab.token[u->sorted[mid]].s[depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Offers every token that matches at `from`.  Returns whether one of them is
 * exactly the first character. */
static bool offer_tokens(const struct kv_unigram *u,
                         struct kv_lattice_node *node, const char *s, size_t n,
                         uint32_t from)
{
    const size_t one = kv_utf8_bytes(s + from), left = n - from;
    const unsigned lead = (unsigned char)s[from];
    size_t low = u->first[lead], high = u->first[lead + 1];
    bool single = false;

    for (size_t depth = 1; low < high; depth++) {
        const int32_t id = u->sorted[low];

        if (u->vocab.token[id].n == depth) {
            if (!u->hidden[id]) {
                offer(&node[from + depth], from,
                      node[from].score + u->score[id], u->single, id);
                single |= depth == one;
            }
            low++;
        }
        if (depth == left)
            break;

        const unsigned c = (unsigned char)s[from + depth];

        low = bound(u, low, high, depth, c);
        high = bound(u, low, high, depth, c + 1);
    }
    return single;
}

static int search(const struct kv_unigram *u, struct kv_lattice_node *node,
                  const char *s, size_t n, struct kv_err *e)
{
    size_t n_looked_at = 0;

    for (size_t i = 0; i <= n; i++)
        node[i].from = NONE;
    node[0].score = 0;
    for (size_t at = 0, one; at < n; at += one) {
        one = kv_utf8_bytes(s + at);
        if (!(++n_looked_at & 0xffff) && kv_interrupted(e))
            return -1;
        if (offer_tokens(u, node, s, n, (uint32_t)at))
            continue;
        if (u->unk < 0)
            return kv_fail(e, "\"%.*s\" has no token, and the model no unk_id",
                           (int)one, s + at);
        offer(&node[at + one], (uint32_t)at, node[at].score + u->unk_score,
              u->single, u->unk);
    }
    for (uint32_t at = (uint32_t)n; at; at = node[at].from)
        node[node[at].from].next = at;
    return 0;
}

/* Adds a joined run of unknown characters.  The run may be a token after all,
 * as in Hugging Face's library. */
static void put_unknown(const struct kv_unigram *u, const char *s, size_t n,
                        struct kv_ids *out)
{
    const int32_t id = kv_vocab_id(&u->vocab, s, n);
    const bool known = id >= 0 && !u->hidden[id];
    bool bytes = !known;

    for (size_t i = 0; i < n && bytes; i++)
        bytes = u->byte[(unsigned char)s[i]] >= 0;
    if (!bytes)
        kv_ids_add(out, known ? id : u->unk);
    for (size_t i = 0; i < n && bytes; i++)
        kv_ids_add(out, u->byte[(unsigned char)s[i]]);
}

int kv_unigram_encode(const struct kv_unigram *u, struct kv_lattice *l,
                      const char *s, size_t n, struct kv_ids *out,
                      struct kv_err *e)
{
    const struct kv_lattice_node *node;

    if (n >= NONE)
        return kv_fail(e, "a word of %zu bytes", n);
    if (n >= l->capacity) {
        kv_lattice_clear(l);
        l->capacity = n + n / 2 + 64;
        l->node = kv_alloc(l->capacity, sizeof(*l->node));
    }
    node = l->node;
    if (search(u, l->node, s, n, e))
        return -1;
    for (size_t at = 0, end; at < n; at = end) {
        end = node[at].next;
        if (node[end].id != u->unk) {
            kv_ids_add(out, node[end].id);
            continue;
        }
        while (end < n && node[node[end].next].id == u->unk)
            end = node[end].next;
        put_unknown(u, s + at, end - at, out);
    }
    return 0;
}
