/* What k-means knows of its points; for kmeans*.c alone. */
#ifndef KV_KMEANS_IMPL_H
#define KV_KMEANS_IMPL_H

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
    struct kv_gpu_points *gpu; /* the same on the device; NULL: on the CPU */
};

/* Which share of all distances kv_points_reassign() would ask for, at most, as
 * a sample of the centers has it. */
double kv_points_share(const struct kv_points *p, const float *centers,
                       size_t k);

/* Sets dist and code of every point as kv_tile_nearest() does, bit by bit.
 * centers: [k][d]; code holds some center < k for each, the better the guess
 * the less there is to do.  n < 2^32. */
void kv_points_reassign(struct kv_points *p, const float *centers, size_t k);

#endif
