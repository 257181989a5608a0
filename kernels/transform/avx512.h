/* What tiles_coef_*_vnni.c share: AVX-512 with VNNI and VBMI.  For these files
 * alone. */
#ifndef KV_TRANSFORM_AVX512_H
#define KV_TRANSFORM_AVX512_H

#include "kernels/simd/unroll.h"
#include "kernels/tiles/impl.h"
#include "kernels/transform/impl.h"

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

/* How the two bytes that a state reaches into make an entry's number. */
struct kv_transform_matrices {
    __m512i last, before;
};

ALWAYS_INLINE struct kv_transform_matrices
matrices_of(const struct kv_transform_table *t, unsigned shift)
{
    return (struct kv_transform_matrices){
        .last = _mm512_set1_epi64((int64_t)t->last[shift]),
        .before = _mm512_set1_epi64((int64_t)t->before[shift])};
}

/* The entries of a tile's tokens, a byte each; last: the line of the bytes that
 * states end in. */
ALWAYS_INLINE __m512i entries_of(struct kv_transform_matrices m,
                                 const uint8_t *last)
{
    return _mm512_xor_si512(
        _mm512_gf2p8affine_epi64_epi8(_mm512_load_si512(last), m.last, 0),
        _mm512_gf2p8affine_epi64_epi8(_mm512_load_si512(last - LINE), m.before,
                                      0));
}

/* Tables of up to 128 bytes fill two lines, wide ones four. */
ALWAYS_INLINE bool is_wide(const struct kv_transform_table *t)
{
    return t->map->bits > 7;
}

/* The bytes of entries.  wide: a constant.  A pv costs far more. */
ALWAYS_INLINE __m512i look(const __m512i *t, __m512i entry, bool wide)
{
    const __m512i x = _mm512_permutex2var_epi8(t[0], entry, t[1]);

    if (!wide)
        return x;
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(entry), x,
                                  _mm512_permutex2var_epi8(t[2], entry, t[3]));
}
_Static_assert(KV_TRELLIS_ENTRIES == 4 * LINE, "four lines of a table");

/* The codes of a run's coefficients for the states of a tile's tokens: a line
 * of bytes each, one behind the other, 64-byte aligned. */
void kv_transform_codes_vnni(const struct kv_store *s, size_t head,
                             const struct kv_transform_run *run,
                             const uint8_t *tile, uint8_t *codes);

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
