/* Family "hack": codes whose products are corrected, not dequantized
 * (kernels/hack/hack.h).  On the CPU the scheme attends to its blocks itself;
 * these tiles hold the same codes for conversion to another order.
 *
 * 64 tokens of one KV head:
 *
 *   | codes: [64][head_dim] bytes | scales f16 [n_ranges] | minima f16 [..] |
 *
 * A range is `part` consecutive channels of a token, the last of which may have
 * fewer (keys: range token * parts + channel / part), or `part` consecutive
 * tokens of a channel (values: range (token / part) * head_dim + channel; where
 * part is more than 64 each tile has them all).  Filled up to 64 bytes. */
#ifndef KV_HACK_LAYOUT_H
#define KV_HACK_LAYOUT_H

#include "kernels/tiles/tiles.h"

#include <stdbool.h>

struct kv_tile_hack {
    unsigned bits, q_bits; /* of a code; of the other operand's code */
    size_t part;           /* values': divides 128 */
    bool stochastic;       /* rounding of the other operand */
    size_t layer;          /* for the random numbers */
};

/* It has no operations on the CPU: kv_store_has() is false of both paths. */
extern const struct kv_family kv_family_hack;

/* Makes s, whose values, n_heads and head_dim are set, a store of h, which the
 * caller keeps. */
void kv_store_hack(struct kv_store *s, const struct kv_tile_hack *h);

/* Where token t's codes, and the range of its channel c, are in a tile. */
uint8_t *kv_store_hack_codes(const struct kv_store *s, uint8_t *tile, size_t t);
size_t kv_store_hack_range(const struct kv_store *s, size_t t, size_t c);

void kv_store_put_range(const struct kv_store *s, size_t range, uint16_t scale,
                        uint16_t min, uint8_t *tile);
void kv_store_get_range(const struct kv_store *s, const uint8_t *tile,
                        size_t range, uint16_t *scale, uint16_t *min);

#endif
