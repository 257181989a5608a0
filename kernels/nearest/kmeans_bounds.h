/* The points of k-means, and bounds on their distances; for kmeans*.c alone. */
#ifndef KV_NEAREST_KMEANS_IMPL_H
#define KV_NEAREST_KMEANS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Points by tiles of 64 (nearest.h); the padding of the last has weight 0. */
struct kv_points {
    size_t n, d, n_tiles;
    const float *x; /* [n][d], the caller's */
    float *tile;    /* [n_tiles][d][64] */
    float *weight;  /* [n_tiles][64] */
    bool even;      /* all weights of points are 1 */
    float *dist;    /* [n_tiles][64]: squared, to the nearest center */
    uint16_t *code; /* [n_tiles][64]: of the nearest center */
    struct kv_gpu_nearest_centroid
        *gpu; /* the same on the device; NULL: on the CPU */
};

enum { KV_BOUNDS_MAX_POINTS = 1 << 24 }; /* the bounds of these points fill half
                                          * a GiB */

/* Lower bounds on the distance of points to the centers of each group. */
struct kv_bounds;

/* Makes bounds for k >= 64 centers with d >= 2 values, grouped by their present
 * positions.  centers: [k][d]. */
struct kv_bounds *kv_bounds_new(const struct kv_points *p, const float *centers,
                                size_t k);
void kv_bounds_free(struct kv_bounds *b);

/* Sets the code of every point as kv_nearest() does, bit by bit.  centers:
 * [k][d], finite, close to the last call's centers.  On entry code holds a
 * guess, some center < k, for each point; a better guess takes less time.
 * Returns false, and no codes, if values are too large or too small for 16-bit
 * integers; the caller then searches all centers.  The bounds of groups stay
 * valid. */
bool kv_bounds_assign(struct kv_bounds *b, struct kv_points *p,
                      const float *centers);

#endif
