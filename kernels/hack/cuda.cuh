/* Policies of decode.cuh for HACK.  Queries and weights are quantized to bytes
 * and multiplied with codes as integers; eq. 4 of kernels/hack/hack.h turns the
 * result into the product,
 *
 *   sum ~ s_b (s_a sum(a' b') + m_a sum(b')) + m_b (s_a sum(a') + n m_a)
 *
 * where a are queries (or weights) and b stored keys (or values).  Weights are
 * quantized in the blocks of values, relative to the running maximum: codes do
 * not depend on that factor.  cuda_layout.h draws the layout of the codes.
 * RANDOM: stochastic rounding. */
#ifndef KV_HACK_CUDA_CUH
#define KV_HACK_CUDA_CUH

#include "kernels/cuda/int8.cuh"
#include "kernels/float/cuda.cuh"
#include "kernels/hack/cuda_layout.h"
#include "kernels/hack/hack.h"
#include "lib/base/rng.h"

/* Instances for decoding: bits of a code, values of a partition, head
 * dimension, N-tiles, stages; the first that fits is used. */
#define KV_HACK_KERNELS(X) \
    X(2, 64, 128, 2, 2)    \
    X(2, 64, 128, 1, 2)    \
    X(2, 32, 128, 1, 3)    \
    X(2, 128, 128, 1, 2)   \
    X(4, 64, 128, 1, 2) X(2, 64, 64, 1, 3) X(4, 64, 64, 1, 3)

/* The number of tokens of a piece. */
template <int P> constexpr int kv_hack_tokens(void)
{
    return P > 64 ? P : 64;
}

/* The registers of a fragment from its BITS / 2 words. */
template <int BITS>
KV_DEVICE void kv_hack_codes(const uint32_t *word, uint32_t *a)
{
    static_assert(BITS == 2 || BITS == 4 || BITS == 8, "fields of a byte");
    constexpr uint32_t mask = BITS == 8 ? ~0u : ((1 << BITS) - 1) * 0x01010101u;
    constexpr int each = 8 / BITS;

#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = word[i / each] >> BITS * (i % each) & mask;
}

/* Loads N of a lane's words of a piece, from its word `first` on, a multiple of
 * N or of 4. */
template <int N>
KV_DEVICE void kv_hack_words(const uint8_t *codes, int first, uint32_t *word)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int g = 0; g < N / 4; g++)
            kv_unpack16(codes + ((first / 4 + g) * 32 + kv_lane()) * 16,
                        word + 4 * g);
    } else if constexpr (N == 2) {
        const uint2 two =
            kv_load8(codes + (first / 4 * 32 + kv_lane()) * 16 + first % 4 * 4);

        word[0] = two.x;
        word[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            word[i] = *reinterpret_cast<const uint32_t *>(
                codes + ((first + i) / 4 * 32 + kv_lane()) * 16 +
                (first + i) % 4 * 4);
    }
}

/* 1 / scale; 0 if all values are the minimum. */
KV_DEVICE float kv_hack_inverse(float scale)
{
    return scale > 0 ? 1 / scale : 0;
}

/* (x - min) / scale rounded to the nearest code, in the low byte.  Multiplies
 * by the inverse, since dividing took a third of the time; this may move a
 * value on the edge between two codes by one unit in the last place. */
KV_DEVICE uint32_t kv_hack_nearest(float x, float min, float inverse)
{
    return kv_nearest(x - min, inverse);
}

/* kv_hack_nearest() with stochastic rounding: y = (x - min) / scale is rounded
 * down with probability ceil(y) - y.  u: random, in [0, 1). */
KV_DEVICE uint32_t kv_hack_stochastic(float x, float min, float inverse,
                                      float top, float u)
{
    const float in = fminf(fmaxf((x - min) * inverse, 0.0f), top);
    const float down = floorf(in);

    return (uint32_t)(int)down + (u < in - down);
}

