/* Operations on one row of f32: a transformer's work between its GEMMs.
 *
 * Every operation is a fixed sequence of IEEE additions and multiplications
 * over eight lanes (kernels/vecops/loops.h), compiled for several instruction
 * sets: the same bits at every level and with every compiler.  Sums are kept
 * in double.  n may be anything; nothing needs alignment; out may be x. */
#ifndef KV_VECOPS_H
#define KV_VECOPS_H

#include <stdbool.h>
#include <stddef.h>

/* out[i] = x[i] / sqrt(mean(x^2) + eps) * w[i]. */
void kv_rms_norm(const float *x, const float *w, size_t n, float eps,
                 float *out);

/* out[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)). */
void kv_silu_mul(const float *gate, const float *up, size_t n, float *out);

/* out[i] = (x[i] - mean) / sqrt(variance + eps) * w[i] + bias[i]; bias: NULL is
 * zeros. */
void kv_layer_norm(const float *x, const float *w, const float *bias, size_t n,
                   float eps, float *out);

/* Gelu by the normal distribution, and by its approximation with tanh; relu,
 * and its square. */
enum kv_act {
    KV_ACT_SILU,
    KV_ACT_GELU,
    KV_ACT_GELU_TANH,
    KV_ACT_RELU,
    KV_ACT_RELU2
};

/* out[i] = act(x[i]). */
void kv_activate(enum kv_act act, const float *x, size_t n, float *out);

/* The backward operations: g[i] = dL/d(output i) for a loss L; results are
 * dL/d(input).  p: the softmax's result.  Outputs may be inputs. */
void kv_rms_norm_grad(const float *x, const float *w, const float *g, size_t n,
                      float eps, float *out);
void kv_silu_mul_grad(const float *gate, const float *up, const float *g,
                      size_t n, float *gate_grad, float *up_grad);
/* act in out[i] = act(gate[i]) * up[i]. */
void kv_activate_mul_grad(enum kv_act act, const float *gate, const float *up,
                          const float *g, size_t n, float *gate_grad,
                          float *up_grad);
void kv_softmax_grad(const float *p, const float *g, size_t n, float *out);

/* x[i] += b[i]; x[i] *= by. */
void kv_row_add(float *x, const float *b, size_t n);
void kv_row_scale(float *x, size_t n, float by);

/* -infinity when n is 0; NaN is ignored. */
float kv_row_max(const float *x, size_t n);

/* The index of the largest value, the lowest on ties; NaN is ignored. */
size_t kv_row_argmax(const float *x, size_t n);

/* x[i] = exp(x[i] - shift); returns their sum.  exp is within 2 units in the
 * last place, 0 below -87.33 and infinite above 88.37. */
double kv_row_exp(float *x, size_t n, float shift);

/* x = exp(x) / sum(exp(x)), in place.  -infinity gives 0; NaN if all values are
 * -infinity. */
void kv_softmax(float *x, size_t n);

/* log(sum(exp(x))); -infinity when n is 0, NaN when x holds one. */
double kv_log_sum_exp(const float *x, size_t n);

/* y[r][j] = ((y[r][j] + a[r][0] m[0][j]) + a[r][1] m[1][j]) + ..., r < rows,
 * j < d, each product and its sum rounded once (fmaf).  a: [rows][a_stride]; m:
 * [n][m_stride]; y: [rows][y_stride], apart from both. */
void kv_vecops_times(const float *a, size_t a_stride, size_t rows,
                     const float *m, size_t n, size_t m_stride, size_t d,
                     float *y, size_t y_stride);

/* The nearest finite half, ties to even; NaN stays NaN (kv_f16_clamp of
 * lib/base/half.h and back). */
void kv_round_f16(const float *x, size_t n, float *out);

/* m values, a power of two: log2(m) passes of sums and differences, x[i] and
 * x[i + half], from half = m / 2 down to 1, then times scale. */
void kv_row_hadamard(float *x, size_t m, float scale);

/* kv_row_hadamard() of each column of x [m][n], in place; m: a power of two; n:
 * a multiple of 16.  Only rows [first, first + wanted) are computed, 1 <=
 * wanted and first + wanted <= m; fewer rows take less time.  Returns their
 * beginning in x; the rest of x is undefined afterwards. */
float *kv_vecops_hadamard(float *x, size_t m, size_t n, size_t first,
                          size_t wanted, float scale);

/* Whether no x is NaN or infinite. */
bool kv_row_is_finite(const float *x, size_t n);

/* 16-bit floats at any address (kv_f16_to_f32, kv_bf16_to_f32). */
void kv_dequantize_f16(const void *from, size_t n, float *to);
void kv_dequantize_bf16(const void *from, size_t n, float *to);

#endif
