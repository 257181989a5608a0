/* Look-ups of tables by states.  With AVX512-VBMI a table of 64 bytes is one
 * instruction, one of 256 four: under masks, of which each keeps what those
 * before it have found; or two of 128 bytes, where these are as fast
 * (kv_level_pairs()).  A gather costs more, up to ten times. */
#include "kernels/level.h"
#include "kernels/tiles_coef_vnni.h"

enum { TILES_AHEAD = 4 }; /* from what is looked up to what is prefetched */

ALWAYS_INLINE __m512i line(const uint8_t *tile, const struct kv_coef_place *p,
                           size_t i)
{
    return _mm512_load_si512(tile + p->line[i]);
}

/* Bit i of each byte.  A test of the bit would be one instruction, but of the
 * unit that looks tables up, the busiest one. */
ALWAYS_INLINE __mmask64 bit(__m512i x, unsigned i)
{
    if (i == 7)
        return _mm512_movepi8_mask(x);
    if (i == 6)
        return _mm512_movepi8_mask(_mm512_add_epi8(x, x));
    return _mm512_movepi8_mask(_mm512_slli_epi16(x, 7 - i));
}

/* The low seven bits of each token's state as they stand, turned. */
ALWAYS_INLINE __m512i low_seven(__m512i last, __m512i before, unsigned shift)
{
    const __m512i below = _mm512_set1_epi8((char)((1 << shift) - 1));

    return !shift       ? last
           : shift == 7 ? before
                        : _mm512_ternarylogic_epi32(before, last, below, 0xe4);
}

/* The bytes with their signs turned by the state's first bit. */
ALWAYS_INLINE __m512i signed_by(__m512i before, unsigned shift,
                                enum kv_coef_sign sign, __m512i x)
{
    switch (sign) {
    case KV_SIGN_CODE: /* 128 + n to 128 - n */
        return _mm512_mask_sub_epi8(x, bit(before, shift),
                                    _mm512_setzero_si512(), x);
    case KV_SIGN_FLOAT:
        return _mm512_mask_add_epi8(x, bit(before, shift), x,
                                    _mm512_set1_epi8((char)128));
    case KV_SIGN_NONE:
        break;
    }
    return x;
}

/* The table at the last eight bits of each token's state, t: the shift's order.
 * Six are looked up, two choose. */
ALWAYS_INLINE __m512i look(const __m512i *t, const uint8_t *tile,
                           const struct kv_coef_place *p, unsigned shift,
                           enum kv_coef_sign sign)
{
    const __m512i last = line(tile, p, 0), before = line(tile, p, 1);
    const __m512i at = low_seven(last, before, shift);
    const __mmask64 by0 = bit(at, 6), by1 = bit(last, 7);
    const __mmask64 both = _kand_mask64(by0, by1);
    __m512i x = _mm512_permutexvar_epi8(at, t[0]);

    x = _mm512_mask_permutexvar_epi8(x, by0, at, t[1]);
    x = _mm512_mask_permutexvar_epi8(x, by1, at, t[2]);
    x = _mm512_mask_permutexvar_epi8(x, both, at, t[3]);
    return signed_by(before, shift, sign, x);
}
_Static_assert(KV_TRELLIS_HALF == 4 * LINE, "four lines of a table");

/* The same where two lines are looked up at the price of one: seven bits. */
ALWAYS_INLINE __m512i look_pairs(const __m512i *t, const uint8_t *tile,
                                 const struct kv_coef_place *p, unsigned shift,
                                 enum kv_coef_sign sign)
{
    const __m512i last = line(tile, p, 0), before = line(tile, p, 1);
    const __m512i at = low_seven(last, before, shift);

    return signed_by(
        before, shift, sign,
        _mm512_mask_blend_epi8(bit(last, 7),
                               _mm512_permutex2var_epi8(t[0], at, t[1]),
                               _mm512_permutex2var_epi8(t[2], at, t[3])));
}

