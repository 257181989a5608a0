#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_avx2
#define LANES 8

typedef __m256 vf;
typedef __m256i vi;

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_all _mm256_set1_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_min _mm256_min_ps
#define v_pick _mm256_permutevar8x32_ps
#define i_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define i_shift(v, by) _mm256_srl_epi32(v, _mm_cvtsi32_si128((int)(by)))

static inline void v_store_less(uint8_t *bit, vf a, vf b)
{
    *bit = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

#include "kernels/trellis_simd.h"
