/* Runs BPE with a linked list of symbols, a queue of possible merges, and a
 * cache of words. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/tokenizer/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* One symbol of the piece; id is -1 after it was merged into its left
 * neighbour. */
struct symbol {
    int32_t id;
    uint32_t prev, next;
};

/* A merge of symbol `at` and the next symbol, which was possible when it was
 * queued. */
struct candidate {
    uint64_t order; /* rank << 32 | at: the smallest goes first */
    int32_t id;
};

/* The cache of recent words, by hash; a new word replaces the old word in its
 * slot.
 *
 *   | n_text | n_ids | text[62] | id[16] |      two cache lines */
enum { WORD_TEXT = 62, WORD_IDS = 16, WORD_SLOTS = 1 << 14 };
struct word {
    uint8_t n_text, n_ids; /* n_text 0: empty */
    char text[WORD_TEXT];
    int32_t id[WORD_IDS];
};
_Static_assert(sizeof(struct word) == 128, "two lines");

struct kv_bpe_run {
    const struct kv_bpe *b;
    struct symbol *symbol;
    size_t n_symbols, symbol_capacity;
    struct candidate *heap;
    size_t n_heap, heap_capacity;
    struct word *word; /* [WORD_SLOTS] */
};

void kv_ids_add(struct kv_ids *x, int32_t id)
{
    if (x->n == x->capacity) {
        x->capacity = x->capacity + x->capacity / 2 + 64;
        x->id = kv_realloc(x->id, x->capacity, sizeof(*x->id));
    }
    x->id[x->n++] = id;
}

struct kv_bpe_run *kv_bpe_run_new(const struct kv_bpe *b)
{
    struct kv_bpe_run *r = kv_alloc(1, sizeof(*r));

    r->b = b;
    r->word = kv_alloc(WORD_SLOTS, sizeof(*r->word));
    return r;
}

void kv_bpe_run_free(struct kv_bpe_run *r)
{
    if (!r)
        return;
    free(r->symbol);
    free(r->heap);
    free(r->word);
    free(r);
}

static void heap_push(struct kv_bpe_run *r, struct candidate c)
{
    size_t i = r->n_heap++;

    if (r->n_heap > r->heap_capacity) {
        r->heap_capacity = 2 * r->n_heap + 64;
        r->heap = kv_realloc(r->heap, r->heap_capacity, sizeof(*r->heap));
    }
    for (; i && c.order < r->heap[(i - 1) / 2].order; i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
}

static struct candidate heap_pop(struct kv_bpe_run *r)
{
    const struct candidate top = r->heap[0], last = r->heap[--r->n_heap];
    const struct candidate *h = r->heap;
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < r->n_heap; i = child) {
        if (child + 1 < r->n_heap && h[child + 1].order < h[child].order)
            child++;
        if (last.order <= h[child].order)
            break;
        r->heap[i] = h[child];
    }
    r->heap[i] = last;
    return top;
}

static void add_symbol(struct kv_bpe_run *r, int32_t id)
{
    const uint32_t at = (uint32_t)r->n_symbols++;

    r->symbol[at] =
        (struct symbol){.id = id, .prev = at ? at - 1 : NONE, .next = at + 1};
}

