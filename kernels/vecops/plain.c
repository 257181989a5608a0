/* Operations with one version for all levels, since the products around them
 * take most of the time. */
#include "kernels/vecops/vecops.h"

#include <math.h>

void kv_layer_norm(const float *x, const float *w, const float *bias, size_t n,
                   float eps, float *out)
{
    double sum = 0, squares = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];

    const double mean = sum / (double)n;

    for (size_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);

    const double scale = 1 / sqrt(squares / (double)n + (double)eps);

    for (size_t i = 0; i < n; i++)
        out[i] = (float)(((double)x[i] - mean) * scale * (double)w[i]) +
                 (bias ? bias[i] : 0);
}

static double activation(enum kv_act act, double x)
{
    switch (act) {
    case KV_ACT_SILU:
        return x / (1 + exp(-x));
    case KV_ACT_RELU:
        return x > 0 ? x : 0;
    case KV_ACT_RELU2:
        return x > 0 ? x * x : 0;
    case KV_ACT_GELU:
        return x * erfc(-x * M_SQRT1_2) / 2;
    case KV_ACT_GELU_TANH: /* (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)) */
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
    return x;
}

/* The derivative of an activation. */
static double steepness(enum kv_act act, double x)
{
    const double root = sqrt(2 / M_PI);
    double s;

    switch (act) {
    case KV_ACT_SILU:
        s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    case KV_ACT_RELU:
        return x > 0;
    case KV_ACT_RELU2:
        return x > 0 ? 2 * x : 0;
    case KV_ACT_GELU:
        return erfc(-x * M_SQRT1_2) / 2 + x * exp(-x * x / 2) * root / 2;
    case KV_ACT_GELU_TANH: /* x s, s' = s (1 - s) (2 u)' */
        s = 1 / (1 + exp(-2 * root * (x + 0.044715 * x * x * x)));
        return s * (1 + x * (1 - s) * 2 * root * (1 + 3 * 0.044715 * x * x));
    }
    return 1;
}

void kv_activate_mul_grad(enum kv_act act, const float *gate, const float *up,
                          const float *g, size_t n, float *gate_grad,
                          float *up_grad)
{
    for (size_t i = 0; i < n; i++) {
        const double x = (double)gate[i], by = (double)g[i];
        const float to_up = (float)(by * activation(act, x));

        gate_grad[i] = (float)(by * (double)up[i] * steepness(act, x));
        up_grad[i] = to_up;
    }
}

void kv_activate(enum kv_act act, const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)activation(act, (double)x[i]);
}
