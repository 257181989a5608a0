#include "kernels/bitpack.h"
#include "kernels/hack/loops.h"
#include "kernels/simd/lanes_avx512.h"

#include <immintrin.h>

enum { WIDTH = 16, GROUPS = 4 };
typedef __m512i vi;
typedef __m512d vd;
typedef __m512 vf;

#define i_zero _mm512_setzero_si512
#define i_load _mm512_loadu_si512
#define i_shift(x) _mm512_slli_epi32(x, 7)
#define i_dot(s, b, a, wide) ((void)(wide), _mm512_dpbusd_epi32(s, b, a))
#define i_most(bits) ((void)(bits), (size_t)KV_HACK_MAX_PART)
#define i_first(dot, wide) ((void)(wide), (dot))
#define i_joined(dot, s, wide) ((void)(dot), (void)(wide), (s))
#define f_load _mm512_loadu_ps
#define f_all _mm512_set1_ps
#define f_min _mm512_min_ps
#define f_max _mm512_max_ps
#define f_least _mm512_reduce_min_ps
#define f_most _mm512_reduce_max_ps
#define d_low(x) _mm512_cvtepi32_pd(_mm512_castsi512_si256(x))
#define d_high(x) _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(x, 1))
#define d_load _mm512_loadu_pd
#define d_store _mm512_storeu_pd
#define d_all _mm512_set1_pd
#define d_mul _mm512_mul_pd
#define d_fma _mm512_fmadd_pd
#define d_widen(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define d_of(p) _mm512_cvtepi32_pd(_mm256_loadu_si256((const __m256i *)(p)))

ALWAYS_INLINE double d_total(const vd *s)
{
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(*s),
                                       _mm512_extractf64x4_pd(*s, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four),
                                   _mm256_extractf128_pd(four, 1));

    return two[0] + two[1];
}

ALWAYS_INLINE vi i_four(const int8_t *p)
{
    int32_t four;

    memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
}

#include "kernels/hack/products.h"

static void multiply(const struct kv_hack_row *row, size_t n_rows,
                     const struct kv_hack_columns *c, double *out,
                     size_t stride)
{
    multiply_all(row, n_rows, c, false, out, stride);
}

ALWAYS_INLINE __m128i load16(const uint8_t *p, bool whole, __mmask16 there)
{
    return whole ? _mm_loadu_si128((const __m128i *)p)
                 : _mm_maskz_loadu_epi8(there, p);
}

/* 16 bytes of 16 rows, or, not whole, those that are there and 0: word i of
 * row j goes to lane j of w[i]. */
ALWAYS_INLINE void transpose16(const uint8_t *bytes, size_t stride, bool whole,
                               __mmask16 there, __m512i w[4])
{
    __m512i r[4];

    UNROLL
    for (size_t i = 0; i < 4; i++, bytes += stride) {
        const __m128i x0 = load16(bytes, whole, there);
        const __m128i x1 = load16(bytes + 4 * stride, whole, there);
        const __m128i x2 = load16(bytes + 8 * stride, whole, there);
        const __m128i x3 = load16(bytes + 12 * stride, whole, there);

        r[i] = _mm512_castsi128_si512(x0);
        r[i] = _mm512_inserti32x4(r[i], x1, 1);
        r[i] = _mm512_inserti32x4(r[i], x2, 2);
        r[i] = _mm512_inserti32x4(r[i], x3, 3);
    }
    kv_lanes_turn(r, w);
}

/* The same of n bytes and n_rows rows, as many as there are up to 16; what is
 * not there is 0. */
static void transpose_few(const uint8_t *bytes, size_t stride, size_t n_rows,
                          __mmask16 there, __m512i w[4])
{
    __m128i x[4][4]; /* [row % 4][row / 4] */
    __m512i r[4];

    for (size_t j = 0; j < WIDTH; j++)
        x[j % 4][j / 4] = j < n_rows ? load16(bytes + j * stride, false, there)
                                     : _mm_setzero_si128();
    for (size_t i = 0; i < 4; i++)
        r[i] = _mm512_loadu_si512(x[i]);
    kv_lanes_turn(r, w);
}

