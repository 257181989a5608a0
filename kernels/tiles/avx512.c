#include "kernels/simd/lanes_avx512.h"

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
#define v_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define v_bf16(p)                          \
    _mm512_castsi512_ps(_mm512_slli_epi32( \
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define v_fraction(x) _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF)
#define v_times2 _mm512_scalef_ps
#define v_abs _mm512_abs_ps
#define v_store8(p, x)               \
    _mm_storeu_si128((__m128i *)(p), \
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)))
#define v_store8x4 kv_lanes_store8
#define v_sums kv_lanes_sums
#define v_mosts kv_lanes_mosts

#include "kernels/tiles/loops.h"
