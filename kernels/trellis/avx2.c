#include "kernels/simd/avx2.h"

#define LANE_BITS 4

static inline __m256i eight(const float *p, __m256 by)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), by));
}

static inline vi32 positions(const float *p, float by)
{
    const __m256 all = _mm256_set1_ps(by);

    return _mm256_permute4x64_epi64(
        _mm256_packs_epi32(eight(p, all), eight(p + 8, all)), 0xd8);
}

static inline vi32 add_costs(vi32 v, const uint16_t *p, unsigned bits)
{
    int64_t four;
    int32_t two;

    switch (bits) {
    case 1:
        return v_add_i16(v, _mm256_broadcastsi128_si256(
                                _mm_loadu_si128((const __m128i *)p)));
    case 2:
        memcpy(&four, p, sizeof(four));
        return v_add_i16(v, _mm256_set1_epi64x(four));
    case 3:
        memcpy(&two, p, sizeof(two));
        return v_add_i16(v, _mm256_set1_epi32(two));
    default:
        return v_add_i16(v, v_set1_i16((int16_t)*p));
    }
}

/* Indices of bytes that permute the 16-bit lanes of each half alike. */
#define TWO(i) ((i)*2), ((i)*2 + 1)
#define LANES_OF(a, b, c, d, e, f, g, h)                                     \
    _mm256_setr_epi8(TWO(a), TWO(b), TWO(c), TWO(d), TWO(e), TWO(f), TWO(g), \
                     TWO(h), TWO(a), TWO(b), TWO(c), TWO(d), TWO(e), TWO(f), \
                     TWO(g), TWO(h))

static inline vi32 flip(vi32 v, size_t by)
{
    const __m256i in_order = LANES_OF(0, 1, 2, 3, 4, 5, 6, 7);

    if (by & 8)
        v = _mm256_permute4x64_epi64(v, 0x4e);
    if (by & 7)
        v = _mm256_shuffle_epi8(
            v,
            _mm256_xor_si256(in_order, _mm256_set1_epi8((char)(by % 8 * 2))));
    return v;
}

static inline vi32 permute(vi32 v, unsigned bits, size_t by)
{
    v = flip(v, by);
    switch (bits) {
    case 0:
        return v;
    case 1: /* lanes of both halves, interleaved */
        return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(v, 0xd8),
                                   LANES_OF(0, 4, 1, 5, 2, 6, 3, 7));
    case 2: /* transposed 4 x 4 lanes */
        return _mm256_permutevar8x32_epi32(
            _mm256_shuffle_epi8(v, LANES_OF(0, 4, 1, 5, 2, 6, 3, 7)),
            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    default: /* even lanes, then odd ones */
        return _mm256_permute4x64_epi64(
            _mm256_shuffle_epi8(v, LANES_OF(0, 2, 4, 6, 1, 3, 5, 7)), 0xd8);
    }
}

static inline void store_marks(uint8_t *p, const vi32 v[2])
{
    v_store_i32(
        p, _mm256_permute4x64_epi64(_mm256_packus_epi16(v[0], v[1]), 0xd8));
}

#include "kernels/trellis/loops.h"
