#include "kernels/simd/avx512.h"

#define LANE_BITS 5

static inline __m256i sixteen(const float *p, __m512 by)
{
    return _mm512_cvtsepi32_epi16(
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(p), by)));
}

static inline vi32 positions(const float *p, float by)
{
    const __m512 all = _mm512_set1_ps(by);

    return _mm512_inserti64x4(_mm512_castsi256_si512(sixteen(p, all)),
                              sixteen(p + 16, all), 1);
}

static inline vi32 add_costs(vi32 v, const uint16_t *p, unsigned bits)
{
    switch (bits) {
    case 1:
        return v_add_i16(
            v, _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p)));
    case 2:
        return v_add_i16(
            v, _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)));
    case 3:
        return v_add_i16(
            v, _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)p)));
    case 4:
        return v_add_i16(v, _mm512_broadcastd_epi32(_mm_loadu_si32(p)));
    default:
        return v_add_i16(v, v_set1_i16((int16_t)*p));
    }
}

static const uint16_t lanes[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static inline vi32 flip(vi32 v, size_t by)
{
    return _mm512_permutexvar_epi16(
        _mm512_xor_si512(v_load_i32(lanes), v_set1_i16((int16_t)by)), v);
}

static inline vi32 permute(vi32 v, unsigned bits, size_t by)
{
    const vi32 i = v_load_i32(lanes);
    const vi32 from = _mm512_or_si512(
        _mm512_srli_epi16(i, bits),
        _mm512_and_si512(_mm512_slli_epi16(i, 5 - bits), v_set1_i16(31)));

    return bits || by ? _mm512_permutexvar_epi16(
                            _mm512_xor_si512(from, v_set1_i16((int16_t)by)), v)
                      : v;
}

static inline void store_marks(uint8_t *p, const vi32 v[1])
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi16_epi8(v[0]));
}

#include "kernels/trellis/loops.h"
