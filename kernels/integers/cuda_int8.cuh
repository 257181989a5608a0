/* Policies of decode.cuh for integers of 8 bits in groups on path int8
 * (cuda_layout.h).  Codes are multiplied with queries and weights in 8 bits.
 * Queries, times scales if a group is of tokens, are rounded relative to the
 * largest of a row and group.  Weights times scales are rounded relative to the
 * largest of a row, group and piece of tokens.
 *
 *   sum w x = sum w scale code + sum w middle,  middle = low + 128 scale,
 *
 * where w is a query or a weight and codes are signed.  The first sum is in
 * integers, the second unrounded, so that the rounding of w only affects the
 * code's distance from the middle. */
#ifndef KV_INTEGERS_CUDA_INT8_CUH
#define KV_INTEGERS_CUDA_INT8_CUH

#include "kernels/cuda/int8.cuh"
#include "kernels/integers/cuda.cuh"

/* A block of 128 channels has room for only two stages in the ring. */
enum { KV_INT8_STAGES = 2 };

/* A row whose largest value is not above this counts as zeros: 127 divided by a
 * smaller number overflows. */
#define KV_MIN_ROW 0x1p-100f

/* A lower bound on weights times scales: units stay within a factor of 2^69,
 * and at most 2^-68 is lost. */
#define KV_MIN_PRODUCT 0x1p-60f

/* Members that all policies share. */
template <int D> struct kv_int8_side : kv_integers_side<KV_INT8_TOKENS> {
    static constexpr int BLOCKS = D < 128 ? 2 : 1;
    static constexpr int CODES = T * D;
    static constexpr bool WRITES = false;
    static constexpr int PARTS = D / 32; /* parts of 32 channels, one product
                                          * each */

    /* Whether part k begins a group of channels; the group's heads. */
    static __device__ bool begins(const params &p, int k)
    {
        return (32 * k & ((1 << p.shift) - 1)) == 0;
    }
    static __device__ const uint8_t *heads(const params &p,
                                           const uint8_t *codes, int k)
    {
        return codes + CODES + (32 * k >> p.shift) * p.heads;
    }
    /* Steps and middles of tokens r, r + 8, r + 16, r + 24. */
    static __device__ void token_heads(const params &p, const uint8_t *heads,
                                       float scale[4], float middle[4])
    {
        const uint8_t *const at = heads + kv_lane() / 4 * 8;
        const uint2 two = kv_load8(at);
        const uint2 low = p.lows ? kv_load8(at + p.lows) : uint2{0, 0};
        const uint2 rest = p.rests ? kv_load8(at + p.rests) : uint2{0, 0};

        scale[0] = kv_low_f16(two.x);
        scale[1] = kv_high_f16(two.x);
        scale[2] = kv_low_f16(two.y);
        scale[3] = kv_high_f16(two.y);
        middle[0] = kv_low_f16(low.x) + kv_low_f16(rest.x);
        middle[1] = kv_high_f16(low.x) + kv_high_f16(rest.x);
        middle[2] = kv_low_f16(low.y) + kv_low_f16(rest.y);
        middle[3] = kv_high_f16(low.y) + kv_high_f16(rest.y);
#pragma unroll
        for (int h = 0; h < 4; h++)
            middle[h] = p.lows ? fmaf(scale[h], KV_INT8_MIDDLE, middle[h]) : 0;
    }
};

/* The maximum over the lanes that share row r. */
KV_DEVICE float kv_row_max(float x)
{
    x = fmaxf(x, kv_shuffle_xor(x, 1));
    return fmaxf(x, kv_shuffle_xor(x, 2));
}

KV_DEVICE float kv_row_sum(float x)
{
    x += kv_shuffle_xor(x, 1);
    return x + kv_shuffle_xor(x, 2);
}

/* Moves the value of row r to the lanes of columns 2c and 2c + 1. */
KV_DEVICE void kv_to_columns(float x, float to[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++)
        to[j] = kv_shuffle(x, (kv_lane() % 4 * 2 + j) * 4);
}

