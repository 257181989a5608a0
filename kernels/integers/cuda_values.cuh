/* Values as integers in groups of channels of a token (grouped_codes.h): a
 * weight times the token's step meets the codes, and sum p low is one for all
 * channels of a group. */
#ifndef KV_INTEGERS_CUDA_VALUES_CUH
#define KV_INTEGERS_CUDA_VALUES_CUH

#include "kernels/integers/cuda.cuh"

template <int BITS, int D> struct kv_folded_values {
    using params = kv_gpu_integers_side;
    using fields = kv_fields<BITS>;
    static constexpr int T = fields::T, TILE = KV_GPU_TILE;
    static constexpr int TABLE = 0, BLOCKS = 2, LEAST = D * 16;
    static constexpr int M = T / 16, PAIRS = fields::PAIRS;
    static constexpr unsigned CODES = D * 16;
    static_assert(PAIRS == 2 * M, "a word is a channel's codes of a step");
    static_assert(D / 32 <= 8, "row r of the lows' product is group r");

    /* o: in units of the last tile's, 1 / unit being `inverse`; low: row r is
     * the sum of p low of group r, row r + 8 that of rests; without lows row r
     * is the sum of p step, in o's units. */
    template <int NT> struct sums {
        kv_sums_f32<D, NT> o;
        float low[NT][4], inverse;
    };

    static __host__ __device__ size_t head_bytes(const params &p)
    {
        return p.head_bytes;
    }
    static __host__ __device__ size_t step_bytes(const params &p)
    {
        return p.step_bytes;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x.o);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x.low[i][j] = 0;
        x.inverse = 1;
    }

    /* Both kinds of sums into the units of this tile. */
    template <int NT>
    static __device__ void rescale(const params &p, const uint8_t *head,
                                   const float factor[NT][2], sums<NT> &x)
    {
        float scaled[NT][2];

        kv_sums_rescale<D, NT>(x.o, &x.inverse, head, factor, scaled);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x.low[i][j] *= p.lows ? factor[i][j % 2] : scaled[i][j % 2];
    }

    /* low += sum of weights times lows; or times steps, back from their fields'
     * places. */
    template <int NT>
    static __device__ void add_lows(const params &p, const uint8_t *heads,
                                    const uint32_t b[M][NT][2], sums<NT> &x)
    {
        const unsigned group = kv_lane() / 4;
        uint32_t low[PAIRS], rest[PAIRS];

#pragma unroll
        for (int j = 0; j < PAIRS; j++)
            low[j] = rest[j] = 0;
        if (group < p.n_groups) {
            heads += group * p.heads;
            kv_pair_words<PAIRS>(heads + p.lows, 0, low);
            if (p.rests)
                kv_pair_words<PAIRS>(heads + p.rests, 0, rest);
        }
        if (!p.lows) {
#pragma unroll
            for (int j = 0; j < PAIRS; j++)
                low[j] =
                    kv_mul_f16x2(low[j], kv_pack_f16(1 / fields::weight(j),
                                                     1 / fields::weight(j)));
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t a[4] = {low[2 * m], rest[2 * m], low[2 * m + 1],
                                   rest[2 * m + 1]};

#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_mma_f16(x.low[i], a, b[m][i]);
        }
    }

    template <int NT>
    static __device__ void
    gather(const params &p, const uint8_t *, const uint8_t *head, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[M][NT][4], const float factor[NT][2], sums<NT> &x)
    {
        const uint8_t *heads = codes + CODES;
        uint32_t b[M][NT][2];

#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_weights_f16(weight[m][i], b[m][i]);
        rescale<NT>(p, head, factor, x);
        add_lows<NT>(p, heads, b, x);
#pragma unroll
        for (int k = 0; k < D / 16; k += 2) {
            uint32_t step[PAIRS], words[4], folded[M][NT][2];

            kv_pair_words<PAIRS>(heads + (k * 16 >> p.shift) * p.heads, 0,
                                 step);
            kv_unpack16(codes + (k / 2 * 32 + kv_lane()) * 16, words);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        folded[m][i][j] =
                            kv_mul_f16x2(b[m][i][j], step[2 * m + j]);
#pragma unroll
            for (int tile = 0; tile < 2; tile++)
#pragma unroll
                for (int m = 0; m < M; m++) {
                    uint32_t a[4];

                    fields::fragment(words + 2 * tile, m, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(x.o.o[k + tile][i], a, folded[m][i]);
                }
        }
    }

    template <int NT>
    static __device__ void finish(const params &p, const sums<NT> &x, float *o)
    {
        const unsigned c = kv_lane() % 4;
        const float times =
            p.lows ? 1 : -p.zero * x.inverse / KV_CODES_PER_UNIT;
        kv_sums_f32<D, NT> y;

#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const unsigned lane = (k * 16 >> p.shift) * 4 + c;
                const float low[2] = {
                    kv_shuffle(x.low[i][0] + x.low[i][2], lane),
                    kv_shuffle(x.low[i][1] + x.low[i][3], lane)};

#pragma unroll
                for (int j = 0; j < 4; j++)
                    y.o[k][i][j] =
                        x.o.o[k][i][j] * x.inverse + low[j % 2] * times;
            }
        kv_sums_store<D, NT>(y, o);
    }
};

#endif