/* The terms of eq. 4 for a part of a column. */
struct kv_hack_column {
    float scale, min, rest; /* rest: s_a sum(a') + n m_a */
};

/* x plus eq. 4 for a column and a row, given their scales, minima and sums of
 * codes. */
KV_DEVICE float kv_hack_combine(const kv_hack_column &a, float scale, float min,
                                float sum, int product, float x)
{
    x = fmaf(min, a.rest, x);
    x = fmaf(scale * sum, a.min, x);
    return fmaf(scale, a.scale * (float)product, x);
}

/* Converts a 16-bit number to f32; the mantissa of 2^23 has room for it. */
KV_DEVICE float kv_u16_f32(uint32_t x)
{
    return kv_from_bits(0x4b000000u | x) - 0x1p23f;
}

/* kv_hack_combine() for a row whose scale, minimum and sum are halves of the
 * three words of `row`: the upper halves if HALF is 1, else the lower. */
template <int HALF>
KV_DEVICE float kv_hack_combine(const kv_hack_column &a, const uint32_t *row,
                                int product, float x)
{
    const float scale = HALF ? kv_high_f16(row[0]) : kv_low_f16(row[0]);
    const float min = HALF ? kv_high_f16(row[1]) : kv_low_f16(row[1]);
    const uint32_t sum = HALF ? row[2] >> 16 : row[2] & 0xffff;

    return kv_hack_combine(a, scale, min, kv_u16_f32(sum), product, x);
}

/* ---- keys -----------------------------------------------------------------
 */