KV_DEVICE float kv_up_to_127(float max)
{
    return max > KV_MIN_ROW ? 127 / max : 0;
}

/* Rounds eight numbers times `up` to bytes, both words of a fragment b. */
KV_DEVICE void kv_eight_bytes(const float *x, float up, uint32_t *b)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float *y = x + 4 * half;

        b[half] = kv_low_bytes(kv_nearest(y[0], up), kv_nearest(y[1], up),
                               kv_nearest(y[2], up), kv_nearest(y[3], up));
    }
}

/* Loads this lane's 8 channels of part k of row 8 i + r. */
template <int D>
KV_DEVICE void kv_eight_channels(const float *q, int i, int k, float *x)
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
    const float *const at = q + (i * 8 + r) * D + 32 * k + 8 * c;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 four = kv_load16(at + 4 * half);

        x[4 * half] = kv_from_bits(four.x);
        x[4 * half + 1] = kv_from_bits(four.y);
        x[4 * half + 2] = kv_from_bits(four.z);
        x[4 * half + 3] = kv_from_bits(four.w);
    }
}

/* ---- keys -----------------------------------------------------------------
 */

template <int NT> KV_DEVICE void kv_start_sums(int sum[][NT][4], int n)
{
#pragma unroll
    for (int m = 0; m < n; m++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[m][i][j] = kv_sum_start();
}

/* Adds codes times queries to sum, for 16 M tokens and part k. */
template <int D, int NT>
KV_DEVICE void kv_add_part(const uint8_t *codes, int k,
                           const uint32_t b[NT][D / 32][2], int sum[][NT][4])
{
    static_assert(D * 127 * 128 < KV_MAX_SUM, "a sum fits its float");

#pragma unroll
    for (int m = 0; m < KV_INT8_TOKENS / 16; m++) {
        uint32_t a[4];

        kv_unpack16(codes + ((m * (D / 32) + k) * 32 + kv_lane()) * 16, a);
#pragma unroll
        for (int i = 0; i < NT; i++)
            kv_mma_s8s8(sum[m][i], a, b[i][k]);
    }
}

/* For groups of 32 to 128 tokens of a channel: queries times scales are rounded
 * anew for each group. */
template <int D> struct kv_folded_keys_s8 : kv_int8_side<D> {
    using side = kv_int8_side<D>;
    using params = kv_gpu_integers_side;
    static constexpr int T = side::T, M = side::M, PARTS = side::PARTS;

    /* q: [8 NT][D] in shared memory; scale, plus: of columns 2c, 2c + 1: the
     * scale of the integers, and sum q middle. */
    template <int NT> struct query {
        const float *q;
        mutable uint32_t b[NT][PARTS][2];
        mutable float scale[NT][2], plus[NT][2];
    };

    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        x.q = q;
    }
    /* Sets y = q scale for part k of row 8 i + r; returns the sum of q
     * middle. */
    template <int NT>
    static __device__ float multiply(const params &p, const uint8_t *heads,
                                     const query<NT> &q, int i, int k, float *y)
    {
        const uint8_t *const at = heads + (32 * k + 8 * (kv_lane() % 4)) * 2;
        uint32_t scale[4], low[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
        float sum = 0;

        kv_eight_channels<D>(q.q, i, k, y);
        kv_unpack16(at, scale);
        if (p.lows)
            kv_unpack16(at + p.lows, low);
        if (p.rests)
            kv_unpack16(at + p.rests, rest);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t words[3] = {scale[j / 2], low[j / 2], rest[j / 2]};
            float x[3];

#pragma unroll
            for (int n = 0; n < 3; n++)
                x[n] = j % 2 ? kv_high_f16(words[n]) : kv_low_f16(words[n]);
            if (p.lows)
                sum = fmaf(y[j], fmaf(x[0], KV_INT8_MIDDLE, x[1] + x[2]), sum);
            y[j] *= x[0];
        }
        return sum;
    }
    template <int NT>
    static __device__ void round(const params &p, const uint8_t *heads,
                                 const query<NT> &q)
    {
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float y[PARTS][8], max = 0, plus = 0;

#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                plus += multiply<NT>(p, heads, q, i, k, y[k]);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    max = fmaxf(max, fabsf(y[k][j]));
            }
            max = kv_row_max(max);

            const float up = kv_up_to_127(max);

#pragma unroll
            for (int k = 0; k < PARTS; k++)
                kv_eight_bytes(y[k], up, q.b[i][k]);
            kv_to_columns(max / 127, q.scale[i]);
            kv_to_columns(kv_row_sum(plus), q.plus[i]);
        }
    }
    template <int NT>
    static __device__ void scores(const params &p, const uint8_t *,
                                  const uint8_t *head, unsigned piece,
                                  const uint8_t *codes, const query<NT> &q,
                                  float s[M][NT][4])
    {
        const unsigned token = piece * T;
        int sum[M][NT][4];

        if ((token & ((1u << p.shift) - 1)) == 0)
            round<NT>(p,
                      p.in_head ? head + (token >> p.shift) * p.heads
                                : codes + side::CODES,
                      q);
        kv_start_sums<NT>(sum, M);
#pragma unroll
        for (int k = 0; k < PARTS; k++)
            kv_add_part<D, NT>(codes, k, q.b, sum);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] =
                        fmaf(q.scale[i][j % 2], kv_sum_f32(sum[m][i][j]),
                             q.plus[i][j % 2]);
    }
};

