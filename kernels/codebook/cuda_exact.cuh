/* Codebooks on path exact: centroids, queries and weights as halves. */
#ifndef KV_CODEBOOK_CUDA_EXACT_CUH
#define KV_CODEBOOK_CUDA_EXACT_CUH

#include "kernels/codebook/cuda.cuh"

template <class B> struct kv_codebook_keys_f16 : kv_codebook_side<B> {
    static constexpr int D = B::D;
    using params = kv_codebook_params;
    template <int NT> using query = kv_queries_f16<D, NT>;

    /* A lane's 8 channels of a token are 4 words, two for each product of
     * 16 channels. */
    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float *at = q + (i * 8 + r) * D + k / 2 * 32 + 8 * c +
                                      k % 2 * 4 + half * 2;

                    x.b[i][k][half] = kv_pack_f16(at[0], at[1]);
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
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
#pragma unroll
            for (int k = 0; k < D / 32; k++) {
                const int at = (m * (D / 32) + k) * 2 * B::PER;
                uint32_t x[2][4];

                kv_codebook_eight<B>(place, 32 * k, string, at, x[0]);
                kv_codebook_eight<B>(place, 32 * k, string, at + B::PER, x[1]);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t a[4] = {x[0][2 * j], x[1][2 * j],
                                           x[0][2 * j + 1], x[1][2 * j + 1]};

#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(s[m][i], a, q.b[i][2 * k + j]);
                }
            }
        }
    }
};

template <class B> struct kv_codebook_values_f16 : kv_codebook_side<B> {
    static constexpr int D = B::D;
    using params = kv_codebook_params;
    template <int NT> using sums = kv_sums_f32<D, NT>;

    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x);
    }
    /* Word w of a token's 8 channels is channels 2 w and 2 w + 1, rows r and
     * r + 8 of the w-th product. */
    template <int NT>
    static __device__ void
    gather(const params &, const uint8_t *table, const uint8_t *, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[B::T / 16][NT][4], const float factor[NT][2],
           sums<NT> &x)
    {
        const uint8_t *const place = kv_codebook_place<B>(table, kv_lane() / 4);
        uint32_t string[B::BYTES / 4], b[B::T / 16][NT][2];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int m = 0; m < B::T / 16; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_weights_f16(weight[m][i], b[m][i]);
        kv_sums_scale<D, NT>(x, factor);
#pragma unroll
        for (int u = 0; u < D / 64; u++)
#pragma unroll
            for (int m = 0; m < B::T / 16; m++) {
                uint32_t t[4][4]; /* of tokens 2c, 2c + 8, 2c + 1, 2c + 9 */

#pragma unroll
                for (int j = 0; j < 4; j++)
                    kv_codebook_eight<B>(
                        place, 64 * u, string,
                        ((u * (B::T / 16) + m) * 4 + j) * B::PER, t[j]);
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const uint32_t a[4] = {kv_bytes(t[0][w], t[2][w], 0x5410),
                                           kv_bytes(t[0][w], t[2][w], 0x7632),
                                           kv_bytes(t[1][w], t[3][w], 0x5410),
                                           kv_bytes(t[1][w], t[3][w], 0x7632)};

#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(x.o[4 * u + w][i], a, b[m][i]);
                }
            }
    }
    template <int NT>
    static __device__ void finish(const params &, const sums<NT> &x, float *o)
    {
        const unsigned c = kv_lane() % 4;

#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[(i * 8 + 2 * c + j % 2) * D + kv_codebook_channel(k, j)] =
                        x.o[k][i][j];
    }
};

#endif