template <int BITS, int P, int D, bool RANDOM> struct kv_hack_keys {
    using params = kv_gpu_hack_side;
    static constexpr int T = kv_hack_tokens<P>(), TILE = KV_GPU_TILE;
    static constexpr int TABLE = 0, BLOCKS = P == 64 ? 2 : 1;
    static constexpr unsigned WARPS = KV_WARPS;
    static constexpr int PART = P < D ? P : D, PARTS = D / PART;
    static constexpr int FRAGMENTS = D / 32; /* fragments of 16 tokens */
    static constexpr int WORDS = T / 16 * FRAGMENTS * BITS / 2;
    static constexpr bool WRITES = false;

    template <int NT> struct query {
        uint32_t b[NT][FRAGMENTS][2];
        kv_hack_column column[NT][PARTS][2]; /* 2c and 2c + 1 */
    };

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return 0;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return WORDS * 128 + PARTS * 3 * T * 2;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }

    /* Row r of an N-tile, this lane's quarter of a part: fragment b, and the
     * column in the layout of lanes (r, c). */
    template <int NT>
    static __device__ kv_hack_column part(const params &p, const float *q,
                                          uint64_t key, int i, int part,
                                          query<NT> &x)
    {
        constexpr int first = PART / 32;
        const unsigned c = kv_lane() % 4;
        float min = __builtin_huge_valf(), max = -min;
        uint32_t total = 0;

#pragma unroll
        for (int k = 0; k < PART / 4; k++) {
            const float v = q[part * PART + k / 4 * 16 + 4 * c + k % 4];

            min = fminf(min, v);
            max = fmaxf(max, v);
        }
        for (unsigned mask = 1; mask < 4; mask *= 2) {
            min = fminf(min, kv_shuffle_xor(min, mask));
            max = fmaxf(max, kv_shuffle_xor(max, mask));
        }

        const float scale = (max - min) / p.top;
        const float inverse = kv_hack_inverse(scale);

#pragma unroll
        for (int k = 0; k < PART / 16; k++) {
            uint32_t code[4];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned z = part * PART + k * 16 + 4 * c + j;

                code[j] = RANDOM ? kv_hack_stochastic(q[z], min, inverse, p.top,
                                                      kv_random_unit(key, z))
                                 : kv_hack_nearest(q[z], min, inverse);
            }

            const uint32_t word =
                kv_low_bytes(code[0], code[1], code[2], code[3]);

            total = kv_sum_bytes(word, 0x01010101, total);
            x.b[i][part * first + k / 2][k % 2] = word;
        }

        float sum = (float)total;

        for (unsigned mask = 1; mask < 4; mask *= 2)
            sum += kv_shuffle_xor(sum, mask);
        return {scale, min, fmaf(scale, sum, PART * min)};
    }

    template <int NT>
    static __device__ void prepare(const params &p, const uint8_t *,
                                   const float *q, const kv_rows &rows,
                                   query<NT> &x)
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
        for (int i = 0; i < NT; i++) {
            const unsigned row = rows.first + 8 * i + r;
            const uint64_t key =
                RANDOM ? kv_mix(kv_mix(p.key, kv_row_head(rows, row)),
                                kv_row_position(rows, row))
                       : 0;

#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                const kv_hack_column mine =
                    part<NT>(p, q + (i * 8 + r) * D, key, i, k, x);

#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const unsigned from = (2 * c + j) * 4;

                    x.column[i][k][j] = {kv_shuffle(mine.scale, from),
                                         kv_shuffle(mine.min, from),
                                         kv_shuffle(mine.rest, from)};
                }
            }
        }
    }

    template <int NT>
    static __device__ void
    scores(const params &, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[T / 16][NT][4])
    {
        const uint32_t *range =
            reinterpret_cast<const uint32_t *>(codes + WORDS * 128);
        constexpr int each = BITS / 2; /* words of a fragment */
#pragma unroll
        for (int m = 0; m < T / 16; m++) {
            uint32_t word[FRAGMENTS * each];

            kv_hack_words<FRAGMENTS * each>(codes, m * FRAGMENTS * each, word);
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                constexpr int first = PART / 32;
                const uint32_t *at =
                    range + k * 3 * T / 2 + m * 8 + kv_lane() / 4;
                const uint32_t row[3] = {at[0], at[T / 2], at[T]};
                int product[NT][4] = {};

#pragma unroll
                for (int f = 0; f < first; f++) {
                    uint32_t a[4];

                    kv_hack_codes<BITS>(word + (k * first + f) * each, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_u8u8(product[i], a, q.b[i][k * first + f]);
                }
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const kv_hack_column &x = q.column[i][k][j];
                        float *to = s[m][i];

                        to[j] =
                            kv_hack_combine<0>(x, row, product[i][j], to[j]);
                        to[j + 2] = kv_hack_combine<1>(
                            x, row, product[i][j + 2], to[j + 2]);
                    }
            }
        }
    }
};

/* ---- values ---------------------------------------------------------------
 */

template <int BITS, int P, int D, bool RANDOM> struct kv_hack_values {
    using params = kv_gpu_hack_side;
    template <int NT> using sums = kv_sums_f32<D, NT>;
    static constexpr int T = kv_hack_tokens<P>(), TILE = KV_GPU_TILE;
    static constexpr int TABLE = 0, BLOCKS = P == 64 ? 2 : 1;
    static constexpr unsigned WARPS = KV_WARPS;
    static constexpr int IN_STEP = T / P, M = P / 16; /* 16 tokens of a block */
    static constexpr int FRAGMENTS = D / 16;          /* of 32 tokens each */
    static constexpr int WORDS = T / 32 * FRAGMENTS * BITS / 2;
    static constexpr bool WRITES = false;

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return 0;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return WORDS * 128 + IN_STEP * 3 * D * 2;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x);
    }

    /* The weights of a block's columns 2c and 2c + 1 as bytes: rows r and r + 8
     * of column 2c in the low half of a word, of column 2c + 1 in the high
     * half. */
    template <int NT>
    static __device__ void quantize(const params &p, const kv_rows &rows,
                                    unsigned first, int i,
                                    const float w[M][NT][4], uint32_t byte[M],
                                    kv_hack_column column[2])
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
        const unsigned row = rows.first + 8 * i + 2 * c;
        float min[2], scale[2], inverse[2];
        uint64_t key[2] = {}, word[2] = {};
        uint32_t total[2] = {0, 0};

