/* Reduces the numbers of all threads of a block to one. */
#ifndef KV_CUDA_REDUCE_CUH
#define KV_CUDA_REDUCE_CUH

#include "kernels/cuda/gpu.cuh"

// Every thread gets the same result, reduced in a fixed order.  workspace:
// [WARPS] in shared memory.
template <int WARPS, class F>
KV_DEVICE float kv_reduce(float x, float *workspace, F both)
{
    for (unsigned mask = 1; mask < 32; mask *= 2)
        x = both(x, kv_shuffle_xor(x, mask));
    kv_sync_block(); // the workspace may still be read
    if (kv_lane() == 0)
        workspace[kv_warp()] = x;
    kv_sync_block();
    x = workspace[0];
    for (int i = 1; i < WARPS; i++)
        x = both(x, workspace[i]);
    return x;
}

struct kv_plus {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

struct kv_larger {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

#endif
