/* Four AVX2 registers at a time: the sums and the largest of their lanes, which
 * takes little longer than of one; all lanes in 8 bits; rows of four to
 * columns. */
#ifndef KV_SIMD_LANES_AVX2_H
#define KV_SIMD_LANES_AVX2_H

#include <immintrin.h>

/* Lanes 0, 1 of a and of b to a, lanes 2, 3 to b. */
static inline void kv_lanes_halves(__m128 *a, __m128 *b)
{
    const __m128 low = _mm_movelh_ps(*a, *b);

    *b = _mm_movehl_ps(*b, *a);
    *a = low;
}

/* The even lanes of a and b to a, the odd to b. */
static inline void kv_lanes_every_other(__m128 *a, __m128 *b)
{
    const __m128 even = _mm_shuffle_ps(*a, *b, 0x88);

    *b = _mm_shuffle_ps(*a, *b, 0xdd);
    *a = even;
}

/* Of each 128 bits by themselves: word j of x[i] = word i of y[j], words of 32
 * bits; x may be y. */
static inline void kv_lanes_turn(const __m256i y[4], __m256i x[4])
{
    const __m256i low01 = _mm256_unpacklo_epi32(y[0], y[1]);
    const __m256i high01 = _mm256_unpackhi_epi32(y[0], y[1]);
    const __m256i low23 = _mm256_unpacklo_epi32(y[2], y[3]);
    const __m256i high23 = _mm256_unpackhi_epi32(y[2], y[3]);

    x[0] = _mm256_unpacklo_epi64(low01, low23);
    x[1] = _mm256_unpackhi_epi64(low01, low23);
    x[2] = _mm256_unpacklo_epi64(high01, high23);
    x[3] = _mm256_unpackhi_epi64(high01, high23);
}

/* Of each 128 bits by themselves: byte i of y[0] to y[3] side by side, four i
 * to each of x in turn. */
static inline void kv_lanes_quads(const __m256i y[4], __m256i x[4])
{
    const __m256i low01 = _mm256_unpacklo_epi8(y[0], y[1]);
    const __m256i high01 = _mm256_unpackhi_epi8(y[0], y[1]);
    const __m256i low23 = _mm256_unpacklo_epi8(y[2], y[3]);
    const __m256i high23 = _mm256_unpackhi_epi8(y[2], y[3]);

    x[0] = _mm256_unpacklo_epi16(low01, low23);
    x[1] = _mm256_unpackhi_epi16(low01, low23);
    x[2] = _mm256_unpacklo_epi16(high01, high23);
    x[3] = _mm256_unpackhi_epi16(high01, high23);
}

static inline __m128 kv_lanes_sum_of_halves(__m256 x)
{
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

static inline __m128 kv_lanes_most_of_halves(__m256 x)
{
    return _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

/* out[i]: the sum of x[i], lane j with j + 4, then j + 2, j + 1. */
static inline void kv_lanes_sums(const __m256 x[4], float out[4])
{
    __m128 a = kv_lanes_sum_of_halves(x[0]), b = kv_lanes_sum_of_halves(x[1]);
    __m128 c = kv_lanes_sum_of_halves(x[2]), d = kv_lanes_sum_of_halves(x[3]);

    kv_lanes_halves(&a, &b);
    kv_lanes_halves(&c, &d);
    a = _mm_add_ps(a, b);
    c = _mm_add_ps(c, d);
    kv_lanes_every_other(&a, &c);
    _mm_storeu_ps(out, _mm_add_ps(a, c));
}

/* out[i]: the largest of x[i]. */
static inline void kv_lanes_mosts(const __m256 x[4], float out[4])
{
    __m128 a = kv_lanes_most_of_halves(x[0]), b = kv_lanes_most_of_halves(x[1]);
    __m128 c = kv_lanes_most_of_halves(x[2]), d = kv_lanes_most_of_halves(x[3]);

    kv_lanes_halves(&a, &b);
    kv_lanes_halves(&c, &d);
    a = _mm_max_ps(a, b);
    c = _mm_max_ps(c, d);
    kv_lanes_every_other(&a, &c);
    _mm_storeu_ps(out, _mm_max_ps(a, c));
}

/* Lanes of x[4] as bytes, saturated: -128 to 127 or (positive) 0 to 255. */
static inline __m256i kv_lanes_bytes(const __m256i x[4], int positive)
{
    /* packed, they are fours of bytes, of each half in turn */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i a = _mm256_packs_epi32(x[0], x[1]);
    const __m256i b = _mm256_packs_epi32(x[2], x[3]);

    return _mm256_permutevar8x32_epi32(
        positive ? _mm256_packus_epi16(a, b) : _mm256_packs_epi16(a, b), order);
}

#endif
