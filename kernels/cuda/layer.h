/* What a layer of a forward pass does on the device beside matrix products
 * (product.h) and attention (forms.h).  The residual stream and what comes out
 * of a product are f32; what goes into one is rounded to the weights' type, a
 * half beyond 65504 to infinity.  Everything launches and does not wait. */
#ifndef KV_CUDA_LAYER_H
#define KV_CUDA_LAYER_H

#include "kernels/cuda/product.h"

/* The projections to `heads` heads of rows tokens, which stand at places
 * first, first + 1, .. of windows of n tokens. */
struct kv_gpu_heads {
    size_t rows, first, n;
    size_t heads, head_dim, n_rot;
    float *x;           /* [rows][heads][head_dim], replaced */
    const float *bias;  /* [heads][head_dim]; NULL: none */
    const float *norm;  /* RMSNorm of each head: [head_dim]; NULL: none */
    float eps;          /* of norm */
    const float *turns; /* kv_rope_table(): [n][2][n_rot] */
    float *turned;      /* x after RoPE: as x, and may be x; NULL: not wanted */
};

#ifdef __cplusplus
extern "C" {
#endif

/* RMSNorm: out [rows][n] of this type = x / sqrt(mean x^2 + eps) * weight [n].
 */
int kv_gpu_rms_norm(const float *x, const float *weight, size_t rows, size_t n,
                    float eps, enum kv_gpu_type type, void *out,
                    struct kv_err *e);

/* x += bias, then its norm, in place; turned: that after RoPE. */
int kv_gpu_rotate_heads(const struct kv_gpu_heads *h, struct kv_err *e);

/* x [rows][n] += bias [n]. */
int kv_gpu_add_bias(float *x, const float *bias, size_t rows, size_t n,
                    struct kv_err *e);

/* out [rows][n] of this type = silu(gate + gate_bias) * (up + up_bias); biases
 * [n], NULL: none. */
int kv_gpu_swiglu(const float *gate, const float *gate_bias, const float *up,
                  const float *up_bias, size_t rows, size_t n,
                  enum kv_gpu_type type, void *out, struct kv_err *e);

/* out [n] of this type = x. */
int kv_gpu_round(const float *x, size_t n, enum kv_gpu_type type, void *out,
                 struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
