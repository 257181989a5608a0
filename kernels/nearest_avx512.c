#include <immintrin.h>

#define NAME(f) f##_avx512
#define WIDTH 16
#define GROUPS(d) ((d) <= 4 ? 4 : (d) <= 8 ? 2 : 1) /* of 32 registers */

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
#define v_least _mm512_reduce_min_ps
#define v_equal(a, b) (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define v_above(a, b) (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define i_all _mm512_set1_epi32
#define i_store(p, v) _mm512_storeu_si512(p, v)

static inline void v_keep(vf s, vi c, vf *best, vi *at)
{
    const __mmask16 less = _mm512_cmp_ps_mask(s, *best, _CMP_LT_OQ);

    *best = _mm512_min_ps(s, *best);
    *at = _mm512_mask_mov_epi32(*at, less, c);
}

#include "kernels/nearest_simd.h"
