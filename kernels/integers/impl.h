/* The loops of family "grouped" as compiled for one instruction set; for
 * tiles_grouped*.c and the tests alone. */
#ifndef KV_INTEGERS_IMPL_H
#define KV_INTEGERS_IMPL_H

#include "kernels/tiles/tiles.h"

enum {
    KV_LANES = 16, /* of a block */
    KV_UNIT = 32,  /* inner values of a unit */
    KV_UNIT_QUADS = KV_UNIT / 4,
    KV_PLANE = 64, /* bytes of a vector */
    KV_MOST_DIM = 512
};

/* Bytes of a head's offset. */
static inline size_t kv_offset_bytes(const struct kv_integers *g)
{
    return g->offset == KV_OFFSET_LOW ? 2 : g->offset == KV_OFFSET_ZERO ? 4 : 0;
}

/* Heads in one run. */
static inline size_t kv_integers_width(const struct kv_integers *g)
{
    return g->folded ? g->inner : g->lanes;
}

static inline size_t kv_integers_block_bytes(const struct kv_integers *g)
{
    return g->inner / KV_UNIT * g->bits * KV_PLANE;
}

/* The table of heads that a tile belongs to, whole: in the tile, or put
 * together in `copy` of the tiles that share it. */
enum { KV_HEADS_MOST = KV_MOST_DIM * 6 };
const uint8_t *kv_integers_heads(const struct kv_store *s, size_t head,
                                 const uint8_t *tile, uint8_t *copy);

/* The first tile of those that share its table. */
const uint8_t *kv_integers_first(const struct kv_store *s, size_t head,
                                 const uint8_t *tile);

struct kv_integers_loops {
    void (*expand)(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x);
    struct kv_tile_ops exact, int8; /* runs of whole units */
};

extern const struct kv_integers_loops kv_integers_loops_c;
extern const struct kv_integers_loops kv_integers_loops_avx2; /* x86-64 only */
extern const struct kv_integers_loops kv_integers_loops_vnni; /* x86-64 only */

#endif
