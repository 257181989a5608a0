/* Which layers slide and which have no RoPE, from config.json. */
#ifndef KV_MODEL_CONFIG_LAYERS_H
#define KV_MODEL_CONFIG_LAYERS_H

#include "lib/model/config_fields.h"

/* Sets slides, still and slide_window of c->shape from sliding_window,
 * use_sliding_window, max_window_layers, layer_types, the pattern and
 * no_rope_layers.  arch and n_layers of c must be set.  slide_window stays 0 if
 * no layer slides.
 *
 * Fails when two of these fields contradict each other, and on a field that the
 * architecture does not have. */
int kv_config_layers(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e);

#endif