ALWAYS_INLINE void transpose_some(const uint8_t *bytes, size_t stride,
                                  size_t n_rows, size_t n, __m512i w[4])
{
    const __mmask16 there = (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);

    if (n_rows < WIDTH)
        transpose_few(bytes, stride, n_rows, there, w);
    else if (n < 16)
        transpose16(bytes, stride, false, there, w);
    else
        transpose16(bytes, stride, true, there, w);
}

static void transpose(const uint8_t *bytes, size_t stride, size_t n_rows,
                      size_t n, uint32_t *word)
{
    const size_t row = KV_HACK_COLUMNS(n_rows);

    for (size_t j = 0; j < n_rows; j += WIDTH)
        for (size_t i = 0; i < n; i += 16) {
            const size_t left = (n - i + 3) / 4;
            __m512i w[4];

            transpose_some(bytes + j * stride + i, stride, n_rows - j, n - i,
                           w);
            for (size_t k = 0; k < 4 && k < left; k++)
                _mm512_storeu_si512(word + (i / 4 + k) * row + j, w[k]);
        }
}

/* Codes of 1, 2, 4 or 8 bits, whole words of them, of up to WIDTH columns:
 * word after word becomes 8 / bits steps.  A field of 8 bits is taken at each
 * code's place, of which the low bits count. */
ALWAYS_INLINE void expand(const uint8_t *packed, size_t stride, unsigned bits,
                          size_t n_columns, size_t n, uint8_t *code)
{
    const size_t bytes = n * bits / 8;
    const __m512i low = _mm512_set1_epi8((char)((1u << bits) - 1));
    const uint64_t places = 0x03020100u * (uint64_t)bits;
    const __m512i first =
        _mm512_set1_epi64((long long)(places | (places + 0x20202020u) << 32));

    for (size_t i = 0; i < bytes; i += 16) {
        const size_t left = (bytes - i) / 4;
        __m512i w[4];

        transpose_some(packed + i, stride, n_columns, bytes - i, w);
        for (size_t k = 0; k < 4 && k < left; k++)
            for (unsigned j = 0; j < 8 / bits; j++, code += 4 * WIDTH) {
                const __m512i at = _mm512_add_epi8(
                    first, _mm512_set1_epi8((char)(4 * bits * j)));
                const __m512i x =
                    bits == 8 ? w[k] : _mm512_multishift_epi64_epi8(at, w[k]);

                _mm512_storeu_si512(code, _mm512_and_si512(x, low));
            }
    }
}

/* Codes that do not stand in words so: to bytes first. */
static void expand_any(const uint8_t *packed, size_t stride, unsigned bits,
                       size_t n_columns, size_t n, uint8_t *code)
{
    const size_t filled = 4 * steps_of(n);
    uint8_t byte[WIDTH * KV_HACK_MAX_PART];
    uint16_t wide[KV_HACK_MAX_PART] = {0};

    for (size_t j = 0; j < n_columns; j++) {
        kv_unpack(packed + j * stride, n, bits, wide);
        for (size_t z = 0; z < filled; z++)
            byte[j * filled + z] = (uint8_t)wide[z];
    }
    expand(byte, filled, 8, n_columns, filled, code);
}

static void arrange(const uint8_t *packed, size_t stride, unsigned bits,
                    size_t n_columns, size_t n, uint8_t *code)
{
    for (size_t j = 0; j < n_columns; j += WIDTH) {
        const size_t left = n_columns - j;
        const size_t some = left < WIDTH ? left : WIDTH;

        switch (n * bits % 32 ? 0 : bits) {
        case 1:
            expand(packed, stride, 1, some, n, code);
            break;
        case 2:
            expand(packed, stride, 2, some, n, code);
            break;
        case 4:
            expand(packed, stride, 4, some, n, code);
            break;
        case 8:
            expand(packed, stride, 8, some, n, code);
            break;
        default:
            expand_any(packed, stride, bits, some, n, code);
        }
        packed += WIDTH * stride;
        code += WIDTH * 4 * steps_of(n);
    }
}

TABLE(vnni);
