/* nearest_whole.h in AVX-512 VNNI: products are added up as they are made. */
#include "kernels/nearest/avx512.h"
#include "kernels/simd/instructions_avx512.h"
#include "kernels/simd/unroll.h"

#define NAME(f) f##_vnni
#define GROUPS(d) ((d) <= 8 ? 4 : 2) /* of 32 registers */

typedef __mmask16 vm;

#define v_at_most(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ)
#define v_if(m, a, b) _mm512_mask_mov_ps(b, m, a)
#define v_root(a) _mm512_mul_ps(a, _mm512_rsqrt14_ps(a))
#define v_of _mm512_cvtepu32_ps
#define i_of _mm512_cvtps_epu32
#define i_round _mm512_cvtps_epi32
#define i_load _mm512_load_si512
#define i_add _mm512_add_epi32
#define i_sub _mm512_sub_epi32
#define i_mul _mm512_mullo_epi32
#define i_and _mm512_and_si512
#define i_min _mm512_min_epi32
#define i_max _mm512_max_epi32
#define i_right _mm512_srli_epi32
#define i_bits _mm512_castps_si512
#define i_pairs(a, b) \
    _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16))
#define i_if(m, a, b) _mm512_mask_mov_epi32(b, m, a)
#define i_above(a, b) kv_lanes_bits(_mm512_cmpgt_epi32_mask(a, b))
#define i_halves(p) \
    _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p)))
#define i_store_halves(p, a) \
    _mm256_storeu_si256((__m256i *)(p), _mm512_cvtepi32_epi16(a))

static inline void i_keep(vi a, vi c, vi *best, vi *at)
{
    const __mmask16 less = _mm512_cmplt_epi32_mask(a, *best);

    *best = _mm512_min_epi32(a, *best);
    *at = _mm512_mask_mov_epi32(*at, less, c);
}

/* In its place: the order in which gcc 12 would have them takes a tenth longer.
 */
ALWAYS_INLINE void add_products(vi *t, vi a, vi b)
{
    KV_DPWSSD_HERE(*t, a, b);
}

ALWAYS_INLINE void add_products_of(vi *t, vi a, const int32_t *b)
{
    KV_DPWSSD_AT(*t, a, b);
}

#include "kernels/nearest/whole.h"

#include "kernels/nearest/among_loops.h"
