/* The operations of a forward pass's layer on the device, except matrix
 * products (gemm.h) and attention (views.h).  The residual stream and outputs
 * of products are f32; inputs of products are rounded to the weights' type,
 * halves beyond 65504 to infinity.  Everything launches and does not wait. */
#ifndef KV_CUDA_LAYER_H
#define KV_CUDA_LAYER_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* RMSNorm: out [rows][n] of type `type` = x / sqrt(mean x^2 + eps) * weight
 * [n]. */
int kv_gpu_rms_norm(const float *x, const float *weight, size_t rows, size_t n,
                    float eps, enum kv_type type, void *out, struct kv_err *e);

/* LayerNorm: out [rows][n] of type `type`; norm centers. */
int kv_gpu_layer_norm(const struct kv_norm *norm, const float *x, size_t rows,
                      enum kv_type type, void *out, struct kv_err *e);

/* The steps of struct kv_heads (heads.cu).  An output that is not wanted (q, k
 * or k_pre) is NULL; v NULL: rows of qkv have no values.  Fails where values
 * have a norm, and where there are no KV heads. */
int kv_gpu_heads(const struct kv_heads *h, struct kv_err *e);

/* x [rows][n] += bias [n]. */
int kv_gpu_add_bias(float *x, const float *bias, size_t rows, size_t n,
                    struct kv_err *e);

/* x = cap * tanh(x / cap) for rows of n, which begin `row` apart. */
int kv_gpu_cap(float *x, size_t rows, size_t n, size_t row, float cap,
               struct kv_err *e);

/* x [n] *= by. */
int kv_gpu_scale(float *x, size_t n, float by, struct kv_err *e);

/* The middle of an MLP, without a limit: out [rows][n] of type `type` from x
 * [rows][n], or from x [rows][2 n] if it is gated. */
int kv_gpu_activate(const struct kv_activation *a, const float *x, size_t rows,
                    enum kv_type type, void *out, struct kv_err *e);

/* Rounds x [n] to out [n] of type `type`. */
int kv_gpu_round(const float *x, size_t n, enum kv_type type, void *out,
                 struct kv_err *e);

/* Fills x [n] of type `type` with numbers in [-scale, scale) that depend only
 * on seed and index. */
int kv_gpu_random(void *x, size_t n, enum kv_type type, uint64_t seed,
                  float scale, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
