/* Shared by kernels/simd/{c,avx2,avx512}.h: compiler attributes for vector
 * code, and vectors of four floats at any level. */
#ifndef KV_SIMD_COMMON_H
#define KV_SIMD_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef KV_SIMD_TWIN /* tests/avx512_twin.h defines its own */

/* For a function whose arguments are constants at each call. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Before a loop with a constant count, at most 32: unrolls it completely.  Not
 * for gcc with AddressSanitizer, whose checks would be unrolled too. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__SANITIZE_ADDRESS__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif

/* Four floats, with the compiler's operators; masks are vi32x4. */
typedef float vf32x4 __attribute__((vector_size(16)));
typedef int32_t vi32x4 __attribute__((vector_size(16)));

ALWAYS_INLINE vf32x4 v4_load(const float *p)
{
    vf32x4 x;

    memcpy(&x, p, sizeof(x));
    return x;
}

ALWAYS_INLINE void v4_store(float *p, vf32x4 x)
{
    memcpy(p, &x, sizeof(x));
}

/* mask ? a : b */
ALWAYS_INLINE vf32x4 v4_select(vi32x4 mask, vf32x4 a, vf32x4 b)
{
    return (vf32x4)(((vi32x4)a & mask) | ((vi32x4)b & ~mask));
}

#ifdef __clang__
#define V4_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define V4_SHUFFLE(a, b, i, j, k, l) \
    __builtin_shuffle(a, b, (vi32x4){i, j, k, l})
#endif

/* Writes rows a, b, c, d as columns of p [4][stride]. */
ALWAYS_INLINE void v4_store_transposed(float *p, size_t stride, vf32x4 a,
                                       vf32x4 b, vf32x4 c, vf32x4 d)
{
    const vf32x4 ab = V4_SHUFFLE(a, b, 0, 4, 1, 5);
    const vf32x4 cd = V4_SHUFFLE(c, d, 0, 4, 1, 5);
    const vf32x4 ab2 = V4_SHUFFLE(a, b, 2, 6, 3, 7);
    const vf32x4 cd2 = V4_SHUFFLE(c, d, 2, 6, 3, 7);

    v4_store(p, V4_SHUFFLE(ab, cd, 0, 1, 4, 5));
    v4_store(p + stride, V4_SHUFFLE(ab, cd, 2, 3, 6, 7));
    v4_store(p + 2 * stride, V4_SHUFFLE(ab2, cd2, 0, 1, 4, 5));
    v4_store(p + 3 * stride, V4_SHUFFLE(ab2, cd2, 2, 3, 6, 7));
}

#endif
