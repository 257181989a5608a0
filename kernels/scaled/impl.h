/* Internals of kernels/scaled/scaled.h, for this folder. */
#ifndef KV_SCALED_IMPL_H
#define KV_SCALED_IMPL_H

#include "kernels/scaled/scaled.h"

enum {
    KV_SCALED_LANES = 16,
    KV_SCALED_MAX = 512, /* channels */
    KV_SCALED_PARTS = KV_TILE_TOKENS / KV_TILE_PART,
    KV_SCALED_SCALES = KV_SCALED_MAX / 16 * KV_TILE_PART /* scales in a part */
};

static inline const struct kv_scaled *kv_scaled_of(const struct kv_store *s)
{
    return s->params;
}

/* Bits of plane 0 or 1; 0: no such plane. */
static inline unsigned kv_scaled_width(unsigned bits, size_t plane)
{
    const unsigned low = bits == 3 ? 2 : bits == 6 ? 4 : bits;

    return plane ? bits - low : low;
}

static inline unsigned kv_scaled_lane_bytes(unsigned bits)
{
    return bits <= 4 ? 4 : 2;
}

/* The number of vectors in a unit of the plane. */
static inline size_t kv_scaled_per_unit(unsigned bits, size_t plane)
{
    return 8 * kv_scaled_lane_bytes(bits) / kv_scaled_width(bits, plane);
}

/* The number of vectors in a part. */
static inline size_t kv_scaled_vectors(const struct kv_store *s)
{
    return s->values ? kv_padded(s->head_dim) / 16 * KV_TILE_PART
                     : s->head_dim * 2;
}

static inline size_t kv_scaled_plane_bytes(const struct kv_store *s,
                                           size_t plane)
{
    const unsigned bits = kv_scaled_of(s)->bits;

    if (!kv_scaled_width(bits, plane))
        return 0;

    const size_t per = kv_scaled_per_unit(bits, plane);

    return (kv_scaled_vectors(s) + per - 1) / per * KV_SCALED_LANES *
           kv_scaled_lane_bytes(bits);
}

static inline size_t kv_scaled_part_bytes(const struct kv_store *s)
{
    return kv_scaled_plane_bytes(s, 0) + kv_scaled_plane_bytes(s, 1);
}

static inline size_t kv_scaled_scale_bytes(const struct kv_scaled *c)
{
    return c->scale == KV_SCALE_NONE ? 0 : c->scale == KV_SCALE_F16 ? 2 : 1;
}

/* The factor between a format's numbers and the same bits read as fp16: 2^(15 -
 * bias of the format); 1 for a table. */
float kv_scaled_rebias(const struct kv_scaled *c);

struct kv_scaled_loops {
    /* to: [groups][32], times kv_scaled_rebias() */
    void (*scales)(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *to);
    void (*expand)(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *x);
    /* Exact operations that do not expand values: they multiply a group's sum
     * by its scale, or weights by scales. */
    void (*qk)(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride);
    void (*pv)(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc);
};

extern const struct kv_scaled_loops kv_scaled_loops_c;
extern const struct kv_scaled_loops kv_scaled_loops_avx2;   /* x86-64 only */
extern const struct kv_scaled_loops kv_scaled_loops_avx512; /* x86-64 only */

/* ---- path int8, for codes of 1 to 4 bits ---------------------------------
 *
 * A table is rounded to 8 bits, value[code] ~ unit near[code].  So are queries,
 * per group of channels, and weights times scales, per group and tile of 64
 * tokens:
 *
 *   score_t  = sum over groups: scale_t (u unit) sum over channels: q8 near
 *   acc_c   += (u unit) sum over tokens: w8 near
 *
 * where u is the unit of q8 or w8.
 *
 * A lane of 32 bits in a unit of a plane has four bytes of `fields` codes each,
 * which are extracted together: field f of byte j is vector fields j + f
 * (scaled.h).  A quad, four numbers of 8 bits, multiplies them.  For keys,
 * vectors 2 c and 2 c + 1 are channel c, and quad k of a unit has channels
 * (fields / 2) j + k.  For values, quad f has tokens fields j + f, and byte i
 * of a tile's quads is token order[i]. */
static inline size_t kv_scaled_fields(unsigned bits)
{
    return 8 / kv_scaled_width(bits, 0);
}

static inline size_t kv_scaled_groups(const struct kv_store *s)
{
    return s->head_dim / kv_scaled_of(s)->group;
}

/* Rounded queries.  bias: -128 times the sum of a group's codes, for versions
 * that add 128 to the table's numbers. */
struct kv_scaled_query {
    float *factor; /* [groups][KV_TILE_ROWS] */
    int32_t *bias; /* [groups][KV_TILE_ROWS] */
    int8_t *code;  /* [quads][rows][4] */
};

/* The quad, and the byte in it, that multiplies channel c of keys. */
static inline size_t kv_scaled_quad(unsigned bits, size_t c, size_t *byte)
{
    const size_t half = kv_scaled_fields(bits) / 2, in = c % (4 * half);

    *byte = in / half;
    return c / (4 * half) * half + in % half;
}

/* A group's weights times scales, rounded; factor multiplies their products. */
struct kv_scaled_weights {
    int8_t code[KV_TILE_ROWS][KV_TILE_TOKENS];
    float factor[KV_TILE_ROWS];
};

/* Rows up to KV_TILE_ROWS.  scale: [groups][64]; w: [groups]. */
struct kv_scaled_int8 {
    void (*qk)(const struct kv_store *s, const uint8_t *tile,
               struct kv_scaled_query q, const float *scale, size_t rows,
               float *score, size_t stride);
    void (*pv)(const struct kv_store *s, const uint8_t *tile,
               const struct kv_scaled_weights *w, size_t rows, float *acc);
};

extern const struct kv_scaled_int8 kv_scaled_int8_c;
extern const struct kv_scaled_int8 kv_scaled_int8_avx2; /* x86-64 only */
extern const struct kv_scaled_int8 kv_scaled_int8_vnni; /* kv_level_vnni() */

/* The operations of both paths at the level in use. */
const struct kv_tile_ops *kv_scaled_ops(const struct kv_store *s,
                                        enum kv_path path);
void kv_scaled_expand(const struct kv_store *s, size_t head,
                      const uint8_t *tile, size_t part, float *x);

#endif
