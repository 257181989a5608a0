/* Byte-pair encoding: "model" in tokenizer.json.
 *
 * A piece starts as its characters.  Repeatedly, the neighbouring pair whose
 * merge comes first in the list is joined, the leftmost such pair first. */
#ifndef KV_MODEL_TOKENIZER_BPE_H
#define KV_MODEL_TOKENIZER_BPE_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_vocab.h"

#include <jansson.h>
#include <stdbool.h>

/* A table by pairs of ids, open-addressed. */
struct kv_pair {
    uint64_t key; /* left << 32 | right, or KV_NO_PAIR */
    uint32_t rank;
    int32_t id; /* the id of the merged token */
};
#define KV_NO_PAIR UINT64_MAX

struct kv_pairs {
    struct kv_pair *slot;
    size_t mask;
};

enum { KV_BPE_LOW = 0x180 };

struct kv_bpe {
    struct kv_vocab vocab;
    struct kv_pairs merges;
    /* Pairs of characters that some merge can join; between other characters a
     * long piece may be cut without any effect on the result. */
    struct kv_pairs junctions;
    int32_t low[KV_BPE_LOW]; /* ids of the first code points, or -1 */
    int32_t byte[256];       /* ids of "<0x00>" to "<0xFF>", or -1 */
    int32_t unk;             /* may be -1 */
    bool fuse_unk, byte_fallback, ignore_merges;
};

/* model: the JSON object.  Fails on dropout, continuing_subword_prefix and
 * end_of_word_suffix, and on a merge whose parts or result are no tokens. */
int kv_bpe_new(struct kv_bpe **b, const json_t *model, struct kv_err *e);
void kv_bpe_free(struct kv_bpe *b);

/* The id of the character at s (well-formed UTF-8) as a token of its own, or
 * -1; *n_bytes is its length. */
int32_t kv_bpe_char(const struct kv_bpe *b, const char *s, size_t *n_bytes);

static inline const struct kv_pair *kv_pairs_find(const struct kv_pairs *p,
                                                  int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = key * 0x9e3779b97f4a7c15u >> 32 & p->mask;

    for (; p->slot[i].key != KV_NO_PAIR; i = (i + 1) & p->mask)
        if (p->slot[i].key == key)
            return &p->slot[i];
    return NULL;
}

struct kv_ids {
    int32_t *id;
    size_t n, capacity;
};
void kv_ids_add(struct kv_ids *x, int32_t id);

/* One thread's state for encoding: scratch memory, and a cache of recent
 * words. */
struct kv_bpe_run;
struct kv_bpe_run *kv_bpe_run_new(const struct kv_bpe *b);
void kv_bpe_run_free(struct kv_bpe_run *r);

/* Appends the ids of one piece, well-formed UTF-8.  A character without a token
 * becomes its bytes, or unk, or nothing if the model has neither, as in Hugging
 * Face's library.  O(n log n).  Fails above 2^32 - 2 bytes. */
int kv_bpe_encode(struct kv_bpe_run *r, const char *s, size_t n,
                  struct kv_ids *out, struct kv_err *e);

#endif
