/* The registers of nearest_decide.h and nearest_simd.h in AVX-512. */
#include "kernels/simd/lanes_avx512.h"

#include <immintrin.h>

#define WIDTH 16

typedef __m512 vf;
typedef __m512i vi;

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_all _mm512_set1_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_fma _mm512_fmadd_ps
#define v_fnma _mm512_fnmadd_ps
#define v_min _mm512_min_ps
#define v_max _mm512_max_ps
#define v_equal(a, b) kv_lanes_bits(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ))
#define v_above(a, b) kv_lanes_bits(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ))
#define v_below(a, b) kv_lanes_bits(_mm512_cmp_ps_mask(a, b, _CMP_NGE_UQ))
#define i_all _mm512_set1_epi32
#define i_store(p, v) _mm512_storeu_si512(p, v)

static inline void v_keep(vf s, vi c, vf *best, vi *at)
{
    const __mmask16 less = _mm512_cmp_ps_mask(s, *best, _CMP_LT_OQ);

    *best = _mm512_min_ps(s, *best);
    *at = _mm512_mask_mov_epi32(*at, less, c);
}

static inline void v_least_four(vf a, vf b, vf c, vf d, float *to)
{
    const vf ab =
        _mm512_min_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const vf cd =
        _mm512_min_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    vf m = _mm512_min_ps(_mm512_shuffle_ps(ab, cd, 0x44),
                         _mm512_shuffle_ps(ab, cd, 0xee));

    m = _mm512_min_ps(m, _mm512_shuffle_f32x4(m, m, 0x4e));
    m = _mm512_min_ps(m, _mm512_shuffle_f32x4(m, m, 0xb1));
    _mm_storeu_ps(to, _mm512_castps512_ps128(m));
}
