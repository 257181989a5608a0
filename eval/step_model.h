/* One decoding step of a model on a GPU, timed: weights are random, the shape
 * is real, each layer attends to a cache of its own. */
#ifndef KV_STEP_MODEL_H
#define KV_STEP_MODEL_H

#include "eval/timing.h"
#include "lib/base/err.h"
#include "lib/model/config.h"

#include <stddef.h>
#include <stdint.h>

struct kv_gpu_slot;

/* What a step is made of, in the order of a layer. */
enum kv_step_part {
    KV_STEP_NORM,
    KV_STEP_QKV,
    KV_STEP_ROPE, /* and the newest key and value into the cache */
    KV_STEP_ATTENTION,
    KV_STEP_OUT,
    KV_STEP_MLP,
    KV_STEP_HEAD,
    KV_STEP_PARTS
};

/* The same word in every table: "norm", "qkv", .. */
extern const char *const kv_step_names[KV_STEP_PARTS];

/* What layers attend to; attend() launches: layer `layer`'s queries, in q(),
 * become halves in out [batch][n_heads][head_dim].  slots: where the newest
 * token goes (kernels/cuda/step.h). */
struct kv_step_cache {
    void *self;
    float *(*q)(const void *self, size_t layer);
    const struct kv_gpu_slot *(*slots)(const void *self, size_t layer);
    int (*attend)(const void *self, size_t layer, void *out, struct kv_err *e);
};

struct kv_step_model;

/* Weights on the device, batch tokens a step.  Fails without room. */
int kv_step_model_new(struct kv_step_model **d, const struct kv_config *c,
                      size_t batch, uint64_t seed, struct kv_err *e);
void kv_step_model_free(struct kv_step_model *d); /* NULL is fine */

/* Seconds of a whole step, and of its parts: all layers' norms alone, all
 * layers' attention alone, ..; medians, caches cold. */
int kv_step_model_time(struct kv_step_model *d,
                       const struct kv_step_cache *cache, size_t warmup,
                       size_t reps, struct kv_timing *whole,
                       double part[KV_STEP_PARTS], struct kv_err *e);

/* One step; the logits [batch][n_vocab] as halves. */
int kv_step_model_run(struct kv_step_model *d,
                      const struct kv_step_cache *cache, uint16_t *logits,
                      struct kv_err *e);

#endif
