#include "kernels/bitpack.h"
#include "kernels/hack/loops.h"
#include "kernels/simd/lanes_avx2.h"

#include <immintrin.h>

enum { WIDTH = 8, GROUPS = 2 };
typedef __m256i vi;
typedef __m256d vd;
typedef __m256 vf;

#define i_zero _mm256_setzero_si256
#define i_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define i_shift(x) _mm256_slli_epi32(x, 7)
#define f_load _mm256_loadu_ps
#define f_all _mm256_set1_ps
#define f_min _mm256_min_ps
#define f_max _mm256_max_ps
#define d_low(x) _mm256_cvtepi32_pd(_mm256_castsi256_si128(x))
#define d_high(x) _mm256_cvtepi32_pd(_mm256_extracti128_si256(x, 1))
#define d_load _mm256_loadu_pd
#define d_store _mm256_storeu_pd
#define d_all _mm256_set1_pd
#define d_mul _mm256_mul_pd
#define d_fma _mm256_fmadd_pd
#define d_widen(p) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define d_of(p) _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)(p)))

ALWAYS_INLINE float f_least(vf x)
{
    __m128 m =
        _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

ALWAYS_INLINE float f_most(vf x)
{
    __m128 m =
        _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

ALWAYS_INLINE double d_total(const vd *s)
{
    const __m256d four = _mm256_add_pd(s[0], s[1]);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four),
                                   _mm256_extractf128_pd(four, 1));

    return two[0] + two[1];
}

ALWAYS_INLINE vi i_four(const int8_t *p)
{
    int32_t four;

    memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
}

/* Two products of an int8_t and a code below 128 fit 16 bits, and of smaller
 * codes more: i_most() times as many.  A larger code is two of four bits, whose
 * products go to 32 bits at once. */
ALWAYS_INLINE size_t i_most(unsigned bits)
{
    return bits > 7 ? KV_HACK_MAX_PART : (size_t)1 << (7 - bits);
}
_Static_assert(2 * 128 * 127 <= INT16_MAX, "i_most(7)");

ALWAYS_INLINE vi i_first(vi dot, bool wide)
{
    return wide ? dot : i_zero();
}

ALWAYS_INLINE vi i_joined(vi dot, vi s, bool wide)
{
    return wide ? s
                : _mm256_add_epi32(dot,
                                   _mm256_madd_epi16(s, _mm256_set1_epi16(1)));
}

ALWAYS_INLINE vi i_dot(vi s, vi b, vi a, bool wide)
{
    const vi nibble = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);

    if (!wide) {
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(b, a));
        /* or the compiler puts sums off and keeps products on the stack */
        __asm__("" : "+x"(s));
        return s;
    }

    const vi low = _mm256_and_si256(b, nibble);
    const vi high = _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble);

    s = _mm256_add_epi32(s,
                         _mm256_madd_epi16(_mm256_maddubs_epi16(low, a), one));
    return _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(high, a),
                                                 _mm256_set1_epi16(16)));
}

#include "kernels/hack/products.h"

static void multiply(const struct kv_hack_row *row, size_t n_rows,
                     const struct kv_hack_columns *c, double *out,
                     size_t stride)
{
    if (c->bits > 7)
        multiply_all(row, n_rows, c, true, out, stride);
    else
        multiply_all(row, n_rows, c, false, out, stride);
}

/* Four bytes of each column; 0 of columns that are not there. */
ALWAYS_INLINE vi load_words(const uint8_t *p, size_t stride, size_t n_columns)
{
    int32_t word[WIDTH] = {0};

    for (size_t j = 0; j < n_columns; j++)
        memcpy(&word[j], p + j * stride, sizeof(*word));
    return _mm256_setr_epi32(word[0], word[1], word[2], word[3], word[4],
                             word[5], word[6], word[7]);
}

/* Byte at[i] of each word in its byte i. */
ALWAYS_INLINE vi pick(vi words, unsigned at0, unsigned at1, unsigned at2,
                      unsigned at3)
{
    const unsigned four = at0 | at1 << 8 | at2 << 16 | at3 << 24;

    return _mm256_shuffle_epi8(
        words, _mm256_add_epi8(_mm256_set1_epi32((int)four),
                               _mm256_setr_epi32(0, 0x04040404, 0x08080808,
                                                 0x0c0c0c0c, 0, 0x04040404,
                                                 0x08080808, 0x0c0c0c0c)));
}