/* Groups of 32 or more channels of a token: queries are rounded once, scales
 * multiply the sums. */
template <int D> struct kv_unfolded_keys_s8 : kv_int8_side<D> {
    using side = kv_int8_side<D>;
    using params = kv_gpu_integers_side;
    static constexpr int T = side::T, M = side::M, PARTS = side::PARTS;

    /* scale, sum: the scale of the integers, and the sum of queries, of part
     * k's group and columns 2c, 2c + 1. */
    template <int NT> struct query {
        uint32_t b[NT][PARTS][2];
        float scale[NT][PARTS][2], sum[NT][PARTS][2];
    };

    template <int NT>
    static __device__ void prepare(const params &p, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float y[PARTS][8], peak[PARTS], all[PARTS];

#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                kv_eight_channels<D>(q, i, k, y[k]);
                peak[k] = all[k] = 0;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    peak[k] = fmaxf(peak[k], fabsf(y[k][j]));
                    all[k] += y[k][j];
                }
            }
#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                float max = 0, sum = 0;

#pragma unroll
                for (int n = 0; n < PARTS; n++)
                    if (32 * n >> p.shift == 32 * k >> p.shift) {
                        max = fmaxf(max, peak[n]);
                        sum += all[n];
                    }
                max = kv_row_max(max);
                kv_eight_bytes(y[k], kv_up_to_127(max), x.b[i][k]);
                kv_to_columns(max / 127, x.scale[i][k]);
                kv_to_columns(kv_row_sum(sum), x.sum[i][k]);
            }
        }
    }
    template <int NT>
    static __device__ void
    scores(const params &p, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[M][NT][4])
    {
        int sum[M][NT][4];

#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
        kv_start_sums<NT>(sum, M);
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            kv_add_part<D, NT>(codes, k, q.b, sum);
            if (!side::begins(p, k + 1))
                continue;

            float scale[4], middle[4];

            side::token_heads(p, side::heads(p, codes, k), scale, middle);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int t = 2 * m + j / 2;
                        const float times = scale[t] * q.scale[i][k][j % 2];

                        s[m][i][j] =
                            fmaf(middle[t], q.sum[i][k][j % 2], s[m][i][j]);
                        s[m][i][j] =
                            fmaf(times, kv_sum_f32(sum[m][i][j]), s[m][i][j]);
                    }
            kv_start_sums<NT>(sum, M);
        }
    }
};

/* ---- values ---------------------------------------------------------------
 */

/* For groups of 32 or more channels of a token: weights times scales are
 * rounded anew for each group. */
