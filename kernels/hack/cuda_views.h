/* HACK's attention on the device for the forward pass of a model
 * (lib/schemes/hack_attend.c): many queries, each over the codes and the halves
 * that a cache holds at its time.  Queries are quantized to the same codes as
 * in plain C.  Integer products are exact and all else is f32, so results
 * differ by the order of sums, and more if this moves a weight to a
 * neighbouring code. */
#ifndef KV_HACK_CUDA_VIEWS_H
#define KV_HACK_CUDA_VIEWS_H

#include "kernels/cuda/views.h"
#include "kernels/device_code.h"
#include "kernels/hack/cuda_layout.h"

/* A layer's codes, from the first token that is no sink on, as pieces of
 * cuda_layout.h. */
struct kv_gpu_hack_views {
    struct kv_gpu_hack_side k, v;     /* sides of equally many tokens */
    size_t n_steps;                   /* pieces of each KV head of a window */
    const uint8_t *k_steps, *v_steps; /* device memory:
                                       * [n_windows][n_kv_heads][n_steps] */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Fills in k and v for codes of keys and of values; returns false if they have
 * no kernel: other quantizers, partitions of more than 256 values, a head_dim
 * that 4 does not divide or of more than 256, too little shared memory.  seed:
 * for queries and weights. */
bool kv_gpu_hack_views_open(const struct kv_gpu_code *k,
                            const struct kv_gpu_code *v, uint64_t seed,
                            const struct kv_device *device,
                            struct kv_gpu_hack_views *h);

/* Launches the rearrangement of a window's encoded blocks, of its first n
 * tokens, into pieces [n_heads][n_steps]. */
int kv_gpu_hack_arrange(const struct kv_gpu_code *code,
                        const struct kv_gpu_hack_side *h, const uint8_t *bytes,
                        size_t n, size_t n_steps, uint8_t *pieces,
                        struct kv_err *e);

/* Launches attention.  Both sides of the job have only their unquantized form,
 * and the same number of sinks; `until` is set and does not decrease from one
 * query to the next.  Takes plain views (kernels/cuda/views.h). */
int kv_gpu_attend_hack(const struct kv_attend_job *job,
                       const struct kv_gpu_hack_views *h, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
