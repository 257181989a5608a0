/* Family "hack": codes whose products are corrected, not dequantized
 * (kernels/hack/hack.h), in the tiles of family "integers".  A range of keys is
 * a group of a token's channels, a range of values a group of a channel's
 * tokens; minima are the offsets.
 *
 * The scheme's own attention reads its blocks and is the definition.  On the
 * tiles, family "integers" attends to the same codes: path exact multiplies
 * them with unrounded queries and weights, path int8 rounds both to nearest. */
#ifndef KV_HACK_LAYOUT_H
#define KV_HACK_LAYOUT_H

#include "kernels/tiles/tiles.h"

#include <stdbool.h>

struct kv_tile_hack {
    struct kv_integers codes; /* first member, so that a store of integers can
                               * use it */
    unsigned q_bits;          /* bits of the other operand's code */
    size_t part;              /* partition of values; divides 128 */
    bool stochastic;          /* rounding of the other operand */
    size_t layer;             /* for the random numbers */
};

extern const struct kv_family kv_family_hack;

/* Makes s a store of h, which the caller keeps; s's values, n_heads and
 * head_dim must be set. */
void kv_store_hack(struct kv_store *s, const struct kv_tile_hack *h);

#endif
