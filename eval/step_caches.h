/* What the layers of a step (eval/step_model.h) attend to on a GPU: codes, by
 * our kernels; or halves, by two matrix products and a softmax. */
#ifndef KV_STEP_CACHES_H
#define KV_STEP_CACHES_H

#include "eval/step_model.h"
#include "kernels/cuda/gpu_attend.h"
#include "kernels/device.h"

/* n_layers copies of these sequences. */
int kv_fused_caches_new(struct kv_step_cache *c, const struct kv_device *device,
                        const struct kv_tiles_job *jobs, size_t n_jobs,
                        size_t n_layers, enum kv_path path, struct kv_err *e);
void kv_fused_caches_clear(struct kv_step_cache *c);
size_t kv_fused_caches_bytes(const struct kv_step_cache *c);
const char *kv_fused_caches_name(const struct kv_step_cache *c); /* what runs */

/* n tokens of each of batch sequences, random, as halves (eval/unfused.h). */
int kv_unfused_caches_new(struct kv_step_cache *c, const struct kv_shape *shape,
                          size_t n_layers, size_t batch, size_t n,
                          uint64_t seed, struct kv_err *e);
void kv_unfused_caches_clear(struct kv_step_cache *c);
size_t kv_unfused_caches_bytes(const struct kv_step_cache *c);

#endif
