/* Attention of halves on a GPU by two batched products of cuBLAS and a softmax
 * in between, as a framework without a fused kernel does it, except that query
 * heads share the keys of their KV head.  Of the newest token of each
 * sequence. */
#ifndef KV_CUDA_UNFUSED_H
#define KV_CUDA_UNFUSED_H

#include "kernels/attend.h"
#include "kernels/tiles/jobs.h"
#include "kernels/type.h"
#include "lib/base/err.h"

struct kv_unfused;

/* One layer, the caches of these jobs as kv_gpu_attend_new() takes them.  Fails
 * without memory, and where not all is f16 or nq is not 1. */
int kv_unfused_new(struct kv_unfused **u, const struct kv_tiles_job *jobs,
                   size_t n_jobs, struct kv_err *e);
/* n_layers of random caches, of v's n_seqs sequences of n tokens. */
int kv_unfused_random(struct kv_unfused **u, const struct kv_attend_view *v,
                      size_t n_layers, uint64_t seed, struct kv_err *e);
void kv_unfused_free(struct kv_unfused *u); /* NULL is fine */

/* Bytes of all keys and values. */
size_t kv_unfused_bytes(const struct kv_unfused *u);

/* Launches.  q and out [n_seqs][n_heads][head_dim], the device's: f32, and of
 * this type. */
int kv_unfused_attend(const struct kv_unfused *u, size_t layer, const float *q,
                      enum kv_type type, void *out, struct kv_err *e);

#endif
