#include "kernels/cuda/layer.h"

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/reduce.cuh"
#include "lib/base/rng.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

#define KV_TYPES(X) X(KV_TYPE_F16) X(KV_TYPE_BF16) X(KV_TYPE_F32)

static unsigned blocks(size_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

static int report(const char *what, const char *wrong, struct kv_err *e)
{
    return wrong ? kv_fail(e, "%s: %s", what, wrong) : 0;
}

// Rounds to nearest, ties to even.
template <int TYPE> KV_DEVICE void kv_put(void *to, size_t i, float x)
{
    const uint32_t u = kv_bits(x);

    if (TYPE == KV_TYPE_F32)
        static_cast<float *>(to)[i] = x;
    else if (TYPE == KV_TYPE_F16)
        static_cast<uint16_t *>(to)[i] = (uint16_t)kv_pack_f16(x, 0);
    else if ((u & 0x7fffffff) > 0x7f800000) // NaN stays one
        static_cast<uint16_t *>(to)[i] = (uint16_t)(u >> 16 | 0x40);
    else
        static_cast<uint16_t *>(to)[i] =
            (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// A block a row.
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_rms_norm_kernel(const float *x, const float *weight, size_t n, float eps,
                       void *out)
{
    float *const workspace = reinterpret_cast<float *>(kv_shared());
    const float *row = x + blockIdx.x * n;
    float sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(row[i], row[i], sum);
    sum = kv_reduce<WARPS>(sum, workspace, kv_plus());

    const float by = 1 / sqrtf(sum / (float)n + eps);

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        kv_put<TYPE>(out, blockIdx.x * n + i, row[i] * by * weight[i]);
}

// LayerNorm; a block a row.
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_layer_norm_kernel(const float *x, kv_norm norm, void *out)
{
    float *const workspace = reinterpret_cast<float *>(kv_shared());
    const float *row = x + blockIdx.x * norm.n;
    float sum = 0, squares = 0;

    for (size_t i = threadIdx.x; i < norm.n; i += THREADS)
        sum += row[i];

    const float mean =
        kv_reduce<WARPS>(sum, workspace, kv_plus()) / (float)norm.n;

    for (size_t i = threadIdx.x; i < norm.n; i += THREADS)
        squares = fmaf(row[i] - mean, row[i] - mean, squares);
    squares = kv_reduce<WARPS>(squares, workspace, kv_plus());

    const float by = 1 / sqrtf(squares / (float)norm.n + norm.eps);

    for (size_t i = threadIdx.x; i < norm.n; i += THREADS)
        kv_put<TYPE>(out, blockIdx.x * norm.n + i,
                     (row[i] - mean) * by * norm.weight[i] +
                         (norm.bias ? norm.bias[i] : 0));
}

__global__ void __launch_bounds__(THREADS)
    kv_add_bias_kernel(float *x, const float *bias, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[blockIdx.y * n + i] += bias[i];
}

// Rows begin `row` apart.
__global__ void __launch_bounds__(THREADS)
    kv_cap_kernel(float *x, size_t n, size_t row, float cap)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float *const one = x + blockIdx.y * row + i;

    if (i < n)
        *one = cap * tanhf(*one / cap);
}

__global__ void __launch_bounds__(THREADS)
    kv_scale_kernel(float *x, size_t n, float by)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[i] *= by;
}

KV_DEVICE float kv_activation_of(enum kv_act act, float x)
{
    switch (act) {
    case KV_ACT_SILU:
        break;
    case KV_ACT_RELU:
        return fmaxf(x, 0);
    case KV_ACT_RELU2:
        return fmaxf(x, 0) * fmaxf(x, 0);
    case KV_ACT_GELU:
        return x * erfcf(-0.70710678F * x) / 2;
    case KV_ACT_GELU_TANH: // silu of another number, divided by its factor
        return x / (1 + kv_exp2(-2.30220819F * (x + 0.044715F * x * x * x)));
    }
    return x / (1 + kv_exp2(-1.44269504f * x));
}

template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_activate_kernel(const float *x, kv_activation a, void *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const float *row = x + blockIdx.y * (a.gated ? 2 : 1) * a.n;

    if (i >= a.n)
        return;

    float y = kv_activation_of(a.act, row[i] + (a.bias ? a.bias[i] : 0));

    if (a.gated)
        y *= row[a.n + i] + (a.bias ? a.bias[a.n + i] : 0);
    kv_put<TYPE>(out, blockIdx.y * a.n + i, y);
}

template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_round_kernel(const float *x, size_t n, void *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        kv_put<TYPE>(out, i, x[i]);
}

template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_random_kernel(void *x, size_t n, uint64_t seed, float scale)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        kv_put<TYPE>(x, i, (2 * kv_random_unit(seed, i) - 1) * scale);
}

