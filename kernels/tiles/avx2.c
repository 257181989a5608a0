#include "kernels/simd/lanes_avx2.h"

#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_avx2
#define WIDTH 8
#define GROUPS(rows) ((rows) <= 2 ? 4 : (rows) <= 4 ? 2 : 1) /* of 16 */

typedef __m256 vf;

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_all _mm256_set1_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_fma _mm256_fmadd_ps
#define v_max _mm256_max_ps
#define v_half(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define v_bf16(p)                          \
    _mm256_castsi256_ps(_mm256_slli_epi32( \
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define v_fraction(x) _mm256_sub_ps(x, _mm256_floor_ps(x))
#define v_times2(x, n)                                                         \
    _mm256_mul_ps(x,                                                           \
                  _mm256_castsi256_ps(_mm256_slli_epi32(                       \
                      _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(n)), \
                                       _mm256_set1_epi32(127)),                \
                      23)))
#define v_abs(x) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
#define v_sums kv_lanes_sums
#define v_mosts kv_lanes_mosts

static inline void v_store8(int8_t *p, vf x)
{
    const __m256i i = _mm256_cvtps_epi32(x);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(i),
                                         _mm256_extracti128_si256(i, 1));

    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}

static inline void v_store8x4(int8_t *p, const vf x[4])
{
    const __m256i i[4] = {_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]),
                          _mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3])};

    _mm256_storeu_si256((__m256i *)p, kv_lanes_bytes(i, 0));
}

#include "kernels/tiles/loops.h"
