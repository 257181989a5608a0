#include "kernels/simd/avx2.h"

#include "kernels/scaled/loops.h"

/* ---- path int8 (kernels/scaled/int8_loops.h) ----------------------------- */

ALWAYS_INLINE vi32 nibbles(vi32 x, unsigned at)
{
    const vi32 two = v_and(v_shr_i32(x, at), v_set1_i32(0xffff));
    const vi32 apart = v_or(two, v_shl_i32(two, 8));
    const vi32 bytes = v_and(apart, v_set1_i32(0x00ff00ff));

    return v_or(bytes, v_shl_i32(bytes, 4));
}

ALWAYS_INLINE vi32 near_table(const int8_t near[16])
{
    return v_load_t16i8(near);
}

/* The signs of `four` go to the bytes looked up, at most 127 in size.  Pairs of
 * their products with the remaining unsigned bytes fit 16 bits. */
ALWAYS_INLINE vi32 dot(vi32 sum, vi32 x, int32_t four)
{
    const vi32 by = v_set1_i32(four);

    return v_dot_i8(sum, _mm256_abs_epi8(by), _mm256_sign_epi8(x, by));
}

ALWAYS_INLINE int32_t query_bias(int32_t bias)
{
    (void)bias;
    return 0;
}

ALWAYS_INLINE int32_t weight_bias(const int8_t w[64])
{
    (void)w;
    return 0;
}

ALWAYS_INLINE void order_quads(const int8_t *w, const uint8_t *order,
                               int8_t *quads)
{
    for (size_t i = 0; i < 64; i += 32) {
        const vi32 x = v_load_i32(w + i), at = v_load_i32(order + i);
        const vi32 low = _mm256_permute2x128_si256(x, x, 0x00);
        const vi32 high = _mm256_permute2x128_si256(x, x, 0x11);

        _mm256_storeu_si256(
            (__m256i *)(void *)(quads + i),
            _mm256_blendv_epi8(_mm256_shuffle_epi8(low, at),
                               _mm256_shuffle_epi8(high, at),
                               _mm256_slli_epi16(at, 3))); /* bit 4 */
    }
}

#include "kernels/scaled/int8_loops.h"
