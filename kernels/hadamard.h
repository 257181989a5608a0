/* The normalised Sylvester Hadamard transform, which is its own inverse. */
#ifndef KV_HADAMARD_H
#define KV_HADAMARD_H

#include <stddef.h>

/* The largest power of two that divides d (128 for 128, 16 for 80): the size of
 * the diagonal blocks of the transform of d values.  d >= 1. */
static inline size_t kv_hadamard_size(size_t d)
{
    return d & (~d + 1);
}

/* x: n rows of d floats, in place: each run of m = kv_hadamard_size(d) values
 * becomes x H / sqrt(m), where H[i][j] is -1 when i & j has an odd number of
 * one bits, else 1.  Orthonormal and symmetric. */
void kv_hadamard(float *x, size_t n, size_t d);

#endif
