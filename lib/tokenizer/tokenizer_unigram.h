/* Unigram: the other "model" in tokenizer.json.
 *
 * A piece becomes those tokens whose scores have the largest sum (Viterbi's
 * search), a character that no token begins with counting 10 less than the
 * lowest score. */
#ifndef KV_MODEL_TOKENIZER_UNIGRAM_H
#define KV_MODEL_TOKENIZER_UNIGRAM_H

#include "lib/tokenizer/tokenizer_bpe.h"

struct kv_unigram {
    struct kv_vocab vocab;
    double *score;     /* [n_ids] */
    bool *hidden;      /* [n_ids] is found in no text here */
    int32_t *sorted;   /* [n_ids] ids, by the bytes of their tokens */
    size_t first[257]; /* where in it those begin that start with a byte */
    int32_t unk;       /* or -1 */
    double unk_score;
    int32_t byte[256]; /* ids of "<0x00>" to "<0xFF>", or -1 */
    bool single;       /* sums are kept in single precision */
};

/* model: the JSON object.  Beside what tokenizer.json has, "min_score" may
 * stand for the lowest score, and "single_precision" be true: sums are rounded
 * as SentencePiece rounds them, which decides where two ways are as good,
 * "aaaa".
 */
int kv_unigram_new(struct kv_unigram **u, const json_t *model,
                   struct kv_err *e);
void kv_unigram_free(struct kv_unigram *u);

/* Special tokens are in the vocabulary with the others, but text that spells
 * one out is text. */
void kv_unigram_hide(struct kv_unigram *u, int32_t id);

/* The best way to each byte of a piece; zeros are a new one, and it may be used
 * again and again. */
struct kv_lattice {
    struct kv_lattice_node *node;
    size_t capacity;
};
void kv_lattice_clear(struct kv_lattice *l);

/* Appends the ids of one piece, well-formed UTF-8.  Characters without a token
 * become, as one, their bytes where the model has byte_fallback, or unk.  Fails
 * where it has none, and above 2^32 - 2 bytes. */
int kv_unigram_encode(const struct kv_unigram *u, struct kv_lattice *l,
                      const char *s, size_t n, struct kv_ids *out,
                      struct kv_err *e);

#endif
