/* Family "levels": codes for values between two thresholds; values beyond the
 * thresholds, the outliers, are stored separately.
 *
 *   x = offset + half level[code], or the outlier's value
 *
 * offset and half are per channel (keys, which RoPE rotates after dequantizing)
 * or per token (values).  A tile is one of family "scaled", with half as the
 * one scale of a token's values, and behind it
 *
 *   | values: offset f16 [64] | struct kv_levels_outliers *, in 64 bytes |
 *
 * Each tile owns its outliers; their number differs from tile to tile. */
#ifndef KV_LEVELS_H
#define KV_LEVELS_H

#include "kernels/scaled/scaled.h"
#include "kernels/tiles/rope.h"

struct kv_levels_tiles {
    struct kv_scaled scaled; /* must come first: it is also the params of its
                              * store */
    /* For keys only, [n_heads][head_dim]; the caller keeps them alive. */
    const float *offset, *half;
    const struct kv_tiles_rope *rope;
};

/* One outlier: of token place / 512 of the tile, channel place % 512. */
struct kv_levels_outlier {
    uint16_t place, value; /* f16 */
};

enum {
    KV_LEVELS_CHANNELS = 512,
    KV_LEVELS_OFFSETS = 2 * KV_TILE_TOKENS, /* bytes */
    KV_LEVELS_LINE = 64                     /* bytes at a tile's end */
};

/* [n] outliers, tokens ascending; the first `first` are in the tile's first
 * part. */
struct kv_levels_outliers {
    size_t n, first;
    struct kv_levels_outlier x[];
};

/* 2 to 4 bits.  level: [2^bits].  Returns false if these codes have no tiles.
 * For keys, the caller sets offset, half and rope. */
bool kv_levels_tiles_init(struct kv_levels_tiles *n, int values, unsigned bits,
                          const float *level, size_t head_dim);

extern const struct kv_family kv_family_levels;

/* Makes s a store of these codes; s's values, n_heads and head_dim must be
 * set. */
void kv_store_levels(struct kv_store *s, const struct kv_levels_tiles *n);

/* Writes one token at index t.  code: [head_dim], 0 for outliers; range: offset
 * and half (f16) of values, NULL for keys. */
void kv_store_put_levels(const struct kv_store *s, size_t t,
                         const uint16_t *code, const uint16_t *range,
                         uint8_t *tile);

/* Gives a tile without outliers its n outliers, which are copied, in ascending
 * order of tokens. */
void kv_store_put_outliers(const struct kv_store *s,
                           const struct kv_levels_outlier *x, size_t n,
                           uint8_t *tile);
/* Returns NULL if the tile has no outliers. */
struct kv_levels_outliers *kv_store_outliers(const struct kv_store *s,
                                             const uint8_t *tile);

#endif