// ---- launching -------------------------------------------------------------

extern "C" int kv_gpu_rms_norm(const float *x, const float *weight, size_t rows,
                               size_t n, float eps, enum kv_type type,
                               void *out, struct kv_err *e)
{
    const dim3 grid((unsigned)rows), block(THREADS);
    const size_t shared = WARPS * sizeof(float);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                             \
    case T:                                                                 \
        wrong = kv_launch(kv_rms_norm_kernel<T>, grid, block, shared, 0, x, \
                          weight, n, eps, out);                             \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("RMSNorm", wrong, e);
}

extern "C" int kv_gpu_layer_norm(const struct kv_norm *norm, const float *x,
                                 size_t rows, enum kv_type type, void *out,
                                 struct kv_err *e)
{
    const dim3 grid((unsigned)rows), block(THREADS);
    const size_t shared = WARPS * sizeof(float);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                               \
    case T:                                                                   \
        wrong = kv_launch(kv_layer_norm_kernel<T>, grid, block, shared, 0, x, \
                          *norm, out);                                        \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("LayerNorm", wrong, e);
}

extern "C" int kv_gpu_add_bias(float *x, const float *bias, size_t rows,
                               size_t n, struct kv_err *e)
{
    return report("bias",
                  kv_launch(kv_add_bias_kernel, dim3(blocks(n), (unsigned)rows),
                            dim3(THREADS), 0, 0, x, bias, n),
                  e);
}

extern "C" int kv_gpu_cap(float *x, size_t rows, size_t n, size_t row,
                          float cap, struct kv_err *e)
{
    return report("cap",
                  kv_launch(kv_cap_kernel, dim3(blocks(n), (unsigned)rows),
                            dim3(THREADS), 0, 0, x, n, row, cap),
                  e);
}

extern "C" int kv_gpu_scale(float *x, size_t n, float by, struct kv_err *e)
{
    return report("scale",
                  kv_launch(kv_scale_kernel, dim3(blocks(n)), dim3(THREADS), 0,
                            0, x, n, by),
                  e);
}

extern "C" int kv_gpu_activate(const struct kv_activation *a, const float *x,
                               size_t rows, enum kv_type type, void *out,
                               struct kv_err *e)
{
    const dim3 grid(blocks(a->n), (unsigned)rows), block(THREADS);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                              \
    case T:                                                                  \
        wrong =                                                              \
            kv_launch(kv_activate_kernel<T>, grid, block, 0, 0, x, *a, out); \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("activation", wrong, e);
}

extern "C" int kv_gpu_round(const float *x, size_t n, enum kv_type type,
                            void *out, struct kv_err *e)
{
    const dim3 grid(blocks(n)), block(THREADS);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                              \
    case T:                                                                  \
        wrong = kv_launch(kv_round_kernel<T>, grid, block, 0, 0, x, n, out); \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("rounding", wrong, e);
}

extern "C" int kv_gpu_random(void *x, size_t n, enum kv_type type,
                             uint64_t seed, float scale, struct kv_err *e)
{
    const dim3 grid(blocks(n)), block(THREADS);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                               \
    case T:                                                                   \
        wrong = kv_launch(kv_random_kernel<T>, grid, block, 0, 0, x, n, seed, \
                          scale);                                             \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("random numbers", wrong, e);
}
