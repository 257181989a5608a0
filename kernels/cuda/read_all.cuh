/* Reads memory once, as fast as the device can. */
#ifndef KV_CUDA_READ_ALL_CUH
#define KV_CUDA_READ_ALL_CUH

#include "kernels/cuda/gpu.cuh"

enum { KV_READ_THREADS = 512, KV_READ_BLOCKS = 4 /* blocks of a
                                                  * multiprocessor */ };

// Reads every word once; stores their sum only if it is 1, which is unlikely
// for random bytes but which the compiler cannot rule out.
static __global__ void __launch_bounds__(KV_READ_THREADS)
    kv_read_all(const uint4 *from, size_t words, uint4 *to)
{
    constexpr int UNROLL = 4;
    const size_t step = (size_t)gridDim.x * KV_READ_THREADS;
    size_t i = (size_t)blockIdx.x * KV_READ_THREADS + threadIdx.x;
    uint32_t sum = 0;

    for (; i + (UNROLL - 1) * step < words; i += UNROLL * step) {
        uint4 x[UNROLL];

#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            x[k] = from[i + k * step];
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
    }
    for (; i < words; i += step)
        sum ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
    if (sum == 1)
        to[threadIdx.x].x = sum;
}

#endif
