#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define NAME(f) f##_avx512
#define LANE_BITS 4

typedef __m512 vf;
typedef __m512i vi;
typedef __m128i vj;

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_all _mm512_set1_ps
#define v_fma _mm512_fmadd_ps
#define v_fnma _mm512_fnmadd_ps
#define v_min _mm512_min_ps
#define v_pick(v, at) _mm512_permutexvar_ps(at, v)
#define i_load _mm512_loadu_si512
#define i_shift(v, by) _mm512_srl_epi32(v, _mm_cvtsi32_si128((int)(by)))
#define j_all _mm_set1_epi8
#define j_add _mm_add_epi8
#define j_store(p, j) _mm_storeu_si128((__m128i *)(void *)(p), j)

static inline void v_store_less(uint8_t *bit, vf a, vf b)
{
    const __mmask16 less = _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);

    memcpy(bit, &less, sizeof(less));
}

static inline void v_keep(vf *best, vj *j_best, vf cost, vj j)
{
    const __mmask16 less = _mm512_cmp_ps_mask(cost, *best, _CMP_LT_OQ);

    *best = _mm512_min_ps(cost, *best);
    *j_best = _mm_mask_mov_epi8(*j_best, less, j);
}

#include "kernels/trellis_simd.h"
