/* Family "transform": coefficients of a transform of each head, coded in one
 * bitstream per token for all KV heads (kernels/trellis/trellis.h).
 *
 *   x = mean + sum_j scale_j table_j[state_j] inverse_j      [head_dim]
 *
 * state_j: the KV_TRELLIS_BITS bits of the bitstream that end with the
 * coefficient's own; zeros precede the bitstream.  States reach back into bits
 * of other heads, so a tile holds all heads, byte by byte:
 *
 *   | 64 zeros | byte 0 of 64 tokens | byte 1 of 64 tokens | ... | last byte |
 *
 * A line of 64 bytes has token 16 k + 4 l + i (k, l, i < 4) at place 16 l + 4 k
 * + i, so that bytes of four lines, interleaved to words of 32 bits, are in the
 * order of tokens.
 *
 * Values, and keys after RoPE, stay coefficients: queries are transformed once
 * and outputs once; the mean is one more coefficient, always 1.  Keys before
 * RoPE are transformed back into channels, which are then rotated.  int8: a
 * table's numbers are rounded to 8 bits with one scale per table; queries
 * (before RoPE each channel's part of the inverse) are rounded with one scale
 * per row. */
#ifndef KV_TRANSFORM_H
#define KV_TRANSFORM_H

#include "kernels/tiles/tiles.h"

#include <stdbool.h>

struct kv_tiles_rope;
struct kv_trellis_map;
struct kv_transform;

/* One coefficient of a head. */
struct kv_transform_coef {
    size_t end;                       /* position of its bits in the bitstream,
                                       * min 1 */
    const float *table;               /* [KV_TRELLIS_STATES], kept */
    const struct kv_trellis_map *map; /* kept; states of one entry are equal */
    float scale;
    const float *inverse; /* [head_dim]; read by kv_transform_new() alone */
};

/* Heads of one store.  coef: n[0] of head 0, then n[1] of head 1, ...,
 * KV_TRANSFORM_COEFS each at most.  mean: [n_heads][head_dim].  rope: rotates
 * the keys; it is kept, and head_dim must be even; NULL: keys after RoPE, or
 * values.  int8: whether that path exists; it needs RoPE that pairs a whole
 * head's halves. */
struct kv_transform_about {
    size_t n_heads, head_dim, bitstream_bytes;
    const size_t *n;
    const struct kv_transform_coef *coef;
    const float *mean;
    const struct kv_tiles_rope *rope;
    bool values, int8;
};

enum { KV_TRANSFORM_COEFS = 1024 };

struct kv_transform *kv_transform_new(const struct kv_transform_about *a);
void kv_transform_free(struct kv_transform *c); /* NULL is fine */

extern const struct kv_family kv_family_transform;

/* Makes s a store of c; s's values, n_heads and head_dim must be set. */
void kv_store_transform(struct kv_store *s, const struct kv_transform *c);

/* Puts one token's bitstream at index t of a tile. */
void kv_store_put_bitstream(const struct kv_store *s, size_t t,
                            const uint8_t *bitstream, uint8_t *tile);

#endif