/* Codes 4 j to 4 j + 3 of each word, of 1, 2, 4 or 8 bits, in bytes. */
ALWAYS_INLINE vi four_codes(vi words, unsigned bits, unsigned j)
{
    const vi nibble = _mm256_set1_epi8(15);

    if (bits == 8)
        return words;
    if (bits == 4) {
        const vi x = pick(words, 2 * j, 2 * j, 2 * j + 1, 2 * j + 1);

        return _mm256_blendv_epi8(
            _mm256_and_si256(x, nibble),
            _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble),
            _mm256_set1_epi16((short)0xff00));
    }
    if (bits == 2) { /* bits 0 to 3 or 4 to 7 alone: a table of 16 */
        const vi code = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 2, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0));
        const vi x = _mm256_and_si256(pick(words, j, j, j, j),
                                      _mm256_set1_epi32((int)0xc0300c03));
        const vi either = _mm256_or_si256(x, _mm256_srli_epi16(x, 4));

        return _mm256_shuffle_epi8(code, _mm256_and_si256(either, nibble));
    }

    const vi bit = _mm256_set1_epi32((int)(j % 2 ? 0x80402010 : 0x08040201));
    const vi x = _mm256_and_si256(pick(words, j / 2, j / 2, j / 2, j / 2), bit);

    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(1));
}

/* Four words of each of WIDTH columns. */
ALWAYS_INLINE void load_fours(const uint8_t *p, size_t stride, vi words[4])
{
    vi x[4];

    UNROLL
    for (size_t j = 0; j < 4; j++)
        x[j] = _mm256_loadu2_m128i((const __m128i *)(p + (j + 4) * stride),
                                   (const __m128i *)(p + j * stride));
    kv_lanes_turn(x, words);
}

/* The codes of a word of each column; where the next word's go. */
ALWAYS_INLINE uint8_t *put_codes(vi words, unsigned bits, uint8_t *code)
{
    UNROLL
    for (unsigned j = 0; j < 8 / bits; j++, code += 4 * WIDTH)
        _mm256_storeu_si256((vi *)code, four_codes(words, bits, j));
    return code;
}

/* Codes of 1, 2, 4 or 8 bits, whole words of them, of up to WIDTH columns; of
 * the others 0, in kv_hack_room() of code.  bits is a constant. */
ALWAYS_INLINE void expand_columns(const uint8_t *packed, size_t stride,
                                  unsigned bits, size_t n_columns, size_t n,
                                  uint8_t *code)
{
    const size_t bytes = n * bits / 8;
    size_t i = 0;

    for (; n_columns == WIDTH && i + 16 <= bytes; i += 16) {
        vi words[4];

        load_fours(packed + i, stride, words);
        UNROLL
        for (size_t j = 0; j < 4; j++)
            code = put_codes(words[j], bits, code);
    }
    for (; i < bytes; i += 4)
        code = put_codes(n_columns == WIDTH
                             ? load_words(packed + i, stride, WIDTH)
                             : load_words(packed + i, stride, n_columns),
                         bits, code);
}

/* Codes that do not stand in words so. */
static void expand_any(const uint8_t *packed, size_t stride, unsigned bits,
                       size_t n_columns, size_t n, uint8_t *code)
{
    uint16_t wide[KV_HACK_MAX_PART];

    memset(wide + n / 4 * 4, 0, n % 4 ? 4 * sizeof(*wide) : 0);
    for (size_t j = 0; j < n_columns; j++) {
        uint8_t *to = code + j * 4;

        kv_unpack(packed + j * stride, n, bits, wide);
        for (size_t z = 0; z < n; z += 4, to += 4 * WIDTH)
            for (size_t i = 0; i < 4; i++)
                to[i] = (uint8_t)wide[z + i];
    }
}

static void arrange(const uint8_t *packed, size_t stride, unsigned bits,
                    size_t n_columns, size_t n, uint8_t *code)
{
    for (size_t j = 0; j < n_columns; j += WIDTH) {
        const size_t left = n_columns - j;
        const size_t some = left < WIDTH ? left : WIDTH;

        switch (n * bits % 32 ? 0 : bits) {
#define CASE(B)                                           \
    case B:                                               \
        expand_columns(packed, stride, B, some, n, code); \
        break;
            CASE(1)
            CASE(2)
            CASE(4)
            CASE(8)
#undef CASE
        default:
            expand_any(packed, stride, bits, some, n, code);
        }
        packed += WIDTH * stride;
        code += WIDTH * 4 * steps_of(n);
    }
}

/* Words of `size` bytes each, a constant. */
ALWAYS_INLINE void transpose_words(const uint8_t *bytes, size_t stride,
                                   size_t n_rows, size_t size, uint32_t *word)
{
    for (size_t j = 0; j < n_rows; j++) {
        word[j] = 0;
        memcpy(&word[j], bytes + j * stride, size);
    }
}

static void transpose(const uint8_t *bytes, size_t stride, size_t n_rows,
                      size_t n, uint32_t *word)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4, word += KV_HACK_COLUMNS(n_rows))
        transpose_words(bytes + i, stride, n_rows, 4, word);
    switch (n - i) {
#define CASE(SIZE)                                              \
    case SIZE:                                                  \
        transpose_words(bytes + i, stride, n_rows, SIZE, word); \
        break;
        CASE(1) CASE(2) CASE(3)
#undef CASE
    }
}

TABLE(avx2);
