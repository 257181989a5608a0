/* Family "hack": codes whose products are corrected, not dequantized
 * (kernels/hack/hack.h), in the tiles of family "integers": keys' ranges are
 * groups of channels of a token, values' of tokens of a channel, minima the
 * offsets.
 *
 * The scheme's own attention reads its blocks and is the definition.  That of
 * these tiles is the integers', of the same codes: exact, which multiplies with
 * queries and weights as they are, and int8, which rounds them to nearest. */
#ifndef KV_HACK_LAYOUT_H
#define KV_HACK_LAYOUT_H

#include "kernels/tiles/tiles.h"

#include <stdbool.h>

struct kv_tile_hack {
    struct kv_integers codes; /* first: also a store of these has it */
    unsigned q_bits;          /* of the other operand's code */
    size_t part;              /* values': divides 128 */
    bool stochastic;          /* rounding of the other operand */
    size_t layer;             /* for the random numbers */
};

extern const struct kv_family kv_family_hack;

/* Makes s, whose values, n_heads and head_dim are set, a store of h, which the
 * caller keeps. */
void kv_store_hack(struct kv_store *s, const struct kv_tile_hack *h);

#endif
