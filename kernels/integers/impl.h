/* Family "integers": sizes of a tile (layout.c draws it), and the operations of
 * one level; for this folder and its test alone. */
#ifndef KV_INTEGERS_IMPL_H
#define KV_INTEGERS_IMPL_H

#include "kernels/tiles/tiles.h"

#include <string.h>

enum {
    KV_LANES = 16, /* lanes of a block */
    KV_UNIT = 32,  /* inner values of a unit */
    KV_UNIT_QUADS = KV_UNIT / 4,
    KV_PLANE = 64, /* bytes of a vector */
    KV_MAX_DIM = 512,
    KV_COARSE_BITS = 5, /* most bits of codes that are multiplied with w in 8
                         * bits; for more bits w has 15 */
    KV_FINE_BASE = 127  /* base of the two digits of w in 15 bits; w is at most
                         * its square */
};

/* The bytes of a head's offset. */
static inline size_t kv_offset_bytes(const struct kv_integers *g)
{
    return g->offset == KV_OFFSET_LOW ? 2 : g->offset == KV_OFFSET_ZERO ? 4 : 0;
}

/* The number of heads in one run. */
static inline size_t kv_integers_width(const struct kv_integers *g)
{
    return g->folded ? g->inner : g->lanes;
}

/* The number of inner indices of an unfolded run. */
static inline size_t kv_integers_run(const struct kv_integers *g, size_t run)
{
    return kv_min(g->run, g->inner - run * g->run);
}

static inline size_t kv_integers_block_bytes(const struct kv_integers *g)
{
    return g->inner / KV_UNIT * g->bits * KV_PLANE;
}

static inline const struct kv_integers *
kv_integers_params(const struct kv_store *s)
{
    return s->params;
}

/* The first tile of the unit, which holds the unit's heads. */
static inline const uint8_t *kv_integers_first(const struct kv_store *s,
                                               size_t head, const uint8_t *tile)
{
    const size_t span = kv_integers_params(s)->span;

    if (span == 1) /* a store that may lack tiles of its own */
        return tile;
    return tile -
           (size_t)(tile - kv_store_tile(s, head, 0)) % (span * s->tile_bytes);
}

/* The whole table of heads of a tile: in the tile itself, or assembled in
 * `copy` from the tiles that share it. */
enum { KV_MAX_HEADS = KV_MAX_DIM * 6 }; /* bytes */
static inline const uint8_t *kv_integers_heads(const struct kv_store *s,
                                               size_t head, const uint8_t *tile,
                                               uint8_t *copy)
{
    const struct kv_integers *g = kv_integers_params(s);
    const uint8_t *first = kv_integers_first(s, head, tile);
    const size_t table = kv_integers_width(g) * (2 + kv_offset_bytes(g));

    if (g->span == 1)
        return tile;
    for (size_t i = 0, at = 0; at < table; i++, at += g->head_bytes)
        memcpy(copy + at, first + i * s->tile_bytes,
               table - at < g->head_bytes ? table - at : g->head_bytes);
    return copy;
}

/* The operations at one level. */
struct kv_integers_table {
    void (*expand)(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x);
    struct kv_tile_ops exact, int8; /* only for runs of whole units */
};

extern const struct kv_integers_table kv_integers_table_c;
extern const struct kv_integers_table kv_integers_table_avx2; /* x86-64 only */
extern const struct kv_integers_table kv_integers_table_vnni; /* x86-64 only */

#endif
