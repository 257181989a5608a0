#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define NAME(f) f##_avx512
#define LANES 16

typedef __m512 vf;
typedef __m512i vi;

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_all _mm512_set1_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_min _mm512_min_ps
#define v_pick(v, at) _mm512_permutexvar_ps(at, v)
#define i_load _mm512_loadu_si512
#define i_shift(v, by) _mm512_srl_epi32(v, _mm_cvtsi32_si128((int)(by)))

static inline void v_store_less(uint8_t *bit, vf a, vf b)
{
    const __mmask16 less = _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);

    memcpy(bit, &less, sizeof(less));
}

#include "kernels/trellis_simd.h"
