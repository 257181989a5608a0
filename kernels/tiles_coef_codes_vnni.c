/* Look-ups of codes: coefficients that end alike, one after another, by a table
 * in the order of where they end. */
#include "kernels/level.h"
#include "kernels/tiles_coef_vnni.h"

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

/* Where 7 bits count, of the table's own order. */
ALWAYS_INLINE __m512i look_small(const __m512i *t, __m512i last, __m512i before,
                                 unsigned shift)
{
    __m512i at = last;

    if (shift)
        at = _mm512_srli_epi16(at, shift);
    if (shift > 1)
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)(0xff >> shift)),
                                       at, _mm512_slli_epi16(before, 8 - shift),
                                       0xca);
    return _mm512_permutex2var_epi8(t[0], at, t[1]);
}

/* Seven bits count; or eight; or nine, of which the first turns the sign. */
enum how { SEVEN, EIGHT, NINE };

/* Coefficients [from, to) of a run, which end alike.  What a later tile has at
 * their places is on its way then: little by little, as memory likes it.  how,
 * pairs and shift: constants. */
ALWAYS_INLINE void look_up_some(const struct kv_store *s,
                                const struct kv_coef_place *place,
                                const uint8_t *code, const uint8_t *tile,
                                size_t from, size_t to, uint8_t *out,
                                enum how how, bool pairs, unsigned shift)
{
    const size_t lines = how == SEVEN ? 2 : KV_TRELLIS_HALF / LINE;
    const uint8_t *later = tile + TILES_AHEAD * s->tile_bytes;
    __m512i t[KV_TRELLIS_HALF / LINE];

    if (how != SEVEN)
        code += shift * KV_TRELLIS_STATES;
    UNROLL
    for (size_t j = 0; j < lines; j++)
        t[j] = _mm512_load_si512(code + LINE * j);
    for (size_t i = from; i < to; i++) {
        const size_t at = place[i].line;
        const __m512i last = _mm512_load_si512(tile + at);
        const __m512i before = _mm512_load_si512(tile + at - LINE);
        __m512i x;

        __builtin_prefetch(later + at, 0, 2);
        if (how == SEVEN)
            x = look_small(t, last, before, shift);
        else
            x = look(t, index_of(low_seven(last, before, shift), bit(last, 7)),
                     pairs);
        if (how == NINE) /* 128 + n to 128 - n */
            x = _mm512_mask_sub_epi8(x, bit(before, shift),
                                     _mm512_setzero_si512(), x);
        _mm512_store_si512(out + i * LINE, x);
    }
}

void kv_coef_codes_vnni(const struct kv_store *s, size_t head,
                        const struct kv_coef_run *run, const uint8_t *tile,
                        uint8_t *codes)
{
    const struct kv_coef_place *place =
        kv_coefs_of(s)->head[head].place + run->first;
    const unsigned bits = run->table->bits;
    const bool pairs = kv_level_pairs();
    const enum how how = bits == KV_TRELLIS_BITS       ? NINE
                         : bits == KV_TRELLIS_BITS - 1 ? EIGHT
                                                       : SEVEN;

    for (unsigned shift = 0; shift < 8; shift++) {
        const size_t from = run->shift[shift], to = run->shift[shift + 1];

        if (from == to)
            continue;
        switch (shift * 8 + how * 2 + pairs) {
#define CASE(SHIFT, HOW, PAIRS)                                              \
    case SHIFT * 8 + HOW * 2 + PAIRS:                                        \
        look_up_some(s, place, run->table->code, tile, from, to, codes, HOW, \
                     PAIRS, SHIFT);                                          \
        break;
#define CASES(SHIFT)      \
    CASE(SHIFT, SEVEN, 0) \
    CASE(SHIFT, SEVEN, 1) \
    CASE(SHIFT, EIGHT, 0) \
    CASE(SHIFT, EIGHT, 1) \
    CASE(SHIFT, NINE, 0)  \
    CASE(SHIFT, NINE, 1)
#define EVERY_SHIFT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
            EVERY_SHIFT(CASES)
#undef EVERY_SHIFT
#undef CASES
#undef CASE
        }
    }
}