static bool add_bytes(struct kv_bpe_run *r, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (r->b->byte[(unsigned char)s[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        add_symbol(r, r->b->byte[(unsigned char)s[i]]);
    return true;
}

/* Splits a word into its first symbols, at most one per byte.  An unk is held
 * back until the next symbol shows whether it joins; byte symbols are emitted
 * before it. */
static void start(struct kv_bpe_run *r, const char *s, size_t n)
{
    const struct kv_bpe *b = r->b;
    bool unk = false;
    size_t n_bytes;

    if (n > r->symbol_capacity) {
        free(r->symbol);
        r->symbol_capacity = n + n / 2;
        r->symbol = kv_alloc(r->symbol_capacity, sizeof(*r->symbol));
    }
    r->n_symbols = 0;
    for (size_t at = 0; at < n; at += n_bytes) {
        const int32_t id = kv_bpe_char(b, s + at, &n_bytes);

        if (id < 0 && b->byte_fallback && add_bytes(r, s + at, n_bytes))
            continue;
        if (unk && (id >= 0 || (b->unk >= 0 && !b->fuse_unk)))
            add_symbol(r, b->unk);
        unk = id < 0 && b->unk >= 0;
        if (id >= 0)
            add_symbol(r, id);
    }
    if (unk)
        add_symbol(r, b->unk);
    if (r->n_symbols)
        r->symbol[r->n_symbols - 1].next = NONE;
}

static void consider(struct kv_bpe_run *r, uint32_t at, uint32_t next)
{
    const struct kv_pair *p =
        kv_pairs_find(&r->b->merges, r->symbol[at].id, r->symbol[next].id);

    if (p)
        heap_push(r, (struct candidate){.order = (uint64_t)p->rank << 32 | at,
                                        .id = p->id});
}

/* Merges the symbols of a piece.  Checks for interrupts, since a piece may be a
 * whole text. */
static int merge(struct kv_bpe_run *r, struct kv_err *e)
{
    size_t n_looked_at = 0;

    struct symbol *x = r->symbol;

    for (uint32_t i = 0; i + 1 < r->n_symbols; i++)
        consider(r, i, i + 1);
    while (r->n_heap) {
        if (!(++n_looked_at & 0xffff) && kv_interrupted(e)) {
            r->n_heap = 0;
            return -1;
        }

        const struct candidate c = heap_pop(r);
        const uint32_t at = (uint32_t)c.order, next = x[at].next;
        const struct kv_pair *p;

        /* either symbol may have changed since it was queued */
        if (x[at].id < 0 || next == NONE)
            continue;
        p = kv_pairs_find(&r->b->merges, x[at].id, x[next].id);
        if (!p || p->id != c.id)
            continue;
        x[at] = (struct symbol){
            .id = c.id, .prev = x[at].prev, .next = x[next].next};
        x[next].id = -1;
        if (x[at].next != NONE) {
            x[x[at].next].prev = at;
            consider(r, at, x[at].next);
        }
        if (x[at].prev != NONE)
            consider(r, x[at].prev, at);
    }
    return 0;
}

static int encode_word(struct kv_bpe_run *r, const char *s, size_t n,
                       struct kv_ids *out, struct kv_err *e)
{
    const size_t first = out->n;
    struct word *w = NULL;

    if (n <= WORD_TEXT) {
        w = &r->word[kv_name_hash(s, n) % WORD_SLOTS];
        if (w->n_text == n && !memcmp(w->text, s, n)) {
            for (size_t i = 0; i < w->n_ids; i++)
                kv_ids_add(out, w->id[i]);
            return 0;
        }
    } else if (n >= NONE) {
        return kv_fail(e, "a word of %zu bytes", n);
    }
    start(r, s, n);
    if (merge(r, e))
        return -1;
    if (r->n_symbols)
        for (uint32_t i = 0; i != NONE; i = r->symbol[i].next)
            kv_ids_add(out, r->symbol[i].id);
    if (w && out->n - first <= WORD_IDS) {
        w->n_text = (uint8_t)n;
        w->n_ids = (uint8_t)(out->n - first);
        memcpy(w->text, s, n);
        if (w->n_ids)
            memcpy(w->id, out->id + first, w->n_ids * sizeof(*w->id));
    }
    return 0;
}

int kv_bpe_encode(struct kv_bpe_run *r, const char *s, size_t n,
                  struct kv_ids *out, struct kv_err *e)
{
    const struct kv_bpe *b = r->b;
    int32_t left = -1, right;
    size_t from = 0, n_bytes;

    if (b->ignore_merges && (right = kv_vocab_id(&b->vocab, s, n)) >= 0) {
        kv_ids_add(out, right);
        return 0;
    }
    if (n <= WORD_TEXT)
        return n ? encode_word(r, s, n, out, e) : 0;
    for (size_t at = 0; at < n; at += n_bytes, left = right) {
        right = kv_bpe_char(b, s + at, &n_bytes);
        if (left < 0 || right < 0 || kv_pairs_find(&b->junctions, left, right))
            continue;
        if (encode_word(r, s + from, at - from, out, e))
            return -1;
        from = at;
    }
    return encode_word(r, s + from, n - from, out, e);
}
