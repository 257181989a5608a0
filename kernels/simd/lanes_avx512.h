/* Four AVX-512 registers at a time: the sums and the largest of their lanes,
 * which takes little longer than of one; all lanes in 8 bits; rows of
 * four to columns.  A mask as a number. */
#ifndef KV_SIMD_LANES_AVX512_H
#define KV_SIMD_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* In a general register: of a mask register that stands for more than 16 bits
 * gcc 12 keeps 16 on the stack and reads all. */
static inline uint32_t kv_lanes_bits(__mmask16 mask)
{
    uint32_t bits = mask;

    __asm__("" : "+r"(bits));
    return bits;
}

/* The lower halves of a and b to a, the upper to b. */
static inline void kv_lanes_halves(__m512 *a, __m512 *b)
{
    const __m512 low = _mm512_shuffle_f32x4(*a, *b, 0x44);

    *b = _mm512_shuffle_f32x4(*a, *b, 0xee);
    *a = low;
}

/* The first and third quarters of a and b to a, the others to b. */
static inline void kv_lanes_quarters(__m512 *a, __m512 *b)
{
    const __m512 first = _mm512_shuffle_f32x4(*a, *b, 0x88);

    *b = _mm512_shuffle_f32x4(*a, *b, 0xdd);
    *a = first;
}

/* Of each 128 bits by themselves: word j of x[i] = word i of y[j], words of 32
 * bits. */
static inline void kv_lanes_turn(const __m512i y[4], __m512i x[4])
{
    const __m512i low01 = _mm512_unpacklo_epi32(y[0], y[1]);
    const __m512i high01 = _mm512_unpackhi_epi32(y[0], y[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(y[2], y[3]);
    const __m512i high23 = _mm512_unpackhi_epi32(y[2], y[3]);

    x[0] = _mm512_unpacklo_epi64(low01, low23);
    x[1] = _mm512_unpackhi_epi64(low01, low23);
    x[2] = _mm512_unpacklo_epi64(high01, high23);
    x[3] = _mm512_unpackhi_epi64(high01, high23);
}

/* out[i] = lane 4 i. */
static inline void kv_lanes_store(float out[4], __m512 x)
{
    const __m512i at =
        _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);

    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(at, x)));
}

/* out[i]: the sum of x[i], lane j with j + 8, then j + 4, j + 2, j + 1. */
static inline void kv_lanes_sums(const __m512 x[4], float out[4])
{
    __m512 a = x[0], b = x[1], c = x[2], d = x[3];

    kv_lanes_halves(&a, &b);
    kv_lanes_halves(&c, &d);
    a = _mm512_add_ps(a, b);
    c = _mm512_add_ps(c, d);
    kv_lanes_quarters(&a, &c);
    a = _mm512_add_ps(a, c);
    a = _mm512_add_ps(a, _mm512_permute_ps(a, 0x4e));
    kv_lanes_store(out, _mm512_add_ps(a, _mm512_permute_ps(a, 0xb1)));
}

/* out[i]: the largest of x[i]. */
static inline void kv_lanes_mosts(const __m512 x[4], float out[4])
{
    __m512 a = x[0], b = x[1], c = x[2], d = x[3];

    kv_lanes_halves(&a, &b);
    kv_lanes_halves(&c, &d);
    a = _mm512_max_ps(a, b);
    c = _mm512_max_ps(c, d);
    kv_lanes_quarters(&a, &c);
    a = _mm512_max_ps(a, c);
    a = _mm512_max_ps(a, _mm512_permute_ps(a, 0x4e));
    kv_lanes_store(out, _mm512_max_ps(a, _mm512_permute_ps(a, 0xb1)));
}

/* 64 floats to the nearest integers of 8 bits. */
static inline void kv_lanes_store8(int8_t *p, const __m512 x[4])
{
    const __m512i turn =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a =
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
    const __m512i b =
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));

    _mm512_storeu_si512(
        p, _mm512_permutexvar_epi32(turn, _mm512_packs_epi16(a, b)));
}

#endif
