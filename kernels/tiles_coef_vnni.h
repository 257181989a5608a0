/* What tiles_coef_*_vnni.c share: AVX-512 with VNNI and VBMI.  For these files
 * alone. */
#ifndef KV_TILES_COEF_VNNI_H
#define KV_TILES_COEF_VNNI_H

#include "kernels/tiles_coef_impl.h"
#include "kernels/tiles_impl.h"
#include "kernels/unroll.h"

#include <immintrin.h>
#include <string.h>

enum { LINE = KV_TILE_TOKENS, ROWS = KV_TILE_ROWS };

#define EVERY_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
_Static_assert(ROWS == 8, "EVERY_ROWS");

/* What a state's first bit does to the byte in a table of all bits: nothing, or
 * it turns the sign of a code, or that of a float in its last byte. */
enum kv_coef_sign { KV_SIGN_NONE, KV_SIGN_CODE, KV_SIGN_FLOAT };

/* Coefficients [from, to) of a run of this head, each byte what a table of it
 * (plane or code of struct kv_coef_table) has for a token's state: out lines,
 * `apart` bytes apart, 64-byte aligned. */
void kv_coef_look_up_vnni(const struct kv_store *s, size_t head,
                          const struct kv_coef_run *run, const uint8_t *table,
                          enum kv_coef_sign sign, const uint8_t *tile,
                          size_t from, size_t to, uint8_t *out, size_t apart);

/* Four lines of bytes to one of words of 32 bits for each 16 tokens. */
ALWAYS_INLINE void weave(const uint8_t *from, __m512i out[4])
{
    const __m512i a = _mm512_load_si512(from);
    const __m512i b = _mm512_load_si512(from + LINE);
    const __m512i c = _mm512_load_si512(from + 2 * LINE);
    const __m512i d = _mm512_load_si512(from + 3 * LINE);
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