#pragma unroll
        for (int j = 0; j < 2; j++) {
            float low = w[0][i][j], high = low;

#pragma unroll
            for (int m = 0; m < M; m++) {
                low = fminf(low, fminf(w[m][i][j], w[m][i][j + 2]));
                high = fmaxf(high, fmaxf(w[m][i][j], w[m][i][j + 2]));
            }
            min[j] = -kv_column_max(-low);
            scale[j] = (kv_column_max(high) - min[j]) / p.top;
            inverse[j] = kv_hack_inverse(scale[j]);
        }
#pragma unroll
        for (int j = 0; j < 2 && RANDOM; j++)
            key[j] = kv_hack_weight_key(p.key, kv_row_head(rows, row + j),
                                        kv_row_position(rows, row + j));
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t code[4]; /* ordered as in w: rows apart by 2 */

#pragma unroll
            for (int j = 0; j < 2 && RANDOM && m % 2 == 0; j++)
                word[j] = kv_hack_weight_word(
                    key[j], kv_hack_weight_counter(first, 0), 16 * m + r);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int j = k % 2;
                const float x = w[m][i][k];

                code[k] =
                    RANDOM
                        ? kv_hack_stochastic(
                              x, min[j], inverse[j], p.top,
                              kv_hack_weight_unit(word[j], 16 * m + k / 2 * 8))
                        : kv_hack_nearest(x, min[j], inverse[j]);
            }
            byte[m] = kv_low_bytes(code[0], code[2], code[1], code[3]);
            total[0] = kv_sum_bytes(byte[m], 0x00000101, total[0]);
            total[1] = kv_sum_bytes(byte[m], 0x01010000, total[1]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
            column[j] = {scale[j], min[j],
                         fmaf(scale[j], kv_column_sum((float)total[j]),
                              (float)P * min[j])};
    }

    template <int NT>
    static __device__ void
    gather(const params &p, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const kv_rows &rows, unsigned first,
           const float weight[T / 16][NT][4], const float factor[NT][2],
           sums<NT> &x)
    {
        const uint32_t *range =
            reinterpret_cast<const uint32_t *>(codes + WORDS * 128);
        constexpr int each = BITS / 2;

        kv_sums_scale<D, NT>(x, factor);
#pragma unroll
        for (int block = 0; block < IN_STEP; block++) {
            kv_hack_column column[NT][2];
            uint32_t b[NT][M];

#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint32_t byte[M];

                quantize<NT>(p, rows, first + block * P, i, weight + block * M,
                             byte, column[i]);
#pragma unroll
                for (int m = 0; m < M; m++)
                    b[i][m] = kv_transpose(byte[m]);
            }
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                const uint32_t *at =
                    range + block * 3 * D / 2 + f * 8 + kv_lane() / 4;
                const uint32_t row[3] = {at[0], at[D / 2], at[D]};
                int product[NT][4] = {};

#pragma unroll
                for (int m = 0; m < M / 2; m++) {
                    const int n = ((block * M / 2 + m) * FRAGMENTS + f) * each;
                    uint32_t a[4], word[each];

                    kv_hack_words<each>(codes, n, word);
                    kv_hack_codes<BITS>(word, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_u8u8(product[i], a, b[i] + 2 * m);
                }
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const kv_hack_column &w = column[i][j];
                        float *to = x.o[f][i];

                        to[j] =
                            kv_hack_combine<0>(w, row, product[i][j], to[j]);
                        to[j + 2] = kv_hack_combine<1>(
                            w, row, product[i][j + 2], to[j + 2]);
                    }
            }
        }
    }
    template <int NT>
    static __device__ void finish(const params &, const sums<NT> &x, float *o)
    {
        kv_sums_store<D, NT>(x, o);
    }
};

#endif
