/* Path int8 of family "scaled", for codes of 1 to 4 bits; for tiles_scaled*.c
 * alone.
 *
 * A table is rounded to 8 bits, value[code] ~ unit near[code]; so are queries,
 * by groups of channels, and weights times scales, of a group and a tile's 64
 * tokens:
 *
 *   score_t  = sum over groups: scale_t (u unit) sum over channels: q8 near
 *   acc_c   += (u unit) sum over tokens: w8 near
 *
 * u being the unit of q8 or w8.
 *
 * The codes of four bytes come out of a lane of 32 bits together: of a unit of
 * a plane, `fields` codes a byte, byte j's field f is vector fields j + f
 * (tiles_scaled.h).  What they are multiplied with, four numbers of 8 bits, is
 * a quad: of keys, whose vectors 2 c and 2 c + 1 are channel c, quad k of a
 * unit has channels (fields / 2) j + k; of values, quad f has tokens fields j +
 * f: byte i of a tile's quads is token order[i]. */
#ifndef KV_SCALED_INT8_H
#define KV_SCALED_INT8_H

#include "kernels/scaled/impl.h"

static inline size_t kv_scaled_fields(unsigned bits)
{
    return 8 / kv_scaled_width(bits, 0);
}

static inline size_t kv_scaled_groups(const struct kv_store *s)
{
    return s->head_dim / kv_scaled_of(s)->group;
}

/* Queries, rounded.  bias: -128 times the sum of a group's codes, for who adds
 * 128 to what the table has. */
struct kv_scaled_query {
    float *factor; /* [groups][KV_TILE_ROWS] */
    int32_t *bias; /* the same */
    int8_t *code;  /* [quads][rows][4] */
};
struct kv_scaled_query kv_scaled_query_at(const struct kv_store *s,
                                          const void *query);

/* Which quad, and byte of it, meets channel c of keys. */
static inline size_t kv_scaled_quad(unsigned bits, size_t c, size_t *byte)
{
    const size_t half = kv_scaled_fields(bits) / 2, in = c % (4 * half);

    *byte = in / half;
    return c / (4 * half) * half + in % half;
}

/* scale: [groups][64], as values are multiplied with. */
void kv_scaled_scales(const struct kv_store *s, const uint8_t *tile,
                      float *scale);

struct kv_scaled_int8 {
    void (*qk)(const struct kv_store *s, const uint8_t *tile,
               struct kv_scaled_query q, const float *scale, size_t rows,
               float *score, size_t stride);
    void (*pv)(const struct kv_store *s, const uint8_t *tile,
               const float *scale, const float *p, size_t stride, size_t rows,
               float *acc);
};

extern const struct kv_scaled_int8 kv_scaled_int8_c;
extern const struct kv_scaled_int8 kv_scaled_int8_avx2; /* x86-64 only */
extern const struct kv_scaled_int8 kv_scaled_int8_vnni; /* kv_level_vnni() */

extern const struct kv_tile_ops kv_scaled_int8_ops;

#endif
