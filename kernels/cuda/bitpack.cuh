/* Reads packed codes (kernels/bitpack.h). */
#ifndef KV_CUDA_BITPACK_CUH
#define KV_CUDA_BITPACK_CUH

#include "kernels/cuda/gpu.cuh"

// Code i, of at most 16 bits.
KV_DEVICE unsigned kv_code_at(const uint8_t *codes, size_t i, unsigned bits)
{
    const size_t bit = i * bits;
    const unsigned skip = bit % 8, bytes = (skip + bits + 7) / 8;
    uint32_t word = 0;

    for (unsigned j = 0; j < bytes; j++)
        word |= (uint32_t)codes[bit / 8 + j] << 8 * j;
    return word >> skip & ((1u << bits) - 1);
}

#endif
