/* Rows into and out of the codes' space (kernels/tiles/tiles.h, enter and
 * leave). */
#ifndef KV_CUDA_SPACE_CUH
#define KV_CUDA_SPACE_CUH

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
    const unsigned apart = KV_WARPS * C, first = kv_lane() / C;

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

/* Loads the KV head's matrix into the L2 before it is needed. */
KV_DEVICE void kv_prefetch_matrix(const float *matrix, unsigned d)
{
    if (!matrix)
        return;

    const float *const m = matrix + (size_t)blockIdx.y * d * d;

    for (unsigned i = threadIdx.x * 32; i < d * d; i += blockDim.x * 32)
        kv_prefetch(m + i);
}

#endif
