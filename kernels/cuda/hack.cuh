/* Policies of decode.cuh for HACK: queries and weights are quantized to bytes,
 * multiplied with codes as integers, and eq. 4 of kernels/homomorphic.h makes
 * the product of it,
 *
 *   sum ~ s_b (s_a sum(a' b') + m_a sum(b')) + m_b (s_a sum(a') + n m_a)
 *
 * with a queries (or weights), b what is stored.  Weights are quantized in the
 * blocks of values, relative to the running maximum: codes do not depend on
 * that factor.  The bytes are drawn in hack_codes.h. */
#ifndef KV_HACK_CUH
#define KV_HACK_CUH

#include "kernels/cuda/float.cuh"
#include "kernels/cuda/hack_codes.h"
#include "lib/base/rng.h"

template <int P> constexpr int kv_hack_step(void)
{
    return P > 64 ? P : 64;
}

/* The registers of a fragment from its BITS / 2 words. */
template <int BITS>
KV_DEVICE void kv_hack_codes(const uint32_t *word, uint32_t *a)
{
    static_assert(BITS == 2 || BITS == 4, "codes that share a byte");
    constexpr uint32_t mask = BITS == 2 ? 0x03030303 : 0x0f0f0f0f;
    constexpr int each = 8 / BITS;

#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = word[i / each] >> BITS * (i % each) & mask;
}

/* Words of codes that a lane has of a step: WORDS of them, four at a time. */
template <int WORDS>
KV_DEVICE void kv_hack_words(const uint8_t *codes, uint32_t *word)
{
#pragma unroll
    for (int g = 0; g < WORDS / 4; g++)
        kv_unpack16(codes + (g * 32 + kv_lane()) * 16, word + 4 * g);
}

/* y = (x - min) / scale as a code; u: in [0, 1), or below 0: to nearest. */
KV_DEVICE uint32_t kv_hack_code(float x, float min, float scale, float top,
                                float u)
{
    const float y = scale > 0 ? (x - min) / scale : 0;
    const float in = fminf(fmaxf(y, 0.0f), top);

    if (u < 0)
        return (uint32_t)kv_round(in);

    const float down = floorf(in);

    return (uint32_t)(int)down + (u < in - down);
}

/* What eq. 4 wants of a column's part. */
struct kv_hack_column {
    float scale, min, rest; /* rest: s_a sum(a') + n m_a */
};

/* ---- keys -----------------------------------------------------------------
 */

template <int BITS, int P, int D> struct kv_hack_keys {
    using params = kv_gpu_hack;
    static constexpr int T = kv_hack_step<P>(), TABLE = 0;
    static constexpr int PART = P < D ? P : D, PARTS = D / PART;
    static constexpr int FRAGMENTS = D / 32; /* of 16 tokens */
    static constexpr int WORDS = T / 16 * FRAGMENTS * BITS / 2;

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
     * column as lanes (r, c) have it. */
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

#pragma unroll
        for (int k = 0; k < PART / 16; k++) {
            uint32_t word = 0;

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned z = part * PART + k * 16 + 4 * c + j;
                const float u = p.stochastic ? kv_random_unit(key, z) : -1.0f;
                const uint32_t code = kv_hack_code(q[z], min, scale, p.top, u);

                word |= code << 8 * j;
                total += code;
            }
            x.b[i][part * first + k / 2][k % 2] = word;
        }

        float sum = (float)total;

        for (unsigned mask = 1; mask < 4; mask *= 2)
            sum += kv_shuffle_xor(sum, mask);
        return {scale, min, scale * sum + PART * min};
    }

    template <int NT>
    static __device__ void prepare(const params &p, const uint8_t *,
                                   const float *q, const kv_rows &rows,
                                   query<NT> &x)
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
        for (int i = 0; i < NT; i++) {
            const unsigned row = (blockIdx.z * NT + i) * 8 + r;
            const uint64_t key =
                p.stochastic ? kv_mix(kv_mix(p.key, kv_row_head(rows, row)),
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
        uint32_t word[WORDS];

        kv_hack_words<WORDS>(codes, word);
#pragma unroll
        for (int m = 0; m < T / 16; m++) {
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
                const uint32_t scale = at[0], min = at[T / 2], sum = at[T];
                int product[NT][4] = {};

#pragma unroll
                for (int f = 0; f < first; f++) {
                    uint32_t a[4];

                    kv_hack_codes<BITS>(
                        word + (m * FRAGMENTS + k * first + f) * each, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_u8u8(product[i], a, q.b[i][k * first + f]);
                }
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const kv_hack_column &x = q.column[i][k][j % 2];
                        const float by =
                            j < 2 ? kv_low_f16(scale) : kv_high_f16(scale);
                        const float low =
                            j < 2 ? kv_low_f16(min) : kv_high_f16(min);
                        const float total =
                            (float)(j < 2 ? sum & 0xffff : sum >> 16);

                        s[m][i][j] += by * (x.scale * (float)product[i][j] +
                                            x.min * total) +
                                      low * x.rest;
                    }
            }
        }
    }
};

