/* Family "scaled": codes that stand for numbers of a table or for small floats
 * (kernels/scaled/minifloat.h), times a scale for each token and group of
 * channels.
 *
 *   x = value[code] scale
 *
 * A tile, in vectors of 16 lanes:
 *
 *   | tokens 0-31: planes | tokens 32-63: planes | scales: [groups][64] |
 *
 * The vectors of a part of 32 tokens: keys, tokens 0-15 of channel 0, tokens
 * 16-31 of channel 0, of channel 1, ...; values, channels 0-15 of token 0, of
 * token 1, ..., of token 31, then channels 16-31.  A plane of w bits puts as
 * many vectors as fit one after another into a unit of 16 lanes, vector i at
 * bit w i of each lane, the last unit filled up with zeros.  In lanes of 32
 * bits, codes of 1, 2 and 4 bits are one plane, and 3-bit codes are two: the
 * low 2 bits, then the high bit.  In lanes of 16 bits, codes of 8 bits are one
 * plane, and 6-bit codes are two: the low 4 bits, then the high 2.  Scales are
 * as the scheme stores them.  Codes of 1 to 4 bits have a path int8
 * (kernels/scaled/int8_loops.h). */
#ifndef KV_SCALED_H
#define KV_SCALED_H

#include "kernels/scaled/minifloat.h"
#include "kernels/tiles/tiles.h"

#include <stdbool.h>

enum kv_scale_kind {
    KV_SCALE_NONE, /* 1, nothing stored */
    KV_SCALE_F16,  /* half / divisor */
    KV_SCALE_E8M0, /* byte p for 2^(p - 127) */
    KV_SCALE_E4M3  /* kv_e4m3 */
};

enum { KV_SCALED_TABLE = 16 };

struct kv_scaled {
    unsigned bits;
    float table[KV_SCALED_TABLE]; /* 1 to 4 bits: the table, repeated */
    int8_t near[KV_SCALED_TABLE]; /* the table in 8 bits, in multiples of
                                   * unit */
    float unit;
    uint8_t order[KV_TILE_TOKENS]; /* order of weights:
                                    * kernels/scaled/int8_loops.h */
    const struct kv_minifloat *format; /* 6 and 8 bits */
    enum kv_scale_kind scale;
    float divisor;
    size_t group; /* channels: head_dim, or a divisor of it and a multiple of
                   * 16 */
};

/* Initializes codes for a table of 2^bits values, 1 to 4 bits, or for a small
 * float (format), 1 to 4, 6 or 8 bits.  Returns false if there are no such
 * tiles. */
bool kv_scaled_init(struct kv_scaled *c, unsigned bits, const float *table,
                    const struct kv_minifloat *format, enum kv_scale_kind scale,
                    float divisor, size_t head_dim, size_t group);

extern const struct kv_family kv_family_scaled;

/* Makes s a store of these codes; s's values, n_heads and head_dim must be
 * set. */
void kv_store_scaled(struct kv_store *s, const struct kv_scaled *c);

/* Puts one token at index t: code [head_dim], scale [groups], as stored; NULL
 * if there are none. */
void kv_store_put_scaled(const struct kv_store *s, size_t t,
                         const uint16_t *code, const uint8_t *scale,
                         uint8_t *tile);

/* Reads a token back: code [head_dim], scale [groups] as numbers, for
 * KV_SCALE_F16 before the division. */
void kv_store_get_scaled(const struct kv_store *s, size_t t,
                         const uint8_t *tile, uint16_t *code, float *scale);

#endif
