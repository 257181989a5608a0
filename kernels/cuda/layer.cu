#include "kernels/cuda/layer.h"

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/reduce.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

#define KV_TYPES(X) X(KV_GPU_F16) X(KV_GPU_BF16) X(KV_GPU_F32)

static unsigned blocks(size_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

static int report(const char *what, const char *wrong, struct kv_err *e)
{
    return wrong ? kv_fail(e, "%s: %s", what, wrong) : 0;
}

// To the nearest, ties to even.
template <int TYPE> KV_DEVICE void kv_put(void *to, size_t i, float x)
{
    const uint32_t u = kv_bits(x);

    if (TYPE == KV_GPU_F32)
        static_cast<float *>(to)[i] = x;
    else if (TYPE == KV_GPU_F16)
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
    float *const room = reinterpret_cast<float *>(kv_shared());
    const float *row = x + blockIdx.x * n;
    float sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(row[i], row[i], sum);
    sum = kv_reduce<WARPS>(sum, room, kv_plus());

    const float by = 1 / sqrtf(sum / (float)n + eps);

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        kv_put<TYPE>(out, blockIdx.x * n + i, row[i] * by * weight[i]);
}

// A warp a head of a token; lane l has channels l, l + 32, .. of each half, and
// so both of a pair that turns.
__global__ void __launch_bounds__(THREADS) kv_heads_kernel(kv_gpu_heads h)
{
    const size_t i = (size_t)blockIdx.x * WARPS + kv_warp();
    const size_t row = i / h.heads, head = i % h.heads;
    const unsigned half = (unsigned)(h.head_dim / 2);
    float *const x = h.x + i * h.head_dim;
    float sum = 0, by = 1;

    if (row >= h.rows)
        return;
    for (unsigned c = kv_lane(); c < h.head_dim && h.bias; c += 32)
        x[c] += h.bias[head * h.head_dim + c];
    kv_sync_warp(); // other lanes' channels from here on
    if (h.norm) {
        for (unsigned c = kv_lane(); c < h.head_dim; c += 32)
            sum = fmaf(x[c], x[c], sum);
        for (unsigned mask = 1; mask < 32; mask *= 2)
            sum += kv_shuffle_xor(sum, mask);
        by = 1 / sqrtf(sum / (float)h.head_dim + h.eps);
        for (unsigned c = kv_lane(); c < h.head_dim; c += 32)
            x[c] = x[c] * by * h.norm[c];
        kv_sync_warp();
    }
    if (!h.turned)
        return;

    const float *cosine = h.turns + (h.first + row) % h.n * 2 * h.n_rot;
    const float *sine = cosine + h.n_rot;
    float *const to = h.turned + i * h.head_dim;

    for (unsigned c = kv_lane(); c < half; c += 32) {
        const bool turns = c < h.n_rot;
        const float by_a = turns ? cosine[c] : 1, by_b = turns ? sine[c] : 0;
        const float a = x[c], b = x[c + half];

        to[c] = a * by_a - b * by_b;
        to[c + half] = b * by_a + a * by_b;
    }
}

__global__ void __launch_bounds__(THREADS)
    kv_add_bias_kernel(float *x, const float *bias, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[blockIdx.y * n + i] += bias[i];
}

template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_swiglu_kernel(const float *gate, const float *gate_bias, const float *up,
                     const float *up_bias, size_t n, void *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t at = blockIdx.y * n + i;

    if (i < n) {
        const float g = gate[at] + (gate_bias ? gate_bias[i] : 0);
        const float u = up[at] + (up_bias ? up_bias[i] : 0);

        kv_put<TYPE>(out, at, g / (1 + kv_exp2(-1.44269504f * g)) * u);
    }
}

template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    kv_round_kernel(const float *x, size_t n, void *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        kv_put<TYPE>(out, i, x[i]);
}

// ---- launching -------------------------------------------------------------

extern "C" int kv_gpu_rms_norm(const float *x, const float *weight, size_t rows,
                               size_t n, float eps, enum kv_gpu_type type,
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

extern "C" int kv_gpu_rotate_heads(const struct kv_gpu_heads *h,
                                   struct kv_err *e)
{
    const dim3 grid((unsigned)((h->rows * h->heads + WARPS - 1) / WARPS));

    return report("RoPE",
                  kv_launch(kv_heads_kernel, grid, dim3(THREADS), 0, 0, *h), e);
}

extern "C" int kv_gpu_add_bias(float *x, const float *bias, size_t rows,
                               size_t n, struct kv_err *e)
{
    return report("bias",
                  kv_launch(kv_add_bias_kernel, dim3(blocks(n), (unsigned)rows),
                            dim3(THREADS), 0, 0, x, bias, n),
                  e);
}

extern "C" int kv_gpu_swiglu(const float *gate, const float *gate_bias,
                             const float *up, const float *up_bias, size_t rows,
                             size_t n, enum kv_gpu_type type, void *out,
                             struct kv_err *e)
{
    const dim3 grid(blocks(n), (unsigned)rows), block(THREADS);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                         \
    case T:                                                             \
        wrong = kv_launch(kv_swiglu_kernel<T>, grid, block, 0, 0, gate, \
                          gate_bias, up, up_bias, n, out);              \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("SwiGLU", wrong, e);
}

extern "C" int kv_gpu_round(const float *x, size_t n, enum kv_gpu_type type,
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