/* ---- values ---------------------------------------------------------------
 */

template <int BITS, int P, int D> struct kv_hack_values {
    using params = kv_gpu_hack;
    template <int NT> using sums = kv_sums_f32<D, NT>;
    static constexpr int T = kv_hack_step<P>(), TABLE = 0;
    static constexpr int BLOCKS = T / P, M = P / 16; /* 16 tokens of a block */
    static constexpr int FRAGMENTS = D / 16;         /* of 32 tokens */
    static constexpr int WORDS = T / 32 * FRAGMENTS * BITS / 2;

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return 0;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return WORDS * 128 + BLOCKS * 3 * D * 2;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x);
    }

    /* The weights of a block's column, w[m][i][j] and [j + 2], as bytes: into
     * byte[m], low half or high. */
    template <int NT>
    static __device__ kv_hack_column quantize(const params &p,
                                              const kv_rows &rows,
                                              unsigned first, int i, int j,
                                              const float w[M][NT][4],
                                              uint32_t byte[M])
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
        const unsigned row = (blockIdx.z * NT + i) * 8 + 2 * c + j;
        const uint64_t key = p.stochastic
                                 ? kv_mix(kv_mix(p.key, kv_row_head(rows, row)),
                                          kv_row_position(rows, row))
                                 : 0;
        float min = w[0][i][j], max = min;
        uint32_t total = 0;

#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int k = j; k < 4; k += 2) {
                min = fminf(min, w[m][i][k]);
                max = fmaxf(max, w[m][i][k]);
            }
        max = kv_column_max(max);
        min = -kv_column_max(-min);

        const float scale = (max - min) / p.top;

#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint64_t token = first + 16 * m + r + 8 * k;
                const float u =
                    p.stochastic ? kv_random_unit(key, token << 16) : -1.0f;
                const uint32_t code =
                    kv_hack_code(w[m][i][j + 2 * k], min, scale, p.top, u);

                byte[m] |= code << (16 * j + 8 * k);
                total += code;
            }
        return {scale, min,
                scale * kv_column_sum((float)total) + (float)P * min};
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
        for (int block = 0; block < BLOCKS; block++) {
            kv_hack_column column[NT][2];
            uint32_t b[NT][M];

#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint32_t byte[M] = {};

#pragma unroll
                for (int j = 0; j < 2; j++)
                    column[i][j] = quantize<NT>(p, rows, first + block * P, i,
                                                j, weight + block * M, byte);
#pragma unroll
                for (int m = 0; m < M; m++)
                    b[i][m] = kv_transpose(byte[m]);
            }
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                const uint32_t *at =
                    range + block * 3 * D / 2 + f * 8 + kv_lane() / 4;
                const uint32_t scale = at[0], min = at[D / 2], sum = at[D];
                int product[NT][4] = {};

#pragma unroll
                for (int m = 0; m < M / 2; m++) {
                    const int n = ((block * M / 2 + m) * FRAGMENTS + f) * each;
                    uint32_t a[4], word[each];

#pragma unroll
                    for (int k = 0; k < each; k++)
                        word[k] = *reinterpret_cast<const uint32_t *>(
                            codes + ((n + k) / 4 * 32 + kv_lane()) * 16 +
                            (n + k) % 4 * 4);
                    kv_hack_codes<BITS>(word, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_u8u8(product[i], a, b[i] + 2 * m);
                }
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const kv_hack_column &w = column[i][j % 2];
                        const float by =
                            j < 2 ? kv_low_f16(scale) : kv_high_f16(scale);
                        const float low =
                            j < 2 ? kv_low_f16(min) : kv_high_f16(min);
                        const float total =
                            (float)(j < 2 ? sum & 0xffff : sum >> 16);

                        x.o[f][i][j] += by * (w.scale * (float)product[i][j] +
                                              w.min * total) +
                                        low * w.rest;
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
