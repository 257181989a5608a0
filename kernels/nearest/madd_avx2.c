/* nearest_whole.h in AVX2. */
#include "kernels/nearest/avx2.h"
#include "kernels/simd/unroll.h"

#include <stdint.h>

#define NAME(f) f##_avx2
#define GROUPS(d) 2 /* of 16 registers */

typedef __m256 vm;

#define v_at_most(a, b) _mm256_cmp_ps(a, b, _CMP_LE_OQ)
#define v_if(m, a, b) _mm256_blendv_ps(b, a, m)
#define v_root _mm256_sqrt_ps
#define i_round _mm256_cvtps_epi32
#define i_load(p) _mm256_load_si256((const __m256i *)(p))
#define i_add _mm256_add_epi32
#define i_sub _mm256_sub_epi32
#define i_mul _mm256_mullo_epi32
#define i_and _mm256_and_si256
#define i_min _mm256_min_epi32
#define i_max _mm256_max_epi32
#define i_right _mm256_srli_epi32
#define i_bits _mm256_castps_si256
#define i_pairs(a, b) _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa)
#define i_if(m, a, b) _mm256_blendv_epi8(b, a, _mm256_castps_si256(m))
#define i_halves(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p)))

/* By halves, each exact. */
static inline vf v_of(vi a)
{
    const vf low = _mm256_cvtepi32_ps(i_and(a, i_all(0xffff)));

    return v_fma(_mm256_cvtepi32_ps(i_right(a, 16)), v_all(0x1p16f), low);
}

/* Past 2^31 what is above it, with the highest bit set. */
static inline vi i_of(vf a)
{
    const vf past = _mm256_cmp_ps(a, v_all(0x1p31f), _CMP_GE_OQ);
    const vf less = v_sub(a, _mm256_and_ps(past, v_all(0x1p31f)));

    return i_add(i_round(less),
                 _mm256_slli_epi32(_mm256_castps_si256(past), 31));
}

static inline unsigned i_above(vi a, vi b)
{
    const vi above = _mm256_cmpgt_epi32(a, b);

    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(above));
}

static inline void i_keep(vi a, vi c, vi *best, vi *at)
{
    const vi less = _mm256_cmpgt_epi32(*best, a);

    *best = i_min(a, *best);
    *at = _mm256_blendv_epi8(*at, c, less);
}

static inline void i_store_halves(uint16_t *p, vi a)
{
    const vi low = i_and(a, i_all(0xffff));

    _mm_storeu_si128((__m128i *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(low),
                                      _mm256_extracti128_si256(low, 1)));
}

ALWAYS_INLINE void add_products(vi *t, vi a, vi b)
{
    *t = i_add(*t, _mm256_madd_epi16(a, b));
}

#define add_products_of(t, a, p) add_products(t, a, i_load(p))

#include "kernels/nearest/whole.h"

#include "kernels/nearest/among_loops.h"
