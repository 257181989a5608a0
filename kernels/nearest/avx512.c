/* With VNNI: each product is added to the sum by the same instruction.  AVX-512
 * without it has no faster search than AVX2. */
#define V_VNNI
#include "kernels/simd/avx512.h"
#include "kernels/simd/instructions_avx512.h"

/* Sizes that suit 32 registers. */
#define SEARCH_SIDE(d) ((d) <= 4 ? 4 : (d) <= 8 ? 2 : 1)
#define WHOLE_SIDE(d) ((d) <= 8 ? 4 : 2)

#define v_root(a) v_mul(a, _mm512_rsqrt14_ps(a))
#define v_from_u32 _mm512_cvtepu32_ps
#define v_to_u32 _mm512_cvtps_epu32
#define v_pairs_i16(a, b) \
    _mm512_mask_blend_epi16(0xaaaaaaaa, a, v_shl_i32(b, 16))
#define v_load_u16(p) _mm512_cvtepu16_epi32(v_load_h16(p))
#define v_store_u16(p, a) \
    _mm256_storeu_si256((__m256i *)(p), _mm512_cvtepi32_epi16(a))

/* Keeps the instruction in place: gcc 12's order takes a tenth longer.
 */
ALWAYS_INLINE void v_add_dot_i16(vi32 *t, vi32 a, vi32 b)
{
    KV_DPWSSD_HERE(*t, a, b);
}

ALWAYS_INLINE void v_add_dot_i16_at(vi32 *t, vi32 a, const int32_t *b)
{
    KV_DPWSSD_AT(*t, a, b);
}

#include "kernels/nearest/search_i16.h"
