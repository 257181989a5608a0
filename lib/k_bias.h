/* Keys without the bias that the model adds to each key (k_proj.bias).  The
 * bias is a constant, so a cache need not store it.  In Qwen2.5 it is up to
 * 158, and takes most of the range of schemes that quantize per token.
 *
 * shape: the layer's (kv_shape_layer()), with a k_bias.  x, out:
 * [n][n_kv_heads][head_dim], token t at position first + t; pre_rope: x is
 * before RoPE; otherwise the bias is rotated as its key was.  Computed in
 * f32. */
#ifndef KV_K_BIAS_H
#define KV_K_BIAS_H

#include "lib/shape.h"

/* Adds the bias's part of the scaled scores, for keys that are held without the
 * bias.  view: one sequence's; q: its queries after RoPE,
 * [nq][n_heads][head_dim]; shift: as in struct kv_attend_view. */
void kv_k_bias_scores(const struct kv_shape *shape,
                      const struct kv_attend_view *view, const float *q,
                      float *shift);

/* out may be x. */
void kv_k_bias_take(const struct kv_shape *shape, bool pre_rope, size_t first,
                    const float *x, size_t n, float *out);
void kv_k_bias_add(const struct kv_shape *shape, bool pre_rope, size_t first,
                   float *x, size_t n);

#endif
