#define V_VNNI
#include "kernels/simd/avx512.h"
#include "kernels/bitpack.h"

#include "kernels/hack/loops.h"

#define WIDE(bits) false
#define dot4(s, b, a, wide) ((void)(wide), v_dot_i8(s, b, a))
#define max_joined(bits) ((void)(bits), (size_t)KV_HACK_MAX_PART)
#define dots_first(dot, wide) ((void)(wide), (dot))
#define dots_joined(dot, s, wide) ((void)(dot), (void)(wide), (s))

ALWAYS_INLINE __m128i load16(const uint8_t *p, bool whole, __mmask16 mask)
{
    return whole ? _mm_loadu_si128((const __m128i *)p)
                 : _mm_maskz_loadu_epi8(mask, p);
}

/* Transposes 16 bytes of 16 rows: word i of row j goes to lane j of w[i].  If
 * not whole, the bytes outside the mask are 0. */
ALWAYS_INLINE void transpose16(const uint8_t *bytes, size_t stride, bool whole,
                               __mmask16 mask, vi32 w[4])
{
    vi32 r[4];

    UNROLL
    for (size_t i = 0; i < 4; i++, bytes += stride) {
        const __m128i x0 = load16(bytes, whole, mask);
        const __m128i x1 = load16(bytes + 4 * stride, whole, mask);
        const __m128i x2 = load16(bytes + 8 * stride, whole, mask);
        const __m128i x3 = load16(bytes + 12 * stride, whole, mask);

        r[i] = _mm512_castsi128_si512(x0);
        r[i] = _mm512_inserti32x4(r[i], x1, 1);
        r[i] = _mm512_inserti32x4(r[i], x2, 2);
        r[i] = _mm512_inserti32x4(r[i], x3, 3);
    }
    v_transpose4x4(r, w);
}

/* transpose16() for up to 16 rows, of the bytes in the mask; the other rows are
 * 0. */
static void transpose_few(const uint8_t *bytes, size_t stride, size_t n_rows,
                          __mmask16 mask, vi32 w[4])
{
    __m128i x[4][4]; /* [row % 4][row / 4] */
    vi32 r[4];

    for (size_t j = 0; j < V_WIDTH; j++)
        x[j % 4][j / 4] = j < n_rows ? load16(bytes + j * stride, false, mask)
                                     : _mm_setzero_si128();
    for (size_t i = 0; i < 4; i++)
        r[i] = _mm512_loadu_si512(x[i]);
    v_transpose4x4(r, w);
}

ALWAYS_INLINE void load_words(const uint8_t *bytes, size_t stride,
                              size_t n_rows, size_t n, vi32 w[4])
{
    const __mmask16 mask = (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);

    if (n_rows < V_WIDTH)
        transpose_few(bytes, stride, n_rows, mask, w);
    else if (n < 16)
        transpose16(bytes, stride, false, mask, w);
    else
        transpose16(bytes, stride, true, mask, w);
}

/* Extracts a field of 8 bits at each code's position; only the low bits
 * count. */
ALWAYS_INLINE vi32 four_codes(vi32 words, unsigned bits, unsigned j)
{
    const uint64_t places = 0x03020100u * (uint64_t)bits;
    const vi32 first =
        _mm512_set1_epi64((long long)(places | (places + 0x20202020u) << 32));
    const vi32 at = _mm512_add_epi8(first, v_set1_i8((char)(4 * bits * j)));

    return bits == 8 ? words
                     : v_and(_mm512_multishift_epi64_epi8(at, words),
                             v_set1_i8((char)((1u << bits) - 1)));
}

#include "kernels/hack/products.h"

TABLE(vnni);
