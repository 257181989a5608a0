/* Scales of an fp8 cache in a model's files, one number for the keys or the
 * values of a layer (lib/shape.h), under the names that vLLM and SGLang load:
 * model.layers.N.self_attn, then .k_proj.k_scale, .attn.k_scale or .k_scale,
 * and .v_scale likewise; .kv_scale is the scale of both keys and values. */
#ifndef KV_CACHE_SCALES_H
#define KV_CACHE_SCALES_H

#include "lib/model/config.h"
#include "lib/model/weights.h"

bool kv_is_cache_scale(const char *name);

/* *scale: [n_layers][KV_SIDES], the caller's to free, 0 for a missing scale;
 * NULL if there are none.  A tensor of several numbers, one for each head,
 * counts as missing.  Fails on a number that is not above 0. */
int kv_cache_scales(const struct kv_weights *w, const struct kv_config *c,
                    float **scale, struct kv_err *e);

#endif
