/* Attention error: the same queries over exact and over stored keys and
 * values. */
#ifndef KV_ATTN_ERROR_H
#define KV_ATTN_ERROR_H

#include "lib/shape.h"

#include <stdbool.h>
#include <stddef.h>

/* The quantized tensors of an output; the others are exact. */
enum kv_attn_case { KV_ATTN_K, KV_ATTN_V, KV_ATTN_BOTH, KV_ATTN_CASES };

/* Sums, so that parts measured apart can be added.  Start from { 0 }. */
struct kv_attn_error {
    double logit_e2, n_logits; /* over visible (query, head, key) */
    double kl, n_rows; /* over (query, head): divergence of the attention
                        * weights, with the weight of a sink logit */
    double out_x2, out_e2[KV_ATTN_CASES];
};

/* One window.  view: of one sequence, without mass; its first and nq are not
 * read.  q: [n][n_heads][head_dim]; k, v exact and k_stored, v_stored as read
 * back: [n][n_kv_heads][head_dim], keys after RoPE.
 *
 * at: n_at query positions, ascending, each below n.  own:
 * [n_at][n_heads][head_dim], the scheme's own attention output at these
 * positions in place of attention over k_stored and v_stored (kv_scheme's
 * attend()); or NULL.
 *
 * value_dim: the number of first channels of v that are its values (kv_shape's
 * latent); 0: all. */
struct kv_attn_window {
    struct kv_attend_view view;
    const float *q, *k, *v, *k_stored, *v_stored;
    const size_t *at;
    size_t n_at;
    const float *own;
    size_t value_dim;
};

/* Products in f32 (kernels/gemm.h), softmax and sums in double.  Equal
 * tensors give an error of exactly 0. */
void kv_attn_error_add(struct kv_attn_error *sum,
                       const struct kv_attn_window *w);
void kv_attn_error_merge(struct kv_attn_error *into,
                         const struct kv_attn_error *part);

/* False if the input had a NaN or an infinity; the errors below are then
 * meaningless. */
bool kv_attn_error_finite(const struct kv_attn_error *s);

/* Mean squared error of the logits (natural units, attn_scale applied); mean
 * KL(exact || stored) of the attention weights, in nats; relative error
 * ||o' - o|| / ||o|| of the output.  NaN where nothing was measured. */
double kv_attn_error_logit(const struct kv_attn_error *s);
double kv_attn_error_kl(const struct kv_attn_error *s);
double kv_attn_error_out(const struct kv_attn_error *s, enum kv_attn_case c);

/* Spreads n_at query positions over n tokens, the last token included; takes
 * all positions if n < n_at.  Writes at [min(n, n_at)] and returns its
 * length. */
size_t kv_attn_positions(size_t n, size_t n_at, size_t *at);

#endif
