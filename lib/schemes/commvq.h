/* CommVQ's codebook of keys and basis of values, for its codec (commvq.c) and
 * its training (commvq_train.c). */
#ifndef KV_SCHEMES_COMMVQ_H
#define KV_SCHEMES_COMMVQ_H

#include "lib/scheme.h"

/* A group of keys as complex numbers, one for each pair of channels that RoPE
 * turns.  A book has n vectors z_a of such numbers.  Code a n + b is the
 * code-word z_a + i z_b.  A turn of a pair multiplies its number by e^(i
 * angle), so that the turned z_a make the turned code-words: the book commutes
 * with RoPE. */
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
/* The least of them, less |x|^2. */
float kv_commvq_least(const struct kv_commvq_book *b, const float *p,
                      const float *q);
/* The first `most` codes whose squared distance, less |x|^2, is limit or less;
 * returns their number. */
size_t kv_commvq_within(const struct kv_commvq_book *b, const float *p,
                        const float *q, float limit, size_t most,
                        uint32_t *code);
/* The code of the nearest code-word, of several the lowest. */
size_t kv_commvq_nearest(const struct kv_commvq_book *b, const float *x);
/* Adds by times the code-word to y [channels]. */
void kv_commvq_add(const struct kv_commvq_book *b, size_t code, float by,
                   float *y);

/* Values are sums of some of n vectors of d values: one bit a vector. */
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
/* code [n], 0 or 1.  Half of all vectors is the start; each vector in turn, the
 * longest first, is taken or left by its product with the rest of y [d].  (For
 * levels evenly apart that gives the nearest one.)  Then the bit whose change
 * lowers the squared error most is changed, until no change lowers it. */
void kv_commvq_choose(const struct kv_commvq_basis *b, const float *y,
                      uint16_t *code);
/* y [d]: the sum of the chosen vectors. */
void kv_commvq_sum(const struct kv_commvq_basis *b, const uint16_t *code,
                   float *y);

/* Sizes that a fitted spec and a shape make. */
struct kv_commvq_sizes {
    size_t row;                  /* values of a token */
    size_t channels;             /* of a group of keys */
    size_t groups, books, words; /* of keys: groups of a token, books of a
                                  * group, vectors of a book */
    size_t bits;                 /* of a token's values: vectors of the basis */
};
struct kv_commvq_sizes kv_commvq_sizes_of(const struct kv_spec *s,
                                          const struct kv_shape *shape);

/* Channel order[i] of a head is channel i of the coded head, where RoPE's pairs
 * are neighbours. */
void kv_commvq_order(const struct kv_shape *shape, size_t *order);

/* The norm of x [n] as a token stores it: in fp16, at `at`. */
float kv_commvq_put_norm(const float *x, size_t n, uint8_t *at);

extern const struct kv_training kv_commvq_training;

/* The training of a layer's values (commvq_values.c): the tables scale [row]
 * and basis [bits][row] of x [n][row], which is overwritten. */
int kv_commvq_train_values(const struct kv_commvq_sizes *m, size_t layer,
                           size_t rounds, float *x, size_t n,
                           struct kv_calib_set *out, struct kv_err *e);

#endif
