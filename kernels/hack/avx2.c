#include "kernels/simd/avx2.h"
#include "kernels/bitpack.h"

#include "kernels/hack/loops.h"

#define WIDE(bits) ((bits) > 7)

/* Two products of an int8_t and a code below 128 fit 16 bits; of smaller codes,
 * max_joined() times as many products fit.  A larger code is split into two of
 * four bits, whose products go to 32 bits at once. */
ALWAYS_INLINE size_t max_joined(unsigned bits)
{
    return bits > 7 ? KV_HACK_MAX_PART : (size_t)1 << (7 - bits);
}
_Static_assert(2 * 128 * 127 <= INT16_MAX, "max_joined(7)");

ALWAYS_INLINE vi32 dots_first(vi32 dot, bool wide)
{
    return wide ? dot : v_zero_i32();
}

ALWAYS_INLINE vi32 dots_joined(vi32 dot, vi32 s, bool wide)
{
    return wide ? s
                : _mm256_add_epi32(dot,
                                   _mm256_madd_epi16(s, _mm256_set1_epi16(1)));
}

ALWAYS_INLINE vi32 dot4(vi32 s, vi32 b, vi32 a, bool wide)
{
    const vi32 nibble = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);

    if (!wide) {
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(b, a));
        /* or the compiler puts sums off and keeps products on the stack */
        __asm__("" : "+x"(s));
        return s;
    }

    const vi32 low = _mm256_and_si256(b, nibble);
    const vi32 high = _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble);

    s = _mm256_add_epi32(s,
                         _mm256_madd_epi16(_mm256_maddubs_epi16(low, a), one));
    return _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(high, a),
                                                 _mm256_set1_epi16(16)));
}

/* Loads a word of each column, with n valid bytes; n is a constant. */
ALWAYS_INLINE vi32 load_word(const uint8_t *p, size_t stride, size_t n_columns,
                             size_t n)
{
    int32_t word[V_WIDTH] = {0};

    for (size_t j = 0; j < n_columns; j++)
        memcpy(&word[j], p + j * stride, n);
    return _mm256_setr_epi32(word[0], word[1], word[2], word[3], word[4],
                             word[5], word[6], word[7]);
}

ALWAYS_INLINE void load_few(const uint8_t *p, size_t stride, size_t n_columns,
                            size_t n, vi32 w[4])
{
    for (size_t k = 0; k < 4 && 4 * k < n; k++, p += 4)
        switch (n - 4 * k) {
        case 1:
            w[k] = load_word(p, stride, n_columns, 1);
            break;
        case 2:
            w[k] = load_word(p, stride, n_columns, 2);
            break;
        case 3:
            w[k] = load_word(p, stride, n_columns, 3);
            break;
        default:
            w[k] = load_word(p, stride, n_columns, 4);
        }
}

ALWAYS_INLINE void load_words(const uint8_t *p, size_t stride, size_t n_columns,
                              size_t n, vi32 w[4])
{
    vi32 x[4];

    if (n_columns < V_WIDTH) {
        load_few(p, stride, n_columns, n, w);
    } else if (n < 16) {
        load_few(p, stride, V_WIDTH, n, w);
    } else {
        UNROLL
        for (size_t j = 0; j < 4; j++)
            x[j] = _mm256_loadu2_m128i((const __m128i *)(p + (j + 4) * stride),
                                       (const __m128i *)(p + j * stride));
        v_transpose4x4(x, w);
    }
}

/* Moves byte at[i] of each word to its byte i. */
ALWAYS_INLINE vi32 pick(vi32 words, unsigned at0, unsigned at1, unsigned at2,
                        unsigned at3)
{
    const unsigned four = at0 | at1 << 8 | at2 << 16 | at3 << 24;

    return _mm256_shuffle_epi8(
        words, _mm256_add_epi8(_mm256_set1_epi32((int)four),
                               _mm256_setr_epi32(0, 0x04040404, 0x08080808,
                                                 0x0c0c0c0c, 0, 0x04040404,
                                                 0x08080808, 0x0c0c0c0c)));
}

ALWAYS_INLINE vi32 four_codes(vi32 words, unsigned bits, unsigned j)
{
    const vi32 nibble = _mm256_set1_epi8(15);

    if (bits == 8)
        return words;
    if (bits == 4) {
        const vi32 x = pick(words, 2 * j, 2 * j, 2 * j + 1, 2 * j + 1);

        return _mm256_blendv_epi8(
            _mm256_and_si256(x, nibble),
            _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble),
            _mm256_set1_epi16((short)0xff00));
    }
    if (bits == 2) { /* bits 0 to 3 and 4 to 7 apart: a table has 16 entries */
        const vi32 code = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 2, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0));
        const vi32 x = _mm256_and_si256(pick(words, j, j, j, j),
                                        _mm256_set1_epi32((int)0xc0300c03));
        const vi32 either = _mm256_or_si256(x, _mm256_srli_epi16(x, 4));

        return _mm256_shuffle_epi8(code, _mm256_and_si256(either, nibble));
    }

    const vi32 bit = _mm256_set1_epi32((int)(j % 2 ? 0x80402010 : 0x08040201));
    const vi32 x =
        _mm256_and_si256(pick(words, j / 2, j / 2, j / 2, j / 2), bit);

    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(1));
}

#include "kernels/hack/products.h"

TABLE(avx2);
