/* The search for the nearest centroid: the decision that a vector quantizer
 * stores.
 *
 * The distance of x and c is, in this order and in f32,
 *
 *   s = 0;  for j = 0 .. d-1:  t = x[j] - c[j];  s = fma(t, t, s)
 *
 * with one rounding per operation (fma is the fused one, by name: nothing is
 * left to the compiler's contraction).  The code is the lowest index with the
 * smallest s.  A vector equal to a centroid therefore gets s = 0, and
 * encode(decode(codes)) decodes to the same values.  Every level gives exactly
 * this code.  A faster level may find candidates in another way, but decides by
 * s if more than one remains (kernels/nearest/search_i16.h). */
#ifndef KV_NEAREST_H
#define KV_NEAREST_H

#include <stddef.h>
#include <stdint.h>

enum {
    KV_NEAREST_MAX_D = 16,    /* dimensions of a vector */
    KV_NEAREST_MAX_K = 65536, /* centroids */
    KV_TILE = 64,             /* vectors of a tile */
    KV_BLOCK = 16,            /* centers of a block of struct kv_centroids */
    KV_SIDE = 16,             /* vectors that search groups of centers
                               * together */
    KV_MAX_GROUPS = 128       /* maximum number of groups in such a search */
};

/* A codebook prepared for searches. */
struct kv_centroids {
    size_t k, d;
    const float *centers; /* [k][d], the caller's, not changed */
    float *block;     /* [blocks of 16 centers][d][16]; NULL: not worth it */
    float max;        /* the largest |c|^2, infinite if a value is NaN */
    int32_t *whole;   /* [blocks][1 + pairs][16]: |C|^2, -2 C by pairs of
                       * 16 bits; C = round(scale c); NULL: not worth it;
                       * aligned to a cache line */
    float scale, off; /* off: the largest |C - scale c| */
};

/* centers: [k][d], 1 <= d <= KV_NEAREST_MAX_D, 1 <= k <= KV_NEAREST_MAX_K. */
void kv_centroids_init(struct kv_centroids *b, const float *centers, size_t k,
                       size_t d);
void kv_centroids_clear(struct kv_centroids *b);

/* x: [n][d]; code: [n].  If every s overflows, the code is 0.  Runs on the
 * calling thread. */
void kv_nearest(const struct kv_centroids *b, const float *x, size_t n,
                uint16_t *code);

/* The same search in pieces, for repeated searches (k-means).  A tile is up to
 * 64 vectors by dimension, tile[d][64]; vectors past n are zero. */
void kv_tile_fill(const float *x, size_t n, size_t d, float *tile);

/* code, dist: [64], the first n >= 1 are the result; dist gets s, or is NULL,
 * which is faster. */
void kv_tile_nearest(const struct kv_centroids *b, const float *tile, size_t n,
                     uint16_t *code, float *dist);

/* The distance s of vector i of a tile and this center. */
float kv_tile_distance(const float *tile, size_t i, size_t d,
                       const float *center);

/* A vector of a tile and a group of centers.  Groups have `size` blocks each,
 * in order; the last group may have fewer.  For codebooks with blocks: k >= 64,
 * d >= 2. */
struct kv_pair {
    uint16_t vector, group;
};

/* The distance s of the nearest center of the group, for n pairs; min: [n]. */
void kv_tile_min(const struct kv_centroids *b, const float *tile, size_t size,
                 const struct kv_pair *pair, size_t n, float *min);

/* The first center of the group with this s; one center must have it. */
uint16_t kv_tile_first(const struct kv_centroids *b, const float *tile,
                       size_t size, struct kv_pair pair, float s);

/* Searches the centers of n groups for the vectors [first, first + 16) of a
 * tile; one group must have the nearest center of all.  For codebooks with
 * `whole`.  Sets
 *
 *   code[i]    the nearest center, if bit i of the result is set; else s must
 *              decide
 *   reach[i]   an upper bound on the distance to the nearest; NaN: unknown
 *   gap[g]     <= distance(v, c) - reach(v) for each of these vectors v and all
 *              centers c of group g; may be negative.  Undefined if a reach is
 *              NaN.
 *
 * code, reach: [64]; first: a multiple of 16; group: [n], rising, n <=
 * KV_MAX_GROUPS; gap: [n, to whole fours]. */
uint64_t kv_tile_among(const struct kv_centroids *b, const float *tile,
                       size_t first, size_t size, const uint16_t *group,
                       size_t n, uint16_t *code, float *reach, float *gap);

/* dist[i] = min(dist[i], s of vector i and this center), i < 64. */
void kv_tile_closer(const float *tile, size_t d, const float *center,
                    float *dist);

#endif
