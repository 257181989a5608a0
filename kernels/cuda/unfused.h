/* Attention over halves on a GPU by two batched products of cuBLAS and a
 * softmax in between, as a framework without a fused kernel does it, except
 * that query heads share the keys of their KV head.  Only for the newest token
 * of each sequence. */
#ifndef KV_CUDA_UNFUSED_H
#define KV_CUDA_UNFUSED_H

#include "kernels/attend.h"
#include "kernels/tiles/jobs.h"
#include "kernels/type.h"
#include "lib/base/err.h"

struct kv_unfused;

/* One layer with the caches of these jobs, as in kv_gpu_attend_new().  Fails if
 * memory runs out, if a run is not f16 or if nq is not 1. */
int kv_unfused_new(struct kv_unfused **u, const struct kv_tiles_job *jobs,
                   size_t n_jobs, struct kv_err *e);
/* Makes n_layers layers of random caches, of n_seqs sequences of n tokens as v
 * has them. */
int kv_unfused_random(struct kv_unfused **u, const struct kv_attend_view *v,
                      size_t n_layers, uint64_t seed, struct kv_err *e);
void kv_unfused_free(struct kv_unfused *u); /* NULL is fine */

/* The bytes of all keys and values. */
size_t kv_unfused_bytes(const struct kv_unfused *u);

/* Launches.  q and out [n_seqs][n_heads][head_dim] are device memory; q is f32,
 * out has type `type`. */
int kv_unfused_attend(const struct kv_unfused *u, size_t layer, const float *q,
                      enum kv_type type, void *out, struct kv_err *e);

#endif
