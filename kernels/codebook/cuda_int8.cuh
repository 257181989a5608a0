/* Codebooks on path int8, with products in integers.  Centroids are rounded to
 * 8 bits relative to the largest value of their dimension in a table, queries
 * (times those scales) relative to their largest channel, and weights relative
 * to the largest weight of their step.
 *
 * Relative to the largest weight so far, thousands of small weights beside a
 * large one would all be 0. */
#ifndef KV_CODEBOOK_CUDA_INT8_CUH
#define KV_CODEBOOK_CUDA_INT8_CUH

#include "kernels/codebook/cuda.cuh"
#include "kernels/cuda/int8.cuh"

/* Queries as fragments b.  A lane's 8 channels of a token are 4 columns of each
 * half of a product over 32 channels. */
template <int D, int NT> struct kv_queries_s8 {
    uint32_t b[NT][D / 32][2];
    float scale[NT][2]; /* columns 2c, 2c + 1 */
};

/* A row whose |q scale| never exceeds this counts as zeros. */
#define KV_MIN_QUERY 1e-30f

/* The largest |q scale| of a row, found by the lanes that share c. */
template <int D>
KV_DEVICE float kv_query_max(const float *q, const float *scale)
{
    float max = 0;

#pragma unroll
    for (unsigned i = 0; i < D / 8; i++) {
        const unsigned channel = i * 8 + kv_lane() / 4;

        max = fmaxf(max, fabsf(q[channel] * scale[channel]));
    }
    return kv_column_max(max);
}

/* Four channels as bytes. */
KV_DEVICE uint32_t kv_query_bytes(const float *q, const float *scale, float up)
{
    uint32_t x = 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
        x |= (uint32_t)(kv_round(q[i] * scale[i] * up) & 0xff) << 8 * i;
    return x;
}

template <class B> struct kv_codebook_keys_s8 : kv_codebook_side<B> {
    static constexpr int D = B::D;
    using params = kv_codebook_params;
    template <int NT> using query = kv_queries_s8<D, NT>;

    static_assert(D * 127 * 127 < KV_MAX_SUM, "a sum fits its float");

    template <int NT>
    static __device__ void prepare(const params &p, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
        const float *const scale = kv_codebook_scales<B>(p, blockIdx.y);

#pragma unroll
        for (int i = 0; i < NT; i++) {
            const float *const row = q + (i * 8 + r) * D;
            float max = 0;

#pragma unroll
            for (int j = 0; j < 2; j++)
                x.scale[i][j] =
                    kv_query_max<D>(q + (i * 8 + 2 * c + j) * D, scale) / 127;
#pragma unroll
            for (unsigned k = 0; k < D / 4; k++)
                max = fmaxf(max, fabsf(row[k * 4 + c] * scale[k * 4 + c]));
            max = fmaxf(max, kv_shuffle_xor(max, 1));
            max = fmaxf(max, kv_shuffle_xor(max, 2));

            const float up = max > KV_MIN_QUERY ? 127 / max : 0;

#pragma unroll
            for (int k = 0; k < D / 32; k++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const unsigned at = 32 * k + 8 * c + 4 * half;

                    x.b[i][k][half] = kv_query_bytes(row + at, scale + at, up);
                }
        }
    }
    template <int NT>
    static __device__ void
    scores(const params &, const uint8_t *table, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[B::T / 16][NT][4])
    {
        const uint8_t *const place = kv_codebook_place<B>(table, kv_lane() % 4);
        uint32_t string[B::BYTES / 4];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int m = 0; m < B::T / 16; m++) {
            int sum[NT][4];

#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = kv_sum_start();
#pragma unroll
            for (int k = 0; k < D / 32; k++) {
                const int at = (m * (D / 32) + k) * 2 * B::PER;
                uint32_t x[2][2];

                kv_codebook_eight<B>(place, 32 * k, string, at, x[0]);
                kv_codebook_eight<B>(place, 32 * k, string, at + B::PER, x[1]);

                const uint32_t a[4] = {x[0][0], x[1][0], x[0][1], x[1][1]};

#pragma unroll
                for (int i = 0; i < NT; i++)
                    kv_mma_s8s8(sum[i], a, q.b[i][k]);
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = kv_sum_f32(sum[i][j]) * q.scale[i][j % 2];
        }
    }
};

/* The output is sums.o times unit: the latest step's weights were rounded to
 * multiples of unit. */
template <int D, int NT> struct kv_sums_units {
    kv_sums_f32<D, NT> sums;
    float unit[NT][2];
};

/* A step's largest weight counts as at least this.  So a weight loses at most
 * 2^-32, and units stay within a factor of 2^24. */
