/* The operations of a decode step on the device beside the layer (layer.h) and
 * attention (gpu_attend.h): storing the newest token in the cache, and the
 * softmax of unfused attention.  Both work on halves, launch and do not
 * wait. */
#ifndef KV_CUDA_STEP_H
#define KV_CUDA_STEP_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The slot for a sequence's newest token: halves in the order of
 * float/cuda.cuh, at index `token` of a run of tiles; k NULL: no slot, since
 * the token is already coded. */
struct kv_gpu_slot {
    uint8_t *k, *v;
    size_t head_bytes; /* bytes between two KV heads' tiles */
    unsigned token;    /* index in the run */
    unsigned position; /* index in the sequence */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Stores k, v [rows][n_kv_heads][head_dim], the newest token of each sequence,
 * into slot [rows]. */
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
