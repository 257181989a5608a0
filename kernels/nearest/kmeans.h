/* k-means: codebooks of vector quantizers (d up to 16) and of scalars (d 1). */
#ifndef KV_NEAREST_KMEANS_H
#define KV_NEAREST_KMEANS_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Where Lloyd's rounds begin: at k different points of positive weight, drawn
 * by k-means++ (exact D^2 sampling), or evenly, as faiss does. */
enum kv_kmeans_start { KV_KMEANS_PP, KV_KMEANS_RANDOM };

/* Lloyd's k-means.
 *
 * x:       [n][d] f32, row-major; read only, not kept.
 * weight:  [n] f32, each >= 0, or NULL for all ones.
 * k, d:    1 <= k <= KV_NEAREST_MAX_K, 1 <= d <= KV_NEAREST_MAX_D (nearest.h).
 * iters:   max rounds of assigning and averaging; 0 leaves the
 *          start.  Stops before when no center moves.
 * centers: [k][d] f32, written in full, and only on success.
 * mse:     weighted mean of the squared distance to the nearest center, per
 *          value (divided by d); NULL is fine.
 *
 * An empty cluster takes the point farthest from its own center; with fewer
 * than k different points some centers coincide.  Distances are nearest.h's
 * and sums are in double, in fixed blocks: the same arguments give the same
 * bits for any number of threads and at any level.
 *
 * Fails when fewer than k points have a positive weight; when x holds a NaN,
 * an infinity or a value beyond 1e18 (whose square nears the end of f32); and
 * when a weight is negative or not finite; and between rounds when the program
 * is interrupted (kv_interrupted). */
int kv_kmeans(const float *x, size_t n, size_t d, const float *weight, size_t k,
              enum kv_kmeans_start start, size_t iters, uint64_t seed,
              float *centers, double *mse, struct kv_err *e);

#endif
