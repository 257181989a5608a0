/* RoPE as config.json describes it, in the layout of transformers 4 or 5. */
#ifndef KV_MODEL_CONFIG_ROPE_H
#define KV_MODEL_CONFIG_ROPE_H

#include "lib/model/config_fields.h"
#include "lib/shape.h"

/* Frequencies of the shape, whose head_dim is known, from rope_parameters (for
 * all layers, or by their type), rope_scaling and rope_theta; where layers that
 * slide have their own, those from rope_parameters and rope_local_base_freq.
 * full, slides: whether the model has layers of full attention, and of sliding
 * attention. n_ctx: positions that it may be used at.
 *
 * Fails on a type other than default, linear and llama3, on partial rotation,
 * when two of these fields contradict each other, and on frequencies that f32
 * does not hold. */
int kv_config_rope(const struct kv_fields *f, const struct kv_arch *a,
                   bool full, bool slides, size_t n_ctx, struct kv_shape *shape,
                   struct kv_err *e);

#endif