/* The same where 7 bits count, of the table's own order. */
ALWAYS_INLINE __m512i look_small(const __m512i *t, const uint8_t *tile,
                                 const struct kv_coef_place *p, unsigned shift)
{
    __m512i at = line(tile, p, 0);

    if (shift)
        at = _mm512_srli_epi16(at, shift);
    if (shift > 1)
        at = _mm512_ternarylogic_epi32(
            _mm512_set1_epi8((char)(0xff >> shift)), at,
            _mm512_slli_epi16(line(tile, p, 1), 8 - shift), 0xca);
    return _mm512_permutex2var_epi8(t[0], at, t[1]);
}

enum how { SMALL, FOURS, PAIRS }; /* look_small, look, look_pairs */

/* Coefficients [from, to) of a run, which end alike: out lines, `apart` bytes
 * apart.  What a later tile has at their places is on its way then: little by
 * little, as memory likes it.  how, sign and
 * shift: constants. */
ALWAYS_INLINE void look_up_some(const struct kv_store *s,
                                const struct kv_coef_place *place,
                                const uint8_t *table, const uint8_t *tile,
                                size_t from, size_t to, uint8_t *out,
                                size_t apart, enum how how,
                                enum kv_coef_sign sign, unsigned shift)
{
    const size_t lines = how == SMALL ? 2 : KV_TRELLIS_HALF / LINE;
    const uint8_t *t_from =
        table + (how == SMALL ? 0 : shift) * KV_TRELLIS_STATES;
    const uint8_t *later = tile + TILES_AHEAD * s->tile_bytes;
    __m512i t[KV_TRELLIS_HALF / LINE];

    UNROLL
    for (size_t j = 0; j < lines; j++)
        t[j] = _mm512_load_si512(t_from + LINE * j);
    for (size_t i = from; i < to; i++, out += apart) {
        __builtin_prefetch(later + place[i].line[0], 0, 2);
        _mm512_store_si512(
            out, how == SMALL   ? look_small(t, tile, place + i, shift)
                 : how == PAIRS ? look_pairs(t, tile, place + i, shift, sign)
                                : look(t, tile, place + i, shift, sign));
    }
}

void kv_coef_look_up_vnni(const struct kv_store *s, size_t head,
                          const struct kv_coef_run *run, const uint8_t *table,
                          enum kv_coef_sign sign, const uint8_t *tile,
                          size_t from, size_t to, uint8_t *out, size_t apart)
{
    const struct kv_coef_place *place =
        kv_coefs_of(s)->head[head].place + run->first;
    const enum how how = run->table->bits < KV_TRELLIS_BITS - 1 ? SMALL
                         : kv_level_pairs()                     ? PAIRS
                                                                : FOURS;
    const enum kv_coef_sign by =
        run->table->bits == KV_TRELLIS_BITS ? sign : KV_SIGN_NONE;

    for (unsigned shift = 0; shift < 8; shift++) {
        const size_t *at = run->shift + shift;
        const size_t i = from > at[0] ? from : at[0];
        const size_t end = to < at[1] ? to : at[1];

        if (i >= end)
            continue;
        switch ((shift * 3 + how) * 3 + by) {
#define CASE(SHIFT, HOW, SIGN)                                                \
    case (SHIFT * 3 + HOW) * 3 + SIGN:                                        \
        look_up_some(s, place, table, tile, i, end, out + (i - from) * apart, \
                     apart, HOW, SIGN, SHIFT);                                \
        break;
#define SIGNS(SHIFT, HOW)          \
    CASE(SHIFT, HOW, KV_SIGN_NONE) \
    CASE(SHIFT, HOW, KV_SIGN_CODE) \
    CASE(SHIFT, HOW, KV_SIGN_FLOAT)
#define CASES(SHIFT)                 \
    CASE(SHIFT, SMALL, KV_SIGN_NONE) \
    SIGNS(SHIFT, FOURS)              \
    SIGNS(SHIFT, PAIRS)
#define EVERY_SHIFT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
            EVERY_SHIFT(CASES)
#undef EVERY_SHIFT
#undef CASES
#undef SIGNS
#undef CASE
        }
    }
}
