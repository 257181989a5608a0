#include "kernels/cuda/step.h"

#include "kernels/cuda/reduce.cuh"
#include "kernels/float/cuda.cuh"
#include "lib/base/rng.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

static unsigned blocks(size_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

static int report(const char *what, const char *wrong, struct kv_err *e)
{
    return wrong ? kv_fail(e, "%s: %s", what, wrong) : 0;
}

KV_DEVICE float kv_half_at(const uint16_t *x, size_t i)
{
    return kv_low_f16(x[i]);
}

KV_DEVICE uint16_t kv_to_half(float x)
{
    return (uint16_t)kv_pack_f16(x, 0);
}

__global__ void __launch_bounds__(THREADS)
    kv_random_kernel(uint16_t *x, size_t n, uint64_t seed, float scale)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[i] = kv_to_half((2 * kv_random_unit(seed, i) - 1) * scale);
}

// A block a row.
__global__ void __launch_bounds__(THREADS)
    kv_norm_kernel(const uint16_t *x, const uint16_t *weight, size_t n,
                   float eps, uint16_t *out)
{
    float *const room = reinterpret_cast<float *>(kv_shared());
    const uint16_t *row = x + blockIdx.x * n;
    float sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum += kv_half_at(row, i) * kv_half_at(row, i);
    sum = kv_reduce<WARPS>(sum, room, kv_plus());

    const float by = 1 / sqrtf(sum / (float)n + eps);

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        out[blockIdx.x * n + i] =
            kv_to_half(kv_half_at(row, i) * by * kv_half_at(weight, i));
}

struct kv_rope_shape {
    unsigned n_heads, n_kv_heads, head_dim;
};

// A block a (head of qkv, row); a thread a pair of channels.
__global__ void __launch_bounds__(THREADS)
    kv_rope_kernel(const uint16_t *qkv, const struct kv_gpu_slot *slots,
                   const float *inv_freq, kv_rope_shape s, float *q)
{
    const unsigned heads = s.n_heads + 2 * s.n_kv_heads, half = s.head_dim / 2;
    const unsigned head = blockIdx.x, row = blockIdx.y;
    const struct kv_gpu_slot slot = slots[row];
    const uint16_t *x = qkv + ((size_t)row * heads + head) * s.head_dim;

    for (unsigned i = threadIdx.x; i < half; i += THREADS) {
        const bool value = head >= s.n_heads + s.n_kv_heads;
        const float angle = (float)slot.position * inv_freq[i];
        const float cosine = value ? 1 : cosf(angle);
        const float sine = value ? 0 : sinf(angle);
        const float a = kv_half_at(x, i), b = kv_half_at(x, i + half);
        const float turned[2] = {a * cosine - b * sine, b * cosine + a * sine};

#pragma unroll
        for (int k = 0; k < 2; k++) {
            const unsigned c = i + k * half;

            if (head < s.n_heads) {
                q[((size_t)row * s.n_heads + head) * s.head_dim + c] =
                    turned[k];
            } else if (slot.k) {
                const unsigned kv = (head - s.n_heads) % s.n_kv_heads;
                uint16_t *to = reinterpret_cast<uint16_t *>(
                    (value ? slot.v : slot.k) + kv * slot.head_bytes);

                to[kv_tile_place(value, slot.token, c, s.head_dim)] =
                    kv_to_half(turned[k]);
            }
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    kv_gate_kernel(const uint16_t *x, size_t n, uint16_t *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const uint16_t *row = x + blockIdx.y * 2 * n;

    if (i < n) {
        const float g = kv_half_at(row, i);

        out[blockIdx.y * n + i] = kv_to_half(
            g / (1 + kv_exp2(-1.44269504f * g)) * kv_half_at(row, n + i));
    }
}

// A block a row.
__global__ void __launch_bounds__(THREADS)
    kv_softmax_kernel(uint16_t *x, size_t n, float scale)
{
    float *const room = reinterpret_cast<float *>(kv_shared());
    uint16_t *row = x + blockIdx.x * n;
    float max = -__builtin_huge_valf(), sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        max = fmaxf(max, kv_half_at(row, i));
    max = kv_reduce<WARPS>(max, room, kv_larger());
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum += kv_exp2((kv_half_at(row, i) - max) * scale);
    sum = kv_reduce<WARPS>(sum, room, kv_plus());
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        row[i] = kv_to_half(kv_exp2((kv_half_at(row, i) - max) * scale) / sum);
}

__global__ void __launch_bounds__(THREADS)
    kv_narrow_kernel(const float *x, size_t n, uint16_t *out)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        out[i] = kv_to_half(x[i]);
}

// ---- launching -------------------------------------------------------------

extern "C" int kv_gpu_random(void *x, size_t n, uint64_t seed, float scale,
                             struct kv_err *e)
{
    return report("random numbers",
                  kv_launch(kv_random_kernel, dim3(blocks(n)), dim3(THREADS), 0,
                            0, static_cast<uint16_t *>(x), n, seed, scale),
                  e);
}

extern "C" int kv_gpu_norm(const void *x, const void *weight, size_t rows,
                           size_t n, float eps, void *out, struct kv_err *e)
{
    return report("RMSNorm",
                  kv_launch(kv_norm_kernel, dim3((unsigned)rows), dim3(THREADS),
                            WARPS * sizeof(float), 0,
                            static_cast<const uint16_t *>(x),
                            static_cast<const uint16_t *>(weight), n, eps,
                            static_cast<uint16_t *>(out)),
                  e);
}

extern "C" int kv_gpu_rope(const void *qkv, const struct kv_gpu_slot *slot,
                           const float *inv_freq, size_t rows, size_t n_heads,
                           size_t n_kv_heads, size_t head_dim, float *q,
                           struct kv_err *e)
{
    const kv_rope_shape shape = {(unsigned)n_heads, (unsigned)n_kv_heads,
                                 (unsigned)head_dim};
    const dim3 grid((unsigned)(n_heads + 2 * n_kv_heads), (unsigned)rows);

    return report("RoPE",
                  kv_launch(kv_rope_kernel, grid, dim3(THREADS), 0, 0,
                            static_cast<const uint16_t *>(qkv), slot, inv_freq,
                            shape, q),
                  e);
}

extern "C" int kv_gpu_gate(const void *x, size_t rows, size_t n, void *out,
                           struct kv_err *e)
{
    return report("SwiGLU",
                  kv_launch(kv_gate_kernel, dim3(blocks(n), (unsigned)rows),
                            dim3(THREADS), 0, 0,
                            static_cast<const uint16_t *>(x), n,
                            static_cast<uint16_t *>(out)),
                  e);
}

extern "C" int kv_gpu_softmax(void *x, size_t rows, size_t n, float scale,
                              struct kv_err *e)
{
    return report("softmax",
                  kv_launch(kv_softmax_kernel, dim3((unsigned)rows),
                            dim3(THREADS), WARPS * sizeof(float), 0,
                            static_cast<uint16_t *>(x), n, scale * 1.44269504f),
                  e);
}

extern "C" int kv_gpu_narrow(const float *x, size_t n, void *out,
                             struct kv_err *e)
{
    return report("rounding",
                  kv_launch(kv_narrow_kernel, dim3(blocks(n)), dim3(THREADS), 0,
                            0, x, n, static_cast<uint16_t *>(out)),
                  e);
}
