/* Unigram: the other "model" in tokenizer.json.
 *
 * A piece becomes the tokens whose scores have the largest sum (Viterbi's
 * search).  A character at which no token begins counts 10 less than the lowest
 * score. */
#ifndef KV_MODEL_TOKENIZER_UNIGRAM_H
#define KV_MODEL_TOKENIZER_UNIGRAM_H

#include "lib/tokenizer/tokenizer_bpe.h"

struct kv_unigram {
    struct kv_vocab vocab;
    double *score;     /* [n_ids] */
    bool *hidden;      /* [n_ids], true: never matched in a text here */
    int32_t *sorted;   /* [n_ids] ids, by the bytes of their tokens */
    size_t first[257]; /* the index in `sorted` where tokens with this first
                        * byte begin */
    int32_t unk;       /* may be -1 */
    double unk_score;
    int32_t byte[256]; /* ids of "<0x00>" to "<0xFF>", or -1 */
    bool single;       /* sums are in single precision */
};

/* model: the JSON object.  Besides tokenizer.json's fields it may have
 * "min_score", which replaces the lowest score, and "single_precision": true,
 * which rounds sums as SentencePiece does.  Rounding decides between
 * segmentations with equal sums, such as those of "aaaa".
 */
int kv_unigram_new(struct kv_unigram **u, const json_t *model,
                   struct kv_err *e);
void kv_unigram_free(struct kv_unigram *u);

/* Special tokens are in the vocabulary too, but a text that spells one out
 * remains text. */
void kv_unigram_hide(struct kv_unigram *u, int32_t id);

/* The best segmentation up to each byte of a piece.  It starts as all zeros and
 * may be reused. */
struct kv_lattice {
    struct kv_lattice_node *node;
    size_t capacity;
};
void kv_lattice_clear(struct kv_lattice *l);

/* Appends the ids of one piece, well-formed UTF-8.  A run of characters without
 * a token becomes its bytes, if the model has byte_fallback, or one unk.  Fails
 * if the model has neither, and above 2^32 - 2 bytes. */
int kv_unigram_encode(const struct kv_unigram *u, struct kv_lattice *l,
                      const char *s, size_t n, struct kv_ids *out,
                      struct kv_err *e);

#endif
