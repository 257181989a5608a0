/* Look-ups of codes: coefficients that end alike, one after another. */
#include "kernels/transform/avx512.h"

/* Coefficients [from, to) of a run, which end `shift` bits before a byte's end.
 * What a later tile has at their places is on its way then: little by little,
 * as memory likes it.  wide: a constant. */
ALWAYS_INLINE void look_up_some(const struct kv_store *s,
                                const struct kv_transform_place *place,
                                const struct kv_transform_table *table,
                                unsigned shift, const uint8_t *tile,
                                size_t from, size_t to, uint8_t *out, bool wide)
{
    const struct kv_transform_matrices m = matrices_of(table, shift);
    const uint8_t *later = tile + TILES_AHEAD * s->tile_bytes;
    const size_t lines = wide ? 4 : 2;
    __m512i t[4];

    UNROLL
    for (size_t j = 0; j < lines; j++)
        t[j] = _mm512_load_si512(table->code + LINE * j);
    for (size_t i = from; i < to; i++) {
        const size_t at = place[i].line;

        __builtin_prefetch(later + at, 0, 2);
        _mm512_store_si512(out + i * LINE,
                           look(t, entries_of(m, tile + at), wide));
    }
}

void kv_transform_codes_vnni(const struct kv_store *s, size_t head,
                             const struct kv_transform_run *run,
                             const uint8_t *tile, uint8_t *codes)
{
    const struct kv_transform_table *table = run->table;
    const struct kv_transform_place *place =
        kv_transform_of(s)->head[head].place + run->first;

    for (unsigned i = 0; i < 8; i++) {
        const size_t from = run->shift[i], to = run->shift[i + 1];

        if (from == to)
            continue;
        if (is_wide(table))
            look_up_some(s, place, table, i, tile, from, to, codes, true);
        else
            look_up_some(s, place, table, i, tile, from, to, codes, false);
    }
}
