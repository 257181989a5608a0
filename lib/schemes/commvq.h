/* CommVQ's codebook of keys and basis of values, for its codec (commvq.c) and
 * its training (commvq_train.c). */
#ifndef KV_SCHEMES_COMMVQ_H
#define KV_SCHEMES_COMMVQ_H

#include "lib/scheme.h"

/* A group of keys is a vector of complex numbers, one for each pair of channels
 * that RoPE rotates.  A book has n such vectors z_a.  Code a n + b is the
 * code-word z_a + i z_b.  RoPE multiplies a pair's number by e^(i angle), so
 * rotating the z_a rotates the code-words: the book commutes with RoPE. */
enum { KV_COMMVQ_MAX_WORDS = 64 };

struct kv_commvq_book {
    size_t n, channels; /* channels of a group, two for each pair */
    const float *z;     /* [channels][n]: a pair's real parts, then its
                         * imaginary parts; the caller's */
    float *norm;        /* [n]: |z_a|^2 */
    float *cross;       /* [n][n]: 2 Re <z_a, i z_b> */
};

void kv_commvq_book_init(struct kv_commvq_book *b, const float *z, size_t n,
                         size_t channels);
void kv_commvq_book_clear(struct kv_commvq_book *b);

/* The squared distance of x [channels] to code-word (a, b) is
 * |x|^2 + p[a] + (q[b] + cross[a][b]); p, q: [n]. */
void kv_commvq_terms(const struct kv_commvq_book *b, const float *x, float *p,
                     float *q);
/* The least of these squared distances, less |x|^2. */
float kv_commvq_least(const struct kv_commvq_book *b, const float *p,
                      const float *q);
/* The first `most` codes whose squared distance, less |x|^2, is limit or less;
 * returns their number. */
size_t kv_commvq_within(const struct kv_commvq_book *b, const float *p,
                        const float *q, float limit, size_t most,
                        uint32_t *code);
/* The code of the nearest code-word; on ties the lowest code. */
size_t kv_commvq_nearest(const struct kv_commvq_book *b, const float *x);
/* Adds `by` times the code-word to y [channels]. */
void kv_commvq_add(const struct kv_commvq_book *b, size_t code, float by,
                   float *y);

/* A token's values are a sum of some of n vectors of d values, with one bit for
 * each vector. */
struct kv_commvq_basis {
    size_t n, d;
    const float *e; /* [n][d]; the caller's */
    float *norm;    /* [n]: |e_i|^2 */
    float *gram;    /* [n][n]: e_i . e_j */
    float *half;    /* [n]: e_i . sum_j e_j / 2 */
    size_t *order;  /* [n]: the longest vectors first */
};

void kv_commvq_basis_init(struct kv_commvq_basis *b, const float *e, size_t n,
                          size_t d);
void kv_commvq_basis_clear(struct kv_commvq_basis *b);
/* Chooses code [n], 0 or 1, so that the sum is near y [d].  The search starts
 * from half the sum of all vectors.  It takes or leaves each vector in turn,
 * the longest first, by the sign of its product with the residual.  (For evenly
 * spaced levels this finds the nearest level.)  Then it changes the bit that
 * lowers the squared error most, until no change lowers it. */
void kv_commvq_choose(const struct kv_commvq_basis *b, const float *y,
                      uint16_t *code);
/* y [d]: the sum of the chosen vectors. */
void kv_commvq_sum(const struct kv_commvq_basis *b, const uint16_t *code,
                   float *y);

/* Sizes that follow from a checked spec and a shape. */
struct kv_commvq_sizes {
    size_t row;                  /* values of a token */
    size_t channels;             /* of a group of keys */
    size_t groups, books, words; /* for keys: groups of a token, books of a
                                  * group, vectors of a book */
    size_t bits;                 /* for values: bits of a token, which are the
                                  * vectors of the basis */
};
struct kv_commvq_sizes kv_commvq_sizes_of(const struct kv_spec *s,
                                          const struct kv_shape *shape);

/* order [head_dim]: channel i of the coded head is channel order[i] of the
 * head; in the coded head RoPE's pairs are neighbours. */
void kv_commvq_order(const struct kv_shape *shape, size_t *order);

/* Stores the norm of x [n] in fp16 at `at`; returns the rounded norm. */
float kv_commvq_put_norm(const float *x, size_t n, uint8_t *at);

extern const struct kv_training kv_commvq_training;

/* Trains a layer's values (commvq_values.c): adds the tables scale [row] and
 * basis [bits][row] from x [n][row], which is overwritten. */
int kv_commvq_train_values(const struct kv_commvq_sizes *m, size_t layer,
                           size_t rounds, float *x, size_t n,
                           struct kv_calib_set *out, struct kv_err *e);

#endif
