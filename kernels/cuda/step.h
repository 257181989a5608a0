/* The operations of a decode step on the device, the layer (layer.h) and
 * attention (gpu_attend.h) apart: the newest token into the cache, and the
 * softmax of unfused attention.  Both are of halves; launches and does not
 * wait. */
#ifndef KV_CUDA_STEP_H
#define KV_CUDA_STEP_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Where the newest token of a sequence goes: halves in the order of
 * float/cuda.cuh, place `token` of a run of tiles; k NULL: nowhere, it is codes
 * already. */
struct kv_gpu_slot {
    uint8_t *k, *v;
    size_t head_bytes; /* from one KV head's tiles to the next's */
    unsigned token;    /* of the run */
    unsigned position; /* in the sequence */
};

#ifdef __cplusplus
extern "C" {
#endif

/* k, v [rows][n_kv_heads][head_dim]: the newest token of each sequence, into
 * slot [rows]. */
int kv_gpu_put_newest(const float *k, const float *v,
                      const struct kv_gpu_slot *slot, size_t rows,
                      size_t n_kv_heads, size_t head_dim, struct kv_err *e);

/* x [rows][n], in place: softmax(scale x). */
int kv_gpu_softmax(void *x, size_t rows, size_t n, float scale,
                   struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
