/* What policies of integers in groups (grouped_codes.h: how they lie) have in
 * common.
 */
#ifndef KV_INTEGERS_CUDA_CUH
#define KV_INTEGERS_CUDA_CUH

#include "kernels/float/cuda.cuh"
#include "kernels/integers/cuda_codes.h"

/* Two blocks of 8 warps, one step ahead each, keep the memory busy. */
enum { KV_INTEGERS_STAGES = 2 };

/* A code's subnormal half is code * 2^-24. */
#define KV_CODES_PER_UNIT 0x1p24f

template <int BITS> struct kv_fields {
    static constexpr int T = 128 / BITS;
    static constexpr int PAIRS = 16 / BITS; /* of a word */

    static __host__ __device__ constexpr int at(int j)
    {
        return KV_FIELD_AT(BITS, j);
    }
    static __host__ __device__ constexpr float weight(int j)
    {
        return 1.0f / (1 << at(j));
    }
    /* Both codes of pair j as halves. */
    static __device__ uint32_t pair(uint32_t word, int j)
    {
        constexpr uint32_t mask = ((1u << BITS) - 1) * 0x10001u;

        return word >> KV_FIELD_SHIFT(BITS, j) & mask << at(j);
    }
    /* Fragment a of pairs 2 k and 2 k + 1 of two rows' words. */
    static __device__ void fragment(const uint32_t *words, int k, uint32_t *a)
    {
        a[0] = pair(words[0], 2 * k);
        a[1] = pair(words[1], 2 * k);
        a[2] = pair(words[0], 2 * k + 1);
        a[3] = pair(words[1], 2 * k + 1);
    }
};

/* N words of this lane's, from word `first` on. */
template <int N>
static __device__ void kv_code_words(const uint8_t *codes, int first,
                                     uint32_t *w)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        kv_unpack16(codes + ((first / 4 + i) * 32 + kv_lane()) * 16, w + 4 * i);
}

/* Of a vector of pairs, this lane's from pair `first` on: N. */
template <int N>
static __device__ void kv_pair_words(const uint8_t *vector, int first,
                                     uint32_t *w)
{
    const unsigned c = kv_lane() % 4;

    if constexpr (N == 2) { /* a vector of two */
        const uint2 x = kv_load8(vector + c * 8);

        w[0] = x.x;
        w[1] = x.y;
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            kv_unpack16(vector + ((first / 4 + i) * 4 + c) * 16, w + 4 * i);
    }
}

/* The largest of queries [8 NT][D], which all lanes learn; 1 where all are 0.
 */
template <int D, int NT> KV_DEVICE float kv_largest(const float *q)
{
    float x = 0;

#pragma unroll
    for (int i = 0; i < 8 * NT * D / 32; i++)
        x = fmaxf(x, fabsf(q[i * 32 + kv_lane()]));
#pragma unroll
    for (unsigned mask = 1; mask < 32; mask *= 2)
        x = fmaxf(x, kv_shuffle_xor(x, mask));
    return x > 0 ? x : 1;
}

KV_DEVICE float kv_float_at(const uint8_t *at, unsigned i)
{
    return reinterpret_cast<const float *>(at)[i];
}

KV_DEVICE uint32_t kv_word_at(const uint8_t *at, unsigned i)
{
    return reinterpret_cast<const uint32_t *>(at)[i];
}

/* Sums in units of which `inverse` is one over, times factor and into those of
 * a tile, | unit | 1 / unit |; scaled: by how much that is altogether. */
template <int D, int NT>
KV_DEVICE void kv_sums_rescale(kv_sums_f32<D, NT> &o, float *inverse,
                               const uint8_t *head, const float factor[NT][2],
                               float scaled[NT][2])
{
    const float change = kv_float_at(head, 0) * *inverse;

#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            scaled[i][j] = factor[i][j] * change;
    kv_sums_scale<D, NT>(o, scaled);
    *inverse = kv_float_at(head, 1);
}

#endif
