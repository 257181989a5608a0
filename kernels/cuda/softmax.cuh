/* Online softmax: weights are exp(score - the largest score so far); a larger
 * score rescales the sums so far by a factor. */
#ifndef KV_CUDA_SOFTMAX_CUH
#define KV_CUDA_SOFTMAX_CUH

#include "kernels/cuda/gpu.cuh"

#define KV_NONE (-__builtin_huge_valf()) /* the score of a token that is not
                                          * seen */

/* One lane's part of the warp's softmax so far: the largest score and the sum
 * of weights of columns 2c and 2c + 1 of each N-tile. */
template <int NT> struct kv_softmax {
    float max[NT][2], sum[NT][2];
};

template <int NT> KV_DEVICE void kv_softmax_clear(kv_softmax<NT> &x)
{
    for (int i = 0; i < NT; i++)
        for (int j = 0; j < 2; j++) {
            x.max[i][j] = KV_NONE;
            x.sum[i][j] = 0;
        }
}

/* Reduces over the lanes that share a column. */
KV_DEVICE float kv_column_max(float x)
{
    for (unsigned mask = 4; mask < 32; mask *= 2)
        x = fmaxf(x, kv_shuffle_xor(x, mask));
    return x;
}

KV_DEVICE float kv_column_sum(float x)
{
    for (unsigned mask = 4; mask < 32; mask *= 2)
        x += kv_shuffle_xor(x, mask);
    return x;
}

/* Turns scores into weights; factor: the factor for earlier weights. */
template <int M, int NT>
KV_DEVICE void kv_softmax_step(kv_softmax<NT> &x, float s[M][NT][4],
                               float factor[NT][2])
{
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float max = x.max[i][j], sum = 0;

#pragma unroll
            for (int m = 0; m < M; m++)
                max = fmaxf(max, fmaxf(s[m][i][j], s[m][i][j + 2]));
            max = kv_column_max(max);

            const float shift = max == KV_NONE ? 0 : max;

            factor[i][j] = kv_exp2(x.max[i][j] - shift);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int k = j; k < 4; k += 2) {
                    s[m][i][k] = kv_exp2(s[m][i][k] - shift);
                    sum += s[m][i][k];
                }
            x.max[i][j] = max;
            x.sum[i][j] = fmaf(x.sum[i][j], factor[i][j], sum);
        }
}

/* kv_softmax_step() by a warp for one row, each lane of which holds N scores;
 * returns the factor for earlier weights. */
template <int N>
KV_DEVICE float kv_softmax_row(float (&s)[N], float &max, float &sum)
{
    float top = max, added = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        top = fmaxf(top, s[i]);
    for (unsigned mask = 1; mask < 32; mask *= 2)
        top = fmaxf(top, kv_shuffle_xor(top, mask));

    const float shift = top == KV_NONE ? 0 : top;
    const float factor = kv_exp2(max - shift);

#pragma unroll
    for (int i = 0; i < N; i++) {
        s[i] = kv_exp2(s[i] - shift);
        added += s[i];
    }
    for (unsigned mask = 1; mask < 32; mask *= 2)
        added += kv_shuffle_xor(added, mask);
    max = top;
    sum = fmaf(sum, factor, added);
    return factor;
}

#endif
