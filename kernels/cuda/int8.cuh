/* Shared by the policies of path int8: sums of products, and numbers as
 * bytes. */
#ifndef KV_CUDA_INT8_CUH
#define KV_CUDA_INT8_CUH

#include "kernels/cuda/gpu.cuh"

/* A sum s of products starts at the bits of 1.5 * 2^23 as a float, so that the
 * result is the bits of 1.5 * 2^23 + s: one subtraction replaces the conversion
 * to float. */
#define KV_SUM_START 12582912.0f

KV_DEVICE int kv_sum_start(void)
{
    return (int)kv_bits(KV_SUM_START);
}

KV_DEVICE float kv_sum_f32(int sum)
{
    return kv_from_bits((uint32_t)sum) - KV_SUM_START;
}

enum { KV_MAX_SUM = 1 << 22 };

/* The low bytes of four words. */
KV_DEVICE uint32_t kv_low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return kv_bytes(kv_bytes(a, b, 0x0040), kv_bytes(c, d, 0x0040), 0x5410);
}

/* The integer nearest to x times `up`, in the low bits: 1.5 * 2^23 leaves no
 * room for a fraction. */
KV_DEVICE uint32_t kv_nearest(float x, float up)
{
    return kv_bits(fmaf(x, up, KV_SUM_START));
}

/* The weights of 16 tokens times `up` as bytes, one word of fragment b: its
 * rows k = 4c .. 4c + 3 are tokens 2c, 2c + 8, 2c + 1, 2c + 9. */
KV_DEVICE uint32_t kv_weights_u8(const float *weight, const float *up)
{
    uint32_t byte[4];

#pragma unroll
    for (int j = 0; j < 4; j++)
        byte[j] = kv_nearest(weight[j], up[j % 2]);
    return kv_transpose(kv_low_bytes(byte[0], byte[2], byte[1], byte[3]));
}

#endif
