/* RoPE from config.json, in the layout of transformers 4 or 5. */
#ifndef KV_MODEL_CONFIG_ROPE_H
#define KV_MODEL_CONFIG_ROPE_H

#include "lib/model/config_fields.h"
#include "lib/shape.h"

/* Sets c->rope and the shape's frequencies from rope_parameters, rope_scaling
 * and rope_theta.  If sliding layers have their own RoPE, rope_parameters has
 * an object for each type of layers, and rope_local_base_freq may be read.
 * arch, head_dim and n_ctx of c must be set.
 *
 * Fails on an unknown type, on partial rotation if the class has none, on
 * rope_parameters by type if the class has one RoPE for all layers, when two of
 * these fields contradict each other, and on frequencies that f32 does not
 * hold. */
int kv_config_rope(const struct kv_fields *f, struct kv_config *c,
                   struct kv_err *e);

#endif
