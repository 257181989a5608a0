#include "kernels/simd/avx2.h"

/* Sizes for 16 registers. */
#define SEARCH_SIDE(d) ((d) == 1 ? 4 : (d) <= 4 ? 2 : 1)
#define WHOLE_SIDE(d) 2

#define v_root _mm256_sqrt_ps
#define v_pairs_i16(a, b) _mm256_blend_epi16(a, v_shl_i32(b, 16), 0xaa)
#define v_load_u16(p) _mm256_cvtepu16_epi32(v_load_h16(p))

/* Converts by halves, each exactly. */
ALWAYS_INLINE vf32 v_from_u32(vi32 a)
{
    const vf32 low = v_from_i32(v_and(a, v_set1_i32(0xffff)));

    return v_fmadd(v_from_i32(v_shr_i32(a, 16)), v_set1(0x1p16f), low);
}

/* For a >= 2^31, converts a - 2^31 and sets the highest bit. */
ALWAYS_INLINE vi32 v_to_u32(vf32 a)
{
    const vmask past = v_le(v_set1(0x1p31f), a);
    const vf32 rest = v_sub(a, _mm256_and_ps(past, v_set1(0x1p31f)));

    return v_add_i32(v_to_i32(rest), v_shl_i32(v_bits_i32(past), 31));
}

ALWAYS_INLINE void v_store_u16(uint16_t *p, vi32 a)
{
    const vi32 low = v_and(a, v_set1_i32(0xffff));

    _mm_storeu_si128((__m128i *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(low),
                                      _mm256_extracti128_si256(low, 1)));
}

ALWAYS_INLINE void v_add_dot_i16(vi32 *t, vi32 a, vi32 b)
{
    *t = v_add_i32(*t, v_madd_i16(a, b));
}

#define v_add_dot_i16_at(t, a, p) v_add_dot_i16(t, a, v_load_i32(p))

#include "kernels/nearest/search_i16.h"
