/* What tiles_coef_*_vnni.c share: AVX-512 with VNNI and VBMI.  For these files
 * alone. */
#ifndef KV_TILES_COEF_VNNI_H
#define KV_TILES_COEF_VNNI_H

#include "kernels/tiles_coef_impl.h"
#include "kernels/tiles_impl.h"
#include "kernels/unroll.h"

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

enum {
    LINE = KV_TILE_TOKENS,
    ROWS = KV_TILE_ROWS,
    TILES_AHEAD = 4 /* from what is looked up to what is prefetched */
};

#define EVERY_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
_Static_assert(ROWS == 8, "EVERY_ROWS");

/* Which of 256 bytes each token wants: eight bits, and masks of the highest two
 * and of both. */
struct kv_coef_index {
    __m512i at;
    __mmask64 by6, by7, both;
};

/* at: the low seven bits, the eighth may be anything. */
ALWAYS_INLINE struct kv_coef_index index_of(__m512i at, __mmask64 by7)
{
    const __mmask64 by6 = _mm512_movepi8_mask(_mm512_add_epi8(at, at));

    return (struct kv_coef_index){
        .at = at, .by6 = by6, .by7 = by7, .both = _kand_mask64(by6, by7)};
}

/* The bytes, of four lines t.  With AVX512-VBMI a line is looked up by one
 * instruction: under masks, of which each keeps what those before it have
 * found; or, where two lines are as fast as one (kv_level_pairs()), in pairs. A
 * gather costs more, up to ten times.  pairs: a constant. */
ALWAYS_INLINE __m512i look(const __m512i *t, struct kv_coef_index i, bool pairs)
{
    __m512i x;

    if (pairs)
        return _mm512_mask_blend_epi8(
            i.by7, _mm512_permutex2var_epi8(t[0], i.at, t[1]),
            _mm512_permutex2var_epi8(t[2], i.at, t[3]));
    x = _mm512_permutexvar_epi8(i.at, t[0]);
    x = _mm512_mask_permutexvar_epi8(x, i.by6, i.at, t[1]);
    x = _mm512_mask_permutexvar_epi8(x, i.by7, i.at, t[2]);
    return _mm512_mask_permutexvar_epi8(x, i.both, i.at, t[3]);
}
_Static_assert(KV_TRELLIS_HALF == 4 * LINE, "four lines of a table");

/* The codes of a run's coefficients for the states of a tile's tokens: a line
 * of bytes each, one behind the other, 64-byte aligned. */
void kv_coef_codes_vnni(const struct kv_store *s, size_t head,
                        const struct kv_coef_run *run, const uint8_t *tile,
                        uint8_t *codes);

/* Four lines of bytes to one of words of 32 bits for each 16 tokens. */
ALWAYS_INLINE void weave(__m512i a, __m512i b, __m512i c, __m512i d,
                         __m512i out[4])
{
    const __m512i ab0 = _mm512_unpacklo_epi8(a, b);
    const __m512i ab1 = _mm512_unpackhi_epi8(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi8(c, d);
    const __m512i cd1 = _mm512_unpackhi_epi8(c, d);

    out[0] = _mm512_unpacklo_epi16(ab0, cd0);
    out[1] = _mm512_unpackhi_epi16(ab0, cd0);
    out[2] = _mm512_unpacklo_epi16(ab1, cd1);
    out[3] = _mm512_unpackhi_epi16(ab1, cd1);
}

#endif
