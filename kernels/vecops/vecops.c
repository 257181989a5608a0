#include "kernels/vecops/vecops.h"
#include "kernels/level.h"
#include "kernels/vecops/impl.h"

static const struct kv_vecops *best(void)
{
    static const struct kv_vecops *const versions[] = KV_VERSIONS(
        &kv_vecops_c, &kv_vecops_avx2, &kv_vecops_avx512, &kv_vecops_avx512);

    return versions[kv_level_version()];
}

void kv_rms_norm(const float *x, const float *w, size_t n, float eps,
                 float *out)
{
    best()->rms_norm(x, w, n, eps, out);
}

void kv_silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    best()->silu_mul(gate, up, n, out);
}

void kv_rms_norm_grad(const float *x, const float *w, const float *g, size_t n,
                      float eps, float *out)
{
    best()->rms_norm_grad(x, w, g, n, eps, out);
}

void kv_silu_mul_grad(const float *gate, const float *up, const float *g,
                      size_t n, float *gate_grad, float *up_grad)
{
    best()->silu_mul_grad(gate, up, g, n, gate_grad, up_grad);
}

void kv_softmax_grad(const float *p, const float *g, size_t n, float *out)
{
    best()->softmax_grad(p, g, n, out);
}

void kv_row_add(float *x, const float *b, size_t n)
{
    best()->add(x, b, n);
}

void kv_row_scale(float *x, size_t n, float by)
{
    best()->scale(x, n, by);
}

float kv_row_max(const float *x, size_t n)
{
    return best()->max(x, n);
}

size_t kv_row_argmax(const float *x, size_t n)
{
    const float max = kv_row_max(x, n);

    for (size_t i = 0; i < n; i++)
        if (x[i] == max)
            return i;
    return 0;
}

double kv_row_exp(float *x, size_t n, float shift)
{
    return best()->exp(x, n, shift);
}

void kv_softmax(float *x, size_t n)
{
    best()->softmax(x, n);
}

double kv_log_sum_exp(const float *x, size_t n)
{
    return best()->log_sum_exp(x, n);
}

void kv_vecops_times(const float *a, size_t a_stride, size_t rows,
                     const float *m, size_t n, size_t m_stride, size_t d,
                     float *y, size_t y_stride)
{
    best()->times(a, a_stride, rows, m, n, m_stride, d, y, y_stride);
}

void kv_round_f16(const float *x, size_t n, float *out)
{
    best()->round_f16(x, n, out);
}

void kv_row_hadamard(float *x, size_t m, float scale)
{
    best()->hadamard(x, m, scale);
}

float *kv_vecops_hadamard(float *x, size_t m, size_t n, size_t first,
                          size_t wanted, float scale)
{
    return best()->rows_hadamard(x, m, n, first, wanted, scale);
}

bool kv_row_is_finite(const float *x, size_t n)
{
    return best()->is_finite(x, n);
}

void kv_dequantize_f16(const void *from, size_t n, float *to)
{
    best()->widen_f16(from, n, to);
}

void kv_dequantize_bf16(const void *from, size_t n, float *to)
{
    best()->widen_bf16(from, n, to);
}
