/* Reads integer codes in groups and the groups' heads (scales, minima) in the
 * encoder's layout (device_code.h). */
#ifndef KV_CUDA_ENCODED_GROUPS_CUH
#define KV_CUDA_ENCODED_GROUPS_CUH

#include "kernels/cuda/bitpack.cuh"
#include "kernels/device_code.h"
#include "kernels/integers/cuda_quantizers.cuh"

// Tokens of one KV head in encoded blocks, from the first token of `bytes` on;
// Q decodes a group's head.
template <class Q> struct kv_coded_head {
    const kv_gpu_groups &g;
    unsigned heads, head, head_dim;
    const uint8_t *bytes;

    // The unit of token t, and the index of channel c's code in it.
    __device__ const uint8_t *unit(unsigned t, unsigned c, unsigned *i) const
    {
        const bool own = g.unit == head_dim; // a unit is one head
        const unsigned len = (unsigned)g.len;
        const unsigned row = g.by_channel ? t / len : t;

        *i = g.by_channel ? c * len + t % len : own ? c : head * head_dim + c;
        return bytes + (own ? row * heads + head : row) * g.unit_bytes;
    }

    __device__ unsigned code(unsigned t, unsigned c) const
    {
        unsigned i;
        const uint8_t *const from = unit(t, c, &i);

        return kv_code_at(from, i, g.bits);
    }

    __device__ Q group(unsigned t, unsigned c) const
    {
        unsigned i;
        const uint8_t *const from = unit(t, c, &i);
        Q q;

        q.take(from + g.code_bytes, i / g.len, g.n_groups);
        return q;
    }
};

#endif
