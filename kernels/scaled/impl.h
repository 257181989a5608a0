/* Inside of tiles_scaled.h; for tiles_scaled*.c alone. */
#ifndef KV_SCALED_IMPL_H
#define KV_SCALED_IMPL_H

#include "kernels/scaled/scaled.h"

enum {
    KV_SCALED_LANES = 16,
    KV_SCALED_MOST = 512, /* channels */
    KV_SCALED_PARTS = KV_TILE_TOKENS / KV_TILE_PART,
    KV_SCALED_SCALES = KV_SCALED_MOST / 16 * KV_TILE_PART /* of a part */
};

static inline const struct kv_scaled *kv_scaled_of(const struct kv_store *s)
{
    return s->params;
}

/* Bits of plane 0 or 1; 0: there is none. */
static inline unsigned kv_scaled_width(unsigned bits, size_t plane)
{
    const unsigned low = bits == 3 ? 2 : bits == 6 ? 4 : bits;

    return plane ? bits - low : low;
}

static inline unsigned kv_scaled_lane_bytes(unsigned bits)
{
    return bits <= 4 ? 4 : 2;
}

/* Vectors of a unit of the plane. */
static inline size_t kv_scaled_per_unit(unsigned bits, size_t plane)
{
    return 8 * kv_scaled_lane_bytes(bits) / kv_scaled_width(bits, plane);
}

/* Vectors of a part. */
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

/* What the exponent of a format is off by as fp16's: 2^(15 - its bias); 1 for a
 * table. */
float kv_scaled_rebias(const struct kv_scaled *c);

struct kv_scaled_loops {
    /* to: [groups][32], times kv_scaled_rebias() */
    void (*scales)(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *to);
    void (*expand)(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *x);
    /* Exact operations without expanded values: a group's sum times its scale,
     * weights times scales. */
    void (*qk)(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride);
    void (*pv)(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc);
};

extern const struct kv_scaled_loops kv_scaled_loops_c;
extern const struct kv_scaled_loops kv_scaled_loops_avx2;   /* x86-64 only */
extern const struct kv_scaled_loops kv_scaled_loops_avx512; /* x86-64 only */

#endif
