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

static inline float sum_of(vf x)
{
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float most_of(vf x)
{
    const __m128 four =
        _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline void v_sums(const vf x[4], float out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = sum_of(x[i]);
}

static inline void v_mosts(const vf x[4], float out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = most_of(x[i]);
}

static inline void v_store8(int8_t *p, vf x)
{
    const __m256i i = _mm256_cvtps_epi32(x);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(i),
                                         _mm256_extracti128_si256(i, 1));

    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}

static inline void v_store8x4(int8_t *p, const vf x[4])
{
    for (int i = 0; i < 4; i++)
        v_store8(p + 8 * i, x[i]);
}

#include "kernels/tiles_loops.h"
