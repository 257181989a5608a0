/* The decision of kernels/nearest/nearest.h, bit by bit, for a thread's points.
 */
#ifndef KV_NEAREST_CUDA_NEARER_CUH
#define KV_NEAREST_CUDA_NEARER_CUH

#include "kernels/cuda/gpu.cuh"

/* All dimensions, 1 to KV_NEAREST_MAX_D. */
#define KV_NEAREST_DIMS(X) \
    X(1)                   \
    X(2)                   \
    X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)

/* Points x, the nearest center of each so far and its distance. */
template <int D, int N> struct kv_nearer {
    float x[N][D], min[N];
    unsigned best[N];

    __device__ void start(void)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            min[i] = __builtin_huge_valf();
            best[i] = 0;
        }
    }

    /* Adds a center; centers must come in the order of their index. */
    __device__ void see(const float *center, unsigned index)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float s = 0;

#pragma unroll
            for (int j = 0; j < D; j++) {
                const float t = x[i][j] - center[j];

                s = fmaf(t, t, s);
            }
            if (s < min[i]) {
                min[i] = s;
                best[i] = index;
            }
        }
    }

    /* Reduces the lanes' results, each over its own centers, to the minimum in
     * all lanes. */
    __device__ void agree(void)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            for (unsigned mask = 1; mask < 32; mask *= 2) {
                const float s = kv_shuffle_xor(min[i], mask);
                const unsigned other =
                    kv_bits(kv_shuffle_xor(kv_from_bits(best[i]), mask));

                if (s < min[i] || (s == min[i] && other < best[i])) {
                    min[i] = s;
                    best[i] = other;
                }
            }
    }
};

#endif
