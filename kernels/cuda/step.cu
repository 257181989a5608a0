#include "kernels/cuda/step.h"

#include "kernels/cuda/reduce.cuh"
#include "kernels/float/cuda.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

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

// A thread block for each (KV head, row), a thread for each channel.
__global__ void __launch_bounds__(THREADS)
    kv_newest_kernel(const float *k, const float *v,
                     const struct kv_gpu_slot *slots, unsigned heads,
                     unsigned head_dim)
{
    const unsigned head = blockIdx.x, row = blockIdx.y;
    const struct kv_gpu_slot slot = slots[row];
    const size_t at = ((size_t)row * heads + head) * head_dim;

    if (!slot.k)
        return;

    uint16_t *const keys =
        reinterpret_cast<uint16_t *>(slot.k + head * slot.head_bytes);
    uint16_t *const values =
        reinterpret_cast<uint16_t *>(slot.v + head * slot.head_bytes);

    for (unsigned c = threadIdx.x; c < head_dim; c += THREADS) {
        keys[kv_tile_place(false, slot.token, c, head_dim)] =
            kv_to_half(k[at + c]);
        values[kv_tile_place(true, slot.token, c, head_dim)] =
            kv_to_half(v[at + c]);
    }
}

// A block takes a row.
__global__ void __launch_bounds__(THREADS)
    kv_softmax_kernel(uint16_t *x, size_t n, float scale)
{
    float *const workspace = reinterpret_cast<float *>(kv_shared());
    uint16_t *row = x + blockIdx.x * n;
    float max = -__builtin_huge_valf(), sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        max = fmaxf(max, kv_half_at(row, i));
    max = kv_reduce<WARPS>(max, workspace, kv_larger());
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum += kv_exp2((kv_half_at(row, i) - max) * scale);
    sum = kv_reduce<WARPS>(sum, workspace, kv_plus());
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        row[i] = kv_to_half(kv_exp2((kv_half_at(row, i) - max) * scale) / sum);
}

// ---- launching -------------------------------------------------------------

extern "C" int kv_gpu_put_newest(const float *k, const float *v,
                                 const struct kv_gpu_slot *slot, size_t rows,
                                 size_t n_kv_heads, size_t head_dim,
                                 struct kv_err *e)
{
    const dim3 grid((unsigned)n_kv_heads, (unsigned)rows);

    return report("the newest token",
                  kv_launch(kv_newest_kernel, grid, dim3(THREADS), 0, 0, k, v,
                            slot, (unsigned)n_kv_heads, (unsigned)head_dim),
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
