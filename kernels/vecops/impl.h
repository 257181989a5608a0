/* The operations of vecops.h compiled for one instruction set; only for
 * vecops.c and the tests. */
#ifndef KV_VECOPS_IMPL_H
#define KV_VECOPS_IMPL_H

#include <stdbool.h>
#include <stddef.h>

struct kv_vecops {
    void (*rms_norm)(const float *x, const float *w, size_t n, float eps,
                     float *out);
    void (*silu_mul)(const float *gate, const float *up, size_t n, float *out);
    void (*rms_norm_grad)(const float *x, const float *w, const float *g,
                          size_t n, float eps, float *out);
    void (*silu_mul_grad)(const float *gate, const float *up, const float *g,
                          size_t n, float *gate_grad, float *up_grad);
    void (*softmax_grad)(const float *p, const float *g, size_t n, float *out);
    void (*add)(float *x, const float *b, size_t n);
    void (*scale)(float *x, size_t n, float by);
    float (*max)(const float *x, size_t n);
    double (*exp)(float *x, size_t n, float shift);
    void (*softmax)(float *x, size_t n);
    double (*log_sum_exp)(const float *x, size_t n);
    void (*times)(const float *a, size_t a_stride, size_t rows, const float *m,
                  size_t n, size_t m_stride, size_t d, float *y,
                  size_t y_stride);
    void (*round_f16)(const float *x, size_t n, float *out);
    void (*hadamard)(float *x, size_t m, float scale);
    float *(*rows_hadamard)(float *x, size_t m, size_t n, size_t first,
                            size_t wanted, float scale);
    bool (*is_finite)(const float *x, size_t n);
    void (*widen_f16)(const void *from, size_t n, float *to);
    void (*widen_bf16)(const void *from, size_t n, float *to);
};

extern const struct kv_vecops kv_vecops_c;
extern const struct kv_vecops kv_vecops_avx2,
    kv_vecops_avx512; /* x86-64 only */

#endif
