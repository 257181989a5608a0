/* Rows into and out of the codes' space (kernels/tiles/tiles.h, enter and
 * leave). */
#ifndef KV_CUDA_SPACE_CUH
#define KV_CUDA_SPACE_CUH

#include "kernels/cuda/decode.h"
#include "kernels/cuda/ring.cuh"

/* Rows that share a load of the matrix; lanes that share the sum of a channel.
 */
enum { KV_ROTATED_ROWS = 4, KV_ROTATED_LANES = 4 };

/* Calls put(row, channel, y) for the first n rows of y = x m, with m the KV
 * head's matrix.  Rows up to the next multiple of KV_ROTATED_ROWS exist, may
 * hold anything, and are passed too.  x: [rows][d] in shared memory.  All
 * threads call it. */
template <class F>
KV_DEVICE void kv_rotate(const float *matrix, const float *x, unsigned n,
                         unsigned d, const F &put)
{
    constexpr unsigned R = KV_ROTATED_ROWS, L = KV_ROTATED_LANES, C = 32 / L;
    const unsigned apart = kv_block_warps() * C, first = kv_lane() / C;

    for (unsigned row = 0; row < n; row += R)
        for (unsigned base = kv_warp() * C; base < d; base += apart) {
            const unsigned c = base + kv_lane() % C;
            const float *const m =
                matrix + (size_t)blockIdx.y * d * d + (c < d ? c : 0);
            float sum[R] = {0};

#pragma unroll 16
            for (unsigned j = first; j < d; j += L) {
                const float by = m[(size_t)j * d];

#pragma unroll
                for (unsigned r = 0; r < R; r++)
                    sum[r] += x[(row + r) * d + j] * by;
            }
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
                for (unsigned mask = C; mask < 32; mask *= 2)
                    sum[r] += kv_shuffle_xor(sum[r], mask);
                if (c < d && first == 0)
                    put(row + r, c, sum[r]);
            }
        }
}

/* kv_rotate() by a Hadamard transform instead of a matrix, in place in x.
 * Warps take rows, and passes go from the widest pairs to the narrowest. */
template <class F>
KV_DEVICE void kv_hadamard_rows(const kv_gpu_space &s, float *x, unsigned n,
                                unsigned d, const F &put)
{
    const size_t head = blockIdx.y * (size_t)d;

    for (unsigned row = kv_warp(); row < n; row += kv_block_warps()) {
        float *const its = x + row * d;

        for (unsigned c = kv_lane(); s.before && c < d; c += 32)
            its[c] *= s.before[head + c];
        for (unsigned half = s.hadamard / 2; half > 0; half /= 2) {
            kv_sync_warp();
            for (unsigned i = kv_lane(); i < d / 2; i += 32) {
                const unsigned j = i + (i & ~(half - 1)); /* i / half * half */
                const float a = its[j], b = its[j + half];

                its[j] = a + b;
                its[j + half] = a - b;
            }
        }
        kv_sync_warp();
        for (unsigned c = kv_lane(); c < d; c += 32)
            put(row, c, its[c] * s.scale * (s.after ? s.after[head + c] : 1));
    }
}

KV_DEVICE bool kv_is_space(const kv_gpu_space &s)
{
    return s.kind != KV_SPACE_NONE;
}

/* Calls put(row, channel, y) for the first n rows, transformed.  x: [rows][d]
 * in shared memory, which may be overwritten; it has the rows that kv_rotate()
 * needs.  All threads call it, after a barrier. */
template <class F>
KV_DEVICE void kv_change_space(const kv_gpu_space &s, float *x, unsigned n,
                               unsigned d, const F &put)
{
    if (s.kind == KV_SPACE_HADAMARD)
        kv_hadamard_rows(s, x, n, d, put);
    else
        kv_rotate(s.matrix, x, n, d, put);
}

/* Loads the KV head's share of n floats a head into the L2. */
KV_DEVICE void kv_prefetch_head(const float *x, size_t n)
{
    for (size_t i = threadIdx.x * 32; x && i < n; i += blockDim.x * 32)
        kv_prefetch(x + blockIdx.y * n + i);
}

/* Loads what a transform reads into the L2 before it is needed. */
KV_DEVICE void kv_prefetch_space(const kv_gpu_space &s, unsigned d)
{
    kv_prefetch_head(s.matrix, (size_t)d * d);
    kv_prefetch_head(s.before, d);
    kv_prefetch_head(s.after, d);
}

#endif