#define KV_MIN_WEIGHT 5.9604645e-8f /* 2^-24 */

/* The largest weight of a column in a step. */
template <int M, int NT>
KV_DEVICE float kv_largest_weight(const float weight[M][NT][4], int i, int j)
{
    float max = KV_MIN_WEIGHT;

#pragma unroll
    for (int m = 0; m < M; m++)
        max = fmaxf(max, fmaxf(weight[m][i][j], weight[m][i][j + 2]));
    return kv_column_max(max);
}

/* Transposes the bytes of four words: byte i of all words goes into to[i]. */
KV_DEVICE void kv_rotate_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                               uint32_t to[4])
{
    const uint32_t ab = kv_bytes(a, b, 0x5140), cd = kv_bytes(c, d, 0x5140);
    const uint32_t ab2 = kv_bytes(a, b, 0x7362), cd2 = kv_bytes(c, d, 0x7362);

    to[0] = kv_bytes(ab, cd, 0x5410);
    to[1] = kv_bytes(ab, cd, 0x7632);
    to[2] = kv_bytes(ab2, cd2, 0x5410);
    to[3] = kv_bytes(ab2, cd2, 0x7632);
}

template <class B> struct kv_codebook_values_s8 : kv_codebook_side<B> {
    static constexpr int D = B::D, M = B::T / 16;
    using params = kv_codebook_params;
    template <int NT> using sums = kv_sums_units<D, NT>;

    static_assert(B::T % 32 == 0, "a product is of 32 tokens");
    static_assert(B::T * 127 * 255 < KV_MAX_SUM, "a sum fits its float");

    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x.sums);
#pragma unroll
        for (int i = 0; i < NT; i++)
            x.unit[i][0] = x.unit[i][1] = 1;
    }
    /* A lane's 8 channels of 4 tokens are transposed to words of 4 tokens.
     * Channels 2 w and 2 w + 1 are rows r and r + 8 of the w-th product. */
    template <int NT>
    static __device__ void
    gather(const params &, const uint8_t *table, const uint8_t *, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[M][NT][4], const float factor[NT][2], sums<NT> &x)
    {
        const uint8_t *const place = kv_codebook_place<B>(table, kv_lane() / 4);
        uint32_t string[B::BYTES / 4], b[M / 2][NT][2];
        float change[NT][2];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float up[2];

#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float max = kv_largest_weight<M, NT>(weight, i, j);

                up[j] = 255 * kv_reciprocal(max);
                change[i][j] = factor[i][j] * x.unit[i][j] * up[j];
                x.unit[i][j] = max * (1 / 255.0f);
            }
#pragma unroll
            for (int m = 0; m < M; m++)
                b[m / 2][i][m % 2] = kv_weights_u8(weight[m][i], up);
        }
#pragma unroll
        for (int u = 0; u < D / 64; u++) {
            int sum[4][NT][4];

#pragma unroll
            for (int w = 0; w < 4; w++)
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        sum[w][i][j] = kv_sum_start();
#pragma unroll
            for (int n = 0; n < M / 2; n++) {
                uint32_t a[4][4];

#pragma unroll
                for (int m = 0; m < 2; m++) {
                    uint32_t t[4][2]; /* tokens 2c, 2c + 8, 2c + 1, 2c + 9 */

#pragma unroll
                    for (int j = 0; j < 4; j++)
                        kv_codebook_eight<B>(
                            place, 64 * u, string,
                            ((u * M + 2 * n + m) * 4 + j) * B::PER, t[j]);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        uint32_t rotated[4];

                        kv_rotate_bytes(t[0][h], t[1][h], t[2][h], t[3][h],
                                        rotated);
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            a[2 * h + j / 2][j % 2 + 2 * m] = rotated[j];
                    }
                }
#pragma unroll
                for (int w = 0; w < 4; w++)
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_s8u8(sum[w][i], a[w], b[n][i]);
            }
#pragma unroll
            for (int w = 0; w < 4; w++)
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float *const o = &x.sums.o[4 * u + w][i][j];

                        *o = fmaf(*o, change[i][j % 2],
                                  kv_sum_f32(sum[w][i][j]));
                    }
        }
    }
    template <int NT>
    static __device__ void finish(const params &p, const sums<NT> &x, float *o)
    {
        const unsigned c = kv_lane() % 4;
        const float *const scale = kv_codebook_scales<B>(p, blockIdx.y);

#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const unsigned channel = kv_codebook_channel(k, j);

                    o[(i * 8 + 2 * c + j % 2) * D + channel] =
                        x.sums.o[k][i][j] * x.unit[i][j % 2] * scale[channel];
                }
    }
};

#endif
