/* Finds the nearest of many centers to each point on a CUDA device: the
 * decision of kernels/nearest/nearest.h, bit by bit. */
#ifndef KV_NEAREST_CUDA_NEAREST_CENTROID_H
#define KV_NEAREST_CUDA_NEAREST_CENTROID_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct kv_gpu_nearest_centroid;

#ifdef __cplusplus
extern "C" {
#endif

/* tile: [n_tiles][d][64], as in kernels/nearest/nearest.h; copied to the device
 * in use.  1 <= d <= 16.  Fails if the device's memory does not suffice. */
int kv_gpu_nearest_centroid_new(struct kv_gpu_nearest_centroid **p,
                                const float *tile, size_t n_tiles, size_t d,
                                struct kv_err *e);
void kv_gpu_nearest_centroid_free(
    struct kv_gpu_nearest_centroid *p); /* NULL is fine */

/* centers: [k][d], k <= 65536; code, dist: [n_tiles][64], written: the nearest
 * center and its distance. */
int kv_gpu_nearest_centroid_run(struct kv_gpu_nearest_centroid *p,
                                const float *centers, size_t k, uint16_t *code,
                                float *dist, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