template <int D> struct kv_values_s8 : kv_int8_side<D> {
    using side = kv_int8_side<D>;
    using params = kv_gpu_integers_side;
    static constexpr int T = side::T, M = side::M, PARTS = side::PARTS;

    static_assert(T == 32, "a product is of a piece's tokens");
    static_assert(T * 128 * 255 < KV_MAX_SUM, "a sum fits its float");

    /* o * unit: the result; unit, plus: of part k and columns 2c, 2c + 1; plus:
     * this lane's share of the sum of weights times middles. */
    template <int NT> struct sums {
        kv_sums_f32<D, NT> o;
        float unit[PARTS][NT][2], plus[PARTS][NT][2];
    };

    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x.o);
#pragma unroll
        for (int k = 0; k < PARTS; k++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x.unit[k][i][j] = 1;
                    x.plus[k][i][j] = 0;
                }
    }
    /* A group's bytes round(up * weight * scale), unit = 1 / up; plus: this
     * lane's sum of weights times middles. */
    template <int NT> struct rounded {
        uint32_t b[NT][2];
        float up[NT][2], unit[NT][2], plus[NT][2];
    };

    template <int NT>
    static __device__ void round(const params &p, const uint8_t *heads,
                                 const float weight[M][NT][4], rounded<NT> &x)
    {
        float scale[4], middle[4];

        side::token_heads(p, heads, scale, middle);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float product[M][4];

#pragma unroll
            for (int j = 0; j < 2; j++) {
                float max = KV_MIN_PRODUCT, sum = 0;

#pragma unroll
                for (int t = 0; t < 4; t++) {
                    const float w = weight[t / 2][i][t % 2 * 2 + j];

                    product[t / 2][t % 2 * 2 + j] = w * scale[t];
                    max = fmaxf(max, w * scale[t]);
                    sum = fmaf(w, middle[t], sum);
                }
                max = kv_column_max(max);
                x.up[i][j] = 255 * kv_reciprocal(max);
                x.unit[i][j] = max * (1 / 255.0f);
                x.plus[i][j] = sum;
            }
#pragma unroll
            for (int m = 0; m < M; m++)
                x.b[i][m] = kv_weights_u8(product[m], x.up[i]);
        }
    }
    template <int NT>
    static __device__ void
    gather(const params &p, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[M][NT][4], const float factor[NT][2], sums<NT> &x)
    {
        rounded<NT> w;

#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            float change[NT][2];

            if (k == 0 || side::begins(p, k))
                round<NT>(p, side::heads(p, codes, k), weight, w);
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    change[i][j] = factor[i][j] * x.unit[k][i][j] * w.up[i][j];
                    x.unit[k][i][j] = w.unit[i][j];
                    x.plus[k][i][j] =
                        fmaf(x.plus[k][i][j], factor[i][j], w.plus[i][j]);
                }
#pragma unroll
            for (int row = 2 * k; row < 2 * k + 2; row++) {
                int sum[1][NT][4];
                uint32_t a[4];

                kv_unpack16(codes + (row * 32 + kv_lane()) * 16, a);
                kv_start_sums<NT>(sum, 1);
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    kv_mma_s8u8(sum[0][i], a, w.b[i]);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        x.o.o[row][i][j] =
                            fmaf(x.o.o[row][i][j], change[i][j % 2],
                                 kv_sum_f32(sum[0][i][j]));
                }
            }
        }
    }
    template <int NT>
    static __device__ void finish(const params &, const sums<NT> &x, float *o)
    {
        kv_sums_f32<D, NT> y;

#pragma unroll
        for (int k = 0; k < PARTS; k++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float plus = kv_column_sum(x.plus[k][i][j]);

#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        const int row = 2 * k + n / 2, at = n % 2 * 2 + j;

                        y.o[row][i][at] =
                            fmaf(x.o.o[row][i][at], x.unit[k][i][j], plus);
                    }
                }
        kv_sums_store<D, NT>(y, o);
    }
};

#endif
