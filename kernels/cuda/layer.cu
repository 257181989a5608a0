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

// Numbers of a row that a thread of kv_rms_norm_kernel holds, at most.
enum { HELD = 32 };

KV_DEVICE float kv_norm_factor(float sum, size_t n, float eps)
{
    float *const workspace = reinterpret_cast<float *>(kv_shared());

    return 1 /
           sqrtf(kv_reduce<WARPS>(sum, workspace, kv_plus()) / (float)n + eps);
}

// A block a row of n numbers, n a multiple of 4 and at most HELD a thread; rows
// and weight are 16-byte aligned.  A thread requests all that it reads before
// it waits for the sum, because weights come from a cold cache.
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

// The same for rows of any length and alignment, which are read twice.
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

// The destinations of one head of a token: plain before RoPE, rotated after it.
struct kv_head {
    const float *norm;
    float *plain, *rotated;
};

KV_DEVICE float *kv_head_of(float *all, size_t row, size_t heads, size_t head,
                            size_t d)
{
    return all ? all + (row * heads + head) * d : NULL;
}

KV_DEVICE kv_head kv_head_at(const kv_heads &h, size_t row, size_t head)
{
    const size_t kv = h.n_kv_heads, d = h.head_dim;

    if (head < h.n_heads)
        return {h.q_norm, NULL, kv_head_of(h.q, row, h.n_heads, head, d)};
    head -= h.n_heads;
    if (head < kv)
        return {h.k_norm, kv_head_of(h.k_pre, row, kv, head, d),
                kv_head_of(h.k, row, kv, head, d)};
    return {NULL, kv_head_of(h.v, row, kv, head - kv, d), NULL};
}

// A warp handles a head of a token; lane l has pairs l, l + 32, .. of channels:
// first the pairs that RoPE rotates, then pairs from the two halves of the
// other channels.
__global__ void __launch_bounds__(THREADS)
    kv_heads_kernel(kv_heads h, unsigned all)
{
    const size_t i = (size_t)blockIdx.x * WARPS + kv_warp();
    const size_t row = i / all, head = i % all;
    const unsigned d = (unsigned)h.head_dim, half = d / 2;
    const float *const x = h.qkv + i * d;
    const float *const bias = h.bias ? h.bias + head * d : NULL;
    float sum = 0, by = 1;

    if (row >= h.rows)
        return;

    const kv_head to = kv_head_at(h, row, head);

    if (to.norm) {
        for (unsigned c = kv_lane(); c < d; c += 32) {
            const float one = bias ? x[c] + bias[c] : x[c];

            sum = fmaf(one, one, sum);
        }
        for (unsigned mask = 1; mask < 32; mask *= 2)
            sum += kv_shuffle_xor(sum, mask);
        by = 1 / sqrtf(sum / (float)d + h.eps);
    }

    const unsigned n = (unsigned)h.pairs.n;
    const float *cosine = h.rope + (h.first + row) % h.n * 2 * n;
    const float *sine = cosine + n;

    for (unsigned i = kv_lane(); i < half; i += 32) {
        const bool turns = i < n;
        const unsigned low = turns ? i * (unsigned)h.pairs.step : n + i;
        const unsigned high =
            low + (turns ? (unsigned)h.pairs.apart : half - n);
        float a = bias ? x[low] + bias[low] : x[low];
        float b = bias ? x[high] + bias[high] : x[high];

        if (to.norm) {
            a = a * by * to.norm[low];
            b = b * by * to.norm[high];
        }
        if (to.plain) {
            to.plain[low] = a;
            to.plain[high] = b;
        }
        if (to.rotated) {
            const float by_a = turns ? cosine[i] : 1;
            const float by_b = turns ? sine[i] : 0;

            to.rotated[low] = a * by_a - b * by_b;
            to.rotated[high] = b * by_a + a * by_b;
        }
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
    kv_swiglu_kernel(float *gate_up, const float *bias, size_t n, void *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const float *row = gate_up + blockIdx.y * 2 * n;

    if (i < n) {
        const float g = row[i] + (bias ? bias[i] : 0);
        const float u = row[n + i] + (bias ? bias[n + i] : 0);

        kv_put<TYPE>(out, blockIdx.y * n + i,
                     g / (1 + kv_exp2(-1.44269504f * g)) * u);
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

extern "C" int kv_gpu_heads(const struct kv_heads *h, struct kv_err *e)
{
    const size_t all = h->n_heads + h->n_kv_heads * (h->v ? 2 : 1);
    const dim3 grid((unsigned)((h->rows * all + WARPS - 1) / WARPS));

    return report("RoPE",
                  kv_launch(kv_heads_kernel, grid, dim3(THREADS), 0, 0, *h,
                            (unsigned)all),
                  e);
}

extern "C" int kv_gpu_add_bias(float *x, const float *bias, size_t rows,
                               size_t n, struct kv_err *e)
{
    return report("bias",
                  kv_launch(kv_add_bias_kernel, dim3(blocks(n), (unsigned)rows),
                            dim3(THREADS), 0, 0, x, bias, n),
                  e);
}

extern "C" int kv_gpu_swiglu(float *gate_up, const float *bias, size_t rows,
                             size_t n, enum kv_type type, void *out,
                             struct kv_err *e)
{
    const dim3 grid(blocks(n), (unsigned)rows), block(THREADS);
    const char *wrong = NULL;

    switch (type) {
#define CASE(T)                                                            \
    case T:                                                                \
        wrong = kv_launch(kv_swiglu_kernel<T>, grid, block, 0, 0, gate_up, \
                          bias, n, out);                                   \
        break;
        KV_TYPES(CASE)
#undef CASE
    }
    return report("SwiGLU", wrong, e);
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
