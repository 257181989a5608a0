/* Family "rotated": keys before RoPE as integers in groups along a token's
 * whole row of all KV heads; the row was rotated by Hadamard transforms over
 * several heads and reordered.
 *
 * A tile is one of family "integers" of a single head that is as wide as the
 * row; every KV head reads it. */
#ifndef KV_TILES_ROTATED_H
#define KV_TILES_ROTATED_H

#include "kernels/tiles/tiles.h"

#include <stdbool.h>

struct kv_tiles_rope;

/* The params of a store; the caller sets all fields; row: as kv_integers_init()
 * initializes it for keys of this width. */
struct kv_rotated_tiles {
    struct kv_integers row;
    size_t rotated; /* channels of a transform; divides the row, and is divided
                     * by head_dim */
    bool after;     /* reordered after the transform, else before it */
    const size_t *place; /* [n_heads * head_dim]: a channel's index in the row
                          * of codes */
    const struct kv_tiles_rope *rope;
};

extern const struct kv_family kv_family_rotated;

/* Makes s a store of these codes; s's n_heads and head_dim must be set. */
void kv_store_rotated(struct kv_store *s, const struct kv_rotated_tiles *r);

/* A store of family "integers", without tiles, whose one head is the row of all
 * heads. */
struct kv_store kv_rotated_row(const struct kv_store *s);

#endif
