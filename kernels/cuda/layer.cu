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
    else if ((u & 0x7fffffff) > 0x7f800000) // NaN stays NaN
        static_cast<uint16_t *>(to)[i] = (uint16_t)(u >> 16 | 0x40);
    else
        static_cast<uint16_t *>(to)[i] =
            (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// The most numbers of a row that a thread of kv_rms_norm_kernel holds.
enum { HELD = 32 };

KV_DEVICE float kv_norm_factor(float sum, size_t n, float eps)
{
    float *const workspace = reinterpret_cast<float *>(kv_shared());

    return 1 /
           sqrtf(kv_reduce<WARPS>(sum, workspace, kv_plus()) / (float)n + eps);
}

// A block takes a row of n numbers, n a multiple of 4 and at most HELD per
// thread; rows and weight are 16-byte aligned.  A thread requests all that it
// reads before it waits for the sum, because weights come from a cold cache.
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_rms_norm_kernel(const float *x, const float *weight, size_t n, float eps,
                       void *out)
{
    const size_t row = blockIdx.x * n;
    uint4 v[HELD / 4], w[HELD / 4];
    float sum = 0;

#pragma unroll
    for (unsigned i = 0; i < HELD / 4; i++) {
        const unsigned at = (threadIdx.x + i * THREADS) * 4;

        v[i] = w[i] = uint4{0, 0, 0, 0};
        if (at < n) {
            v[i] = kv_load16(x + row + at);
            w[i] = kv_load16(weight + at);
        }
    }
#pragma unroll
    for (unsigned i = 0; i < HELD / 4; i++) {
        const uint32_t bits[4] = {v[i].x, v[i].y, v[i].z, v[i].w};

#pragma unroll
        for (int j = 0; j < 4; j++)
            sum = fmaf(kv_from_bits(bits[j]), kv_from_bits(bits[j]), sum);
    }

    const float by = kv_norm_factor(sum, n, eps);

#pragma unroll
    for (unsigned i = 0; i < HELD / 4; i++) {
        const unsigned at = (threadIdx.x + i * THREADS) * 4;
        const uint32_t a[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        const uint32_t b[4] = {w[i].x, w[i].y, w[i].z, w[i].w};

#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            if (at < n)
                kv_put<TYPE>(out, row + at + j,
                             kv_from_bits(a[j]) * by * kv_from_bits(b[j]));
    }
}

// RMSNorm for rows of any length and alignment, which are read twice.
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_rms_norm_any_kernel(const float *x, const float *weight, size_t n,
                           float eps, void *out)
{
    const float *const row = x + blockIdx.x * n;
    float sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(row[i], row[i], sum);

    const float by = kv_norm_factor(sum, n, eps);

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        kv_put<TYPE>(out, blockIdx.x * n + i, row[i] * by * weight[i]);
}

// LayerNorm; a block takes a row.
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

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % sizeof(uint4) == 0;
}

extern "C" int kv_gpu_rms_norm(const float *x, const float *weight, size_t rows,
                               size_t n, float eps, enum kv_type type,
                               void *out, struct kv_err *e)
{
    const dim3 grid((unsigned)rows), block(THREADS);
    const size_t shared = WARPS * sizeof(float);
    const bool held = n % 4 == 0 && n <= (size_t)HELD * THREADS &&
                      is_aligned(x) && is_aligned(weight);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                            \
    case T:                                                                \
        wrong = kv_launch(held ? kv_rms_norm_kernel<T>                     \
                               : kv_rms_norm_any_kernel<T>,                \
                          grid, block, shared, 0, x, weight, n, eps, out); \
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
