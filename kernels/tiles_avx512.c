#include <immintrin.h>

#define NAME(f) f##_avx512
#define WIDTH 16
#define GROUPS(rows) ((rows) <= 4 ? 4 : 2) /* of 32 registers */

typedef __m512 vf;

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_all _mm512_set1_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_fma _mm512_fmadd_ps
#define v_max _mm512_max_ps
#define v_sum _mm512_reduce_add_ps
#define v_round(x) _mm512_roundscale_ps(x, 0)
#define v_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define v_bf16(p)                          \
    _mm512_castsi512_ps(_mm512_slli_epi32( \
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define v_exp2i(n) _mm512_scalef_ps(_mm512_set1_ps(1), n)
#define v_abs _mm512_abs_ps
#define v_most _mm512_reduce_max_ps
#define v_store8(p, x)               \
    _mm_storeu_si128((__m128i *)(p), \
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)))
#define v_from(x, low, y) \
    _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_GE_OQ), y)

#include "kernels/tiles_loops.h"
