#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_avx2
#define LANE_BITS 3

typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vj; /* 32 bits each */

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_all _mm256_set1_ps
#define v_fma _mm256_fmadd_ps
#define v_fnma _mm256_fnmadd_ps
#define v_min _mm256_min_ps
#define v_pick _mm256_permutevar8x32_ps
#define i_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define i_shift(v, by) _mm256_srl_epi32(v, _mm_cvtsi32_si128((int)(by)))
#define j_all _mm256_set1_epi32
#define j_add _mm256_add_epi32

static inline void v_store_less(uint8_t *bit, vf a, vf b)
{
    *bit = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline void v_keep(vf *best, vj *j_best, vf cost, vj j)
{
    const __m256 less = _mm256_cmp_ps(cost, *best, _CMP_LT_OQ);

    *best = _mm256_min_ps(cost, *best);
    *j_best = _mm256_blendv_epi8(*j_best, j, _mm256_castps_si256(less));
}

static inline void j_store(uint8_t *p, vj j)
{
    const __m256i two = _mm256_packs_epi32(j, j);
    const __m256i four = _mm256_packus_epi16(two, two);
    const __m128i all = _mm_unpacklo_epi32(_mm256_castsi256_si128(four),
                                           _mm256_extracti128_si256(four, 1));

    _mm_storel_epi64((__m128i *)(void *)p, all);
}

#include "kernels/trellis_simd.h"
