/* Times one decode step of a model on a GPU: the forward pass of
 * lib/model/forward.c over one token of each sequence.  The weights are random,
 * the shape is a real model's, and each layer attends to its own caches. */
#ifndef KV_LATENCY_H
#define KV_LATENCY_H

#include "eval/timing.h"
#include "kernels/device.h"
#include "kernels/tiles/jobs.h"
#include "lib/model/config.h"
#include "lib/model/pass.h"

/* The part's name in all tables: "norm", "qkv", .. */
extern const char *const kv_step_names[KV_STEP_PARTS];

/* The caches of all layers: codes, which our kernels read, or halves, which two
 * matrix products and a softmax read (kernels/cuda/unfused.h). */
struct kv_step_caches;

/* Attention over n_layers copies of these sequences. */
int kv_step_caches_fused(struct kv_step_caches **c,
                         const struct kv_device *device,
                         const struct kv_tiles_job *jobs, size_t n_jobs,
                         size_t n_layers, enum kv_path path, struct kv_err *e);
/* Attention over n random tokens of each of batch sequences. */
int kv_step_caches_unfused(struct kv_step_caches **c,
                           const struct kv_shape *shape, size_t batch, size_t n,
                           uint64_t seed, struct kv_err *e);
void kv_step_caches_free(struct kv_step_caches *c); /* NULL is fine */
size_t kv_step_caches_bytes(const struct kv_step_caches *c);
const char *kv_step_caches_name(const struct kv_step_caches *c); /* path */

struct kv_step;

/* Puts weights on the device; a step has `batch` tokens, each the n-th of its
 * sequence.  Fails without memory. */
int kv_step_new(struct kv_step **s, const struct kv_config *c,
                const struct kv_device *device, size_t batch, size_t n,
                uint64_t seed, struct kv_err *e);
void kv_step_free(struct kv_step *s); /* NULL is fine */

/* Seconds of a whole step, and of each part: only all layers' norms, only all
 * layers' attention, ..; medians with cold caches. */
int kv_step_time(struct kv_step *s, struct kv_step_caches *caches,
                 size_t warmup, size_t reps, struct kv_timing *whole,
                 double part[KV_STEP_PARTS], struct kv_err *e);

/* Runs one step; writes the logits [batch][n_vocab]. */
int kv_step_run(struct kv_step *s, struct kv_step_caches *caches, float *logits,
                struct kv_err *e);

#endif
