/* Random matrices that follow from a key, and products with them. */
#ifndef KV_RANDOM_MATRIX_H
#define KV_RANDOM_MATRIX_H

#include <stddef.h>
#include <stdint.h>

/* s: [m][d].  Entries are independent standard normal numbers; the same for
 * the same key, m * d and libm. */
void kv_random_gaussian(uint64_t key, size_t m, size_t d, float *s);

/* s: [m][d].  Each block of d rows (the last may be shorter) is orthogonal;
 * rows have norm sqrt(d), so that an entry has mean 0 and variance 1.  Computed
 * from the rows of kv_random_gaussian() one after another (Gram-Schmidt in
 * double), which gives every orthogonal matrix the same density. */
void kv_random_orthogonal(uint64_t key, size_t m, size_t d, float *s);

/* s: [d][d].  sqrt(d) times the randomized Hadamard transform: kv_hadamard()
 * of x whose signs were flipped at random. */
void kv_random_hadamard(uint64_t key, size_t d, float *s);

/* Transposes s [m][d] to `to` [d][m]. */
void kv_transpose(const float *s, size_t m, size_t d, float *to);

/* out [d] = sum of x[i] * s[i] over the m rows of s [m][d], in order.  This is
 * x S in floats, always in the same bits; if s is S transposed, it is S x. */
void kv_combine_rows(const float *x, const float *s, size_t m, size_t d,
                     float *out);

#endif
