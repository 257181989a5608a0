#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_avx512
#define LANE_BITS 5

typedef __m512i vi;
typedef uint8_t mark_word;

#define v_load _mm512_loadu_si512
#define v_store _mm512_storeu_si512
#define v_all _mm512_set1_epi16
#define v_min _mm512_min_epu16
#define v_add _mm512_add_epi16
#define v_and _mm512_and_si512
#define v_or _mm512_or_si512
#define v_more _mm512_adds_epu16
#define v_less _mm512_sub_epi16
#define v_minus _mm512_subs_epi16
#define v_size _mm512_abs_epi16
#define v_shift(v, by) _mm512_slli_epi16(v, (unsigned)(by))
#define v_shift_back(v, by) _mm512_srli_epi16(v, (unsigned)(by))
#define v_square(v) _mm512_mulhrs_epi16(v, v)

static inline __m256i sixteen(const float *p, __m512 by)
{
    return _mm512_cvtsepi32_epi16(
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(p), by)));
}

static inline vi v_number(const float *p, float by)
{
    const __m512 all = _mm512_set1_ps(by);

    return _mm512_inserti64x4(_mm512_castsi256_si512(sixteen(p, all)),
                              sixteen(p + 16, all), 1);
}

static inline vi v_plus(vi v, const uint16_t *p, unsigned bits)
{
    switch (bits) {
    case 1:
        return v_add(
            v, _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p)));
    case 2:
        return v_add(
            v, _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)));
    case 3:
        return v_add(
            v, _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)p)));
    case 4:
        return v_add(v, _mm512_broadcastd_epi32(_mm_loadu_si32(p)));
    default:
        return v_add(v, v_all((int16_t)*p));
    }
}

static const uint16_t lanes[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static inline vi v_flip(vi v, size_t by)
{
    return _mm512_permutexvar_epi16(
        _mm512_xor_si512(v_load(lanes), v_all((int16_t)by)), v);
}

static inline vi v_turn(vi v, unsigned bits, size_t flip)
{
    const vi i = v_load(lanes);
    const vi from = _mm512_or_si512(
        _mm512_srli_epi16(i, bits),
        _mm512_and_si512(_mm512_slli_epi16(i, 5 - bits), v_all(31)));

    return bits || flip ? _mm512_permutexvar_epi16(
                              _mm512_xor_si512(from, v_all((int16_t)flip)), v)
                        : v;
}

static inline void v_marks(uint8_t *p, vi v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi16_epi8(v));
}

#include "kernels/trellis/loops.h"
