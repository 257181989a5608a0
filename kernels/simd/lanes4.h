/* Four floats side by side, in the compiler's words. */
#ifndef KV_SIMD_LANES4_H
#define KV_SIMD_LANES4_H

#include "kernels/simd/unroll.h"

#include <stddef.h>
#include <string.h>

typedef float v4 __attribute__((vector_size(16)));

ALWAYS_INLINE v4 load4(const float *x)
{
    v4 v;

    memcpy(&v, x, sizeof(v));
    return v;
}

ALWAYS_INLINE void store4(float *x, v4 v)
{
    memcpy(x, &v, sizeof(v));
}

#ifdef __clang__
#define MIX4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int i4 __attribute__((vector_size(16)));
#define MIX4(a, b, i, j, k, l) __builtin_shuffle(a, b, (i4){i, j, k, l})
#endif

/* 4 x 4 values the other way round, to rows of x `stride` apart. */
ALWAYS_INLINE void turn4(v4 a, v4 b, v4 c, v4 d, float *x, size_t stride)
{
    const v4 ab = MIX4(a, b, 0, 4, 1, 5), cd = MIX4(c, d, 0, 4, 1, 5);
    const v4 ab2 = MIX4(a, b, 2, 6, 3, 7), cd2 = MIX4(c, d, 2, 6, 3, 7);

    store4(x, MIX4(ab, cd, 0, 1, 4, 5));
    store4(x + stride, MIX4(ab, cd, 2, 3, 6, 7));
    store4(x + 2 * stride, MIX4(ab2, cd2, 0, 1, 4, 5));
    store4(x + 3 * stride, MIX4(ab2, cd2, 2, 3, 6, 7));
}

#endif
