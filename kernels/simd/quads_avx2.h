/* Products of bytes in fours with AVX2, for path int8 of families whose codes
 * are indices into tables.  Entries are looked up first and stored in the order
 * that the products need:
 *
 *   x [quads][64 tokens][4]    four numbers of a token side by side
 *
 * Only for codebook/avx2.c and transform/avx2.c. */
#ifndef KV_SIMD_QUADS_AVX2_H
#define KV_SIMD_QUADS_AVX2_H

#include "kernels/simd/common.h"
#include "kernels/tiles/tiles.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum {
    KV_QUAD = 4,
    KV_QUAD_LINE = KV_QUAD * KV_TILE_TOKENS, /* bytes of a quad */
    KV_QUAD_ROWS = 4,                        /* processed together */
    KV_QUAD_TOKENS = 8                       /* quads of a register */
};

/* Runs f(constant) for 1 to KV_QUAD_ROWS rows. */
#define KV_QUAD_CASES(rows, f) \
    switch (rows) {            \
    case 1:                    \
        f(1);                  \
        break;                 \
    case 2:                    \
        f(2);                  \
        break;                 \
    case 3:                    \
        f(3);                  \
        break;                 \
    case 4:                    \
        f(4);                  \
        break;                 \
    }

/* The 16-bit factors of x: quad k of row r is at q + k * by_quad + r *
 * by_row. */
struct kv_quad_rows {
    const int16_t *q;
    size_t by_quad, by_row;
};

/* Widens n bytes, a multiple of 16, to 16-bit numbers. */
static inline void kv_quad_widen(const int8_t *from, size_t n, int16_t *to)
{
    for (size_t i = 0; i < n; i += 16)
        _mm256_storeu_si256(
            (__m256i *)(to + i),
            _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(from + i))));
}

/* sum [rows][64]: sums of the unsigned x times rows of q.  The instruction for
 * bytes adds two products in 16 bits, which would overflow, so bytes are
 * widened first.  rows is a constant. */
ALWAYS_INLINE void kv_quad_qk_some(const uint8_t *x, size_t n_quads,
                                   struct kv_quad_rows q, size_t rows,
                                   int32_t *sum)
{
    for (size_t t = 0; t < KV_TILE_TOKENS; t += KV_QUAD_TOKENS) {
        __m256i s[KV_QUAD_ROWS][2];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            s[r][0] = s[r][1] = _mm256_setzero_si256();
        for (size_t k = 0; k < n_quads; k++) {
            const __m128i *at =
                (const __m128i *)(x + k * KV_QUAD_LINE + t * KV_QUAD);
            const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128(at));
            const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(at + 1));

            UNROLL
            for (size_t r = 0; r < rows; r++) {
                int64_t four;
                __m256i by;

                memcpy(&four, q.q + k * q.by_quad + r * q.by_row, sizeof(four));
                by = _mm256_set1_epi64x(four);
                s[r][0] = _mm256_add_epi32(s[r][0], _mm256_madd_epi16(a, by));
                s[r][1] = _mm256_add_epi32(s[r][1], _mm256_madd_epi16(b, by));
                __asm__("" : "+x"(s[r][0]), "+x"(s[r][1]));
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            const __m256i pairs = _mm256_hadd_epi32(s[r][0], s[r][1]);

            _mm256_storeu_si256((__m256i *)(sum + r * KV_TILE_TOKENS + t),
                                _mm256_permute4x64_epi64(pairs, 0xd8));
        }
    }
}

/* kv_quad_qk_some() for 1 <= rows <= KV_QUAD_ROWS. */
static inline void kv_quad_qk(const uint8_t *x, size_t n_quads,
                              struct kv_quad_rows q, size_t rows, int32_t *sum){
#define SOME(R) kv_quad_qk_some(x, n_quads, q, R, sum)
    KV_QUAD_CASES(rows, SOME)
#undef SOME
}

/* sum [rows]: signed sums of x - bias, for one quad, times weights p [rows][64
 * / 8].  The weights are 0 to 127, as kv_quad_weights() leaves them.  bias is 0
 * if x is signed, else 128; bias and rows are constants. */
ALWAYS_INLINE void kv_quad_pv(const uint8_t *x, int bias, const __m256i (*p)[8],
                              size_t rows, __m128i *sum)
{
    /* transposes four tokens by four numbers */
    const __m256i transpose = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i s[KV_QUAD_ROWS];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        s[r] = _mm256_setzero_si256();
    UNROLL
    for (size_t i = 0; i < KV_TILE_TOKENS / KV_QUAD_TOKENS; i++) {
        __m256i v = _mm256_shuffle_epi8(
            _mm256_loadu_si256((const __m256i *)x + i), transpose);

        if (bias)
            v = _mm256_xor_si256(v, _mm256_set1_epi8((char)bias));
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            s[r] = _mm256_add_epi32(
                s[r], _mm256_madd_epi16(_mm256_maddubs_epi16(p[r][i], v),
                                        _mm256_set1_epi16(1)));
            /* otherwise the compiler delays sums and keeps products on the
             * stack */
            __asm__("" : "+x"(s[r]));
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        sum[r] = _mm_add_epi32(_mm256_castsi256_si128(s[r]),
                               _mm256_extracti128_si256(s[r], 1));
}

/* A row of weights [64], with each four repeated four times. */
static inline void kv_quad_weights(const int8_t *p8, __m256i p[8])
{
    for (size_t i = 0; i < KV_TILE_TOKENS / KV_QUAD_TOKENS; i++) {
        int32_t four[2];

        memcpy(four, p8 + i * KV_QUAD_TOKENS, sizeof(four));
        p[i] =
            _mm256_set_m128i(_mm_set1_epi32(four[1]), _mm_set1_epi32(four[0]));
    }
}

#endif
