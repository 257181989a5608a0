/* Policies of decode.cuh for integers on path exact (cuda_layout.h).  Queries
 * and weights, times scales if groups are folded, are multiplied with codes as
 * halves. */
#ifndef KV_INTEGERS_CUDA_CUH
#define KV_INTEGERS_CUDA_CUH

#include "kernels/float/cuda.cuh"
#include "kernels/integers/cuda_layout.h"

/* Two blocks of 8 warps, each one piece ahead, keep the memory busy. */
enum { KV_INTEGERS_STAGES = 2 };

/* A code's subnormal half is code * 2^-24. */
#define KV_CODES_PER_UNIT 0x1p24f

template <int BITS> struct kv_fields {
    static constexpr int T = 128 / BITS;
    static constexpr int PAIRS = 16 / BITS; /* pairs in a word */

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

/* Loads N of this lane's words, from word `first` on. */
template <int N>
static __device__ void kv_code_words(const uint8_t *codes, int first,
                                     uint32_t *w)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        kv_unpack16(codes + ((first / 4 + i) * 32 + kv_lane()) * 16, w + 4 * i);
}

/* Loads N of this lane's pairs of a vector, from pair `first` on. */
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

/* The largest magnitude of queries [8 NT][D], in all lanes; 1 if all are 0. */
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

/* Multiplies sums by factor and converts them from the unit 1 / `inverse` to
 * the unit of a tile, whose head is | unit | 1 / unit |; scaled: set to the
 * total factor. */
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

/* Members that all policies of integers share; TOKENS: tokens of a piece. */
template <int TOKENS> struct kv_integers_side {
    static constexpr int BLOCKS = 2;
    static constexpr unsigned WARPS = KV_WARPS;
    using params = kv_gpu_integers_side;
    static constexpr int T = TOKENS, TILE = KV_GPU_TILE, M = T / 16, TABLE = 0;
    static constexpr bool WRITES = false;

    static __host__ __device__ size_t head_bytes(const params &p)
    {
        return p.head_bytes;
    }
    static __host__ __device__ size_t step_bytes(const params &p)
    {
        return p.piece_bytes;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
};

/* ---- keys -----------------------------------------------------------------
 *
 * Queries are divided by the largest, so that halves of them times scales
 * neither overflow nor vanish. */

/* Members that both kinds of groups of keys share. */
template <int BITS, int D>
struct kv_integers_keys : kv_integers_side<kv_fields<BITS>::T> {
    using fields = kv_fields<BITS>;
    static constexpr int WORDS = D / 8 / fields::PAIRS; /* a lane's, of a row */
    static constexpr unsigned CODES = D * 16;

    /* Fragment a of token rows [16 m, 16 m + 16) and channels from 16 k on. */
    static __device__ void fragment(const uint32_t *words, int m, int k,
                                    uint32_t *a)
    {
        const int word = 2 * k / fields::PAIRS;

        fields::fragment(words + (m * WORDS + word) * 2,
                         k % (fields::PAIRS / 2), a);
    }
};

/* Groups of 32 to 128 tokens of a channel: q . k = sum (q scale) code + q .
 * low.  All tokens of a group share the second sum. */
template <int BITS, int D> struct kv_folded_keys : kv_integers_keys<BITS, D> {
    using base = kv_integers_keys<BITS, D>;
    using params = typename base::params;
    static constexpr int M = base::M, T = base::T;
    static constexpr int RUNS = T > 32 ? 2 : 1; /* 32-token runs of a piece */

    template <int NT> struct query {
        kv_queries_f16<D, NT> q;
        float largest;
    };

    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        x.largest = kv_largest<D, NT>(q);
        kv_queries_to_f16<D, NT>(q, x.q, 1 / x.largest);
    }

    /* Heads of the group that token t of the piece is in. */
    static __device__ const uint8_t *heads(const params &p, const uint8_t *head,
                                           const uint8_t *codes, unsigned piece,
                                           unsigned t)
    {
        const uint8_t *at = p.in_head ? head + 16 : codes + base::CODES;
        const unsigned token = p.in_head ? piece * T + t : t;

        return at + (token >> p.shift) * p.heads;
    }

    /* Adds q . x to low[j] for columns 2c + j % 2; x: the lows or rests of the
     * group of the piece's first tokens (j < 2) or of its last tokens. */
    template <int NT>
    static __device__ void add_lows(const uint8_t *first, const uint8_t *last,
                                    const query<NT> &q, float low[NT][4])
    {
#pragma unroll
        for (int k = 0; k < D / 16; k += 2) {
            uint32_t x[4], y[4];

            kv_pair_words<4>(first, 2 * k, x);
            kv_pair_words<4>(last, 2 * k, y);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t a[4] = {x[2 * j], y[2 * j], x[2 * j + 1],
                                       y[2 * j + 1]};

#pragma unroll
                for (int i = 0; i < NT; i++)
                    kv_mma_f16(low[i], a, q.q.b[i][k + j]);
            }
        }
    }

    /* Adds sum (q scale) code to s for N tiles of 16 tokens, from tile m on,
     * that have the same heads. */
    template <int NT, int N>
    static __device__ void add_codes(const uint8_t *heads, const uint8_t *codes,
                                     int m, const query<NT> &q,
                                     float s[][NT][4])
    {
        uint32_t words[N * 2 * base::WORDS];

        kv_code_words<N * 2 * base::WORDS>(codes, m * 2 * base::WORDS, words);
#pragma unroll
        for (int k = 0; k < D / 16; k += 2) {
            uint32_t scale[4];

            kv_pair_words<4>(heads, 2 * k, scale);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t b[NT][2];

#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        b[i][half] = kv_mul_f16x2(q.q.b[i][k + j][half],
                                                  scale[2 * j + half]);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    uint32_t a[4];

                    base::fragment(words, n, k + j, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(s[m + n][i], a, b[i]);
                }
            }
        }
    }

    template <int NT>
    static __device__ void scores(const params &p, const uint8_t *,
                                  const uint8_t *head, unsigned piece,
                                  const uint8_t *codes, const query<NT> &q,
                                  float s[M][NT][4])
    {
        const uint8_t *first = heads(p, head, codes, piece, 0);
        const uint8_t *last =
            RUNS > 1 ? heads(p, head, codes, piece, T / 2) : first;
        const float scale = kv_float_at(head, 1) * q.largest;
        const float low_scale = kv_float_at(head, 0) * scale;
        float low[NT][4];

#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                low[i][j] = 0;
#pragma unroll
        for (int run = 0; run < RUNS; run++)
            add_codes<NT, M / RUNS>(run ? last : first, codes, run * M / RUNS,
                                    q, s);
        add_lows<NT>(first + p.lows, last + p.lows, q, low);
        if (p.rests)
            add_lows<NT>(first + p.rests, last + p.rests, q, low);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = fmaf(low[i][m / (M / RUNS) * 2 + j % 2],
                                      low_scale, s[m][i][j] * scale);
    }
};

/* For up to 4 groups of 32 or more channels of a token: q . k = sum over groups
 * of scale (sum q code) + low (sum q).  In the matrix product of the second
 * term, lane c holds group c. */
template <int BITS, int D> struct kv_unfolded_keys : kv_integers_keys<BITS, D> {
    using base = kv_integers_keys<BITS, D>;
    using params = typename base::params;
    using fields = typename base::fields;
    static constexpr int M = base::M, T = base::T;
    static constexpr int AT_ONCE = base::WORDS > 1 ? 1 : 2; /* 16 bytes */

    /* q: 2^15 queries, field by field; codes of these make 2^-9 q . code. sums:
     * fragment b of 2^-9 times the sum over the channels of a group, rounded to
     * a half in row 2 group, and the remainder in the next row. */
    static constexpr float UNIT = 0x1p-9f;
    template <int NT> struct query {
        kv_queries_f16<D, NT> q;
        uint32_t sums[NT];
        float scale;
    };

    /* Sum over a group's channels of queries rounded to halves; lanes that
     * share a column share the work. */
    static __device__ float group_sum(const float *q, unsigned len, float scale)
    {
        float sum = 0;

        for (unsigned i = kv_lane() / 4; i < len; i += 8)
            sum += kv_low_f16(kv_pack_f16(q[i] * scale, 0));
        return kv_column_sum(sum);
    }

    template <int NT>
    static __device__ void prepare(const params &p, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        const float largest = kv_largest<D, NT>(q);
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
        const float times = p.lows ? UNIT : -p.zero * UNIT;
        const unsigned len = D / p.n_groups;

        kv_queries_to_f16<D, NT>(q, x.q, 0x1p15f / largest);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float sum[2] = {0, 0};

#pragma unroll
            for (int k = 0; k < D / 8; k++)
                x.q.b[i][k / 2][k % 2] = kv_mul_f16x2(
                    x.q.b[i][k / 2][k % 2],
                    kv_pack_f16(fields::weight(k % fields::PAIRS),
                                fields::weight(k % fields::PAIRS)));
            for (unsigned g = 0; g < p.n_groups; g++)
                for (int j = 0; j < 2; j++) {
                    const float *row = q + (i * 8 + 2 * c + j) * D;
                    const float all =
                        group_sum(row + g * len, len, 1 / largest) * times;
                    const float high = kv_low_f16(kv_pack_f16(all, 0));

                    if (r / 2 == g)
                        sum[j] = r % 2 ? all - high : all;
                }
            x.sums[i] = kv_transpose(kv_pack_f16(sum[0], sum[1]));
        }
        x.scale = largest / UNIT;
    }

    /* s = sum over groups of low (sum q), for the m-th 16 tokens of the piece.
     */
    template <int NT>
    static __device__ void begin_sums(const params &p, const uint8_t *scales,
                                      int m, const query<NT> &q, float s[NT][4])
    {
        const unsigned c = kv_lane() % 4;
        const uint32_t low =
            c < p.n_groups ? kv_word_at(scales + p.lows + c * p.heads, m) : 0;
        const uint32_t rest =
            c < p.n_groups && p.rests
                ? kv_word_at(scales + p.rests + c * p.heads, m)
                : 0;
        const uint32_t a[4] = {
            kv_bytes(low, 0, 0x1010), kv_bytes(low, 0, 0x3232),
            kv_bytes(rest, 0, 0x1010), kv_bytes(rest, 0, 0x3232)};

#pragma unroll
        for (int i = 0; i < NT; i++) {
            const uint32_t b[2] = {q.sums[i], q.sums[i]};

#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] = 0;
            kv_mma_f16(s[i], a, b);
        }
    }

    template <int NT>
    static __device__ void
    scores(const params &p, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[M][NT][4])
    {
        const unsigned r = kv_lane() / 4;
        const uint8_t *scales = codes + base::CODES + r * M * 4;
        uint32_t words[AT_ONCE * 2 * base::WORDS];

#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m % AT_ONCE == 0)
                kv_code_words<AT_ONCE * 2 * base::WORDS>(
                    codes, m * 2 * base::WORDS, words);

            begin_sums<NT>(p, scales, m, q, s[m]);
#pragma unroll
            for (int k = 0; k < D / 16; k += 2) {
                const uint32_t scale =
                    kv_word_at(scales + (k * 16 >> p.shift) * p.heads, m);
                uint32_t x[2][4];

                base::fragment(words, m % AT_ONCE, k, x[0]);
                base::fragment(words, m % AT_ONCE, k + 1, x[1]);
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    float sum[4] = {0, 0, 0, 0};

                    kv_mma_f16(sum, x[0], q.q.b[i][k]);
                    kv_mma_f16(sum, x[1], q.q.b[i][k + 1]);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        s[m][i][j] =
                            fmaf(j < 2 ? kv_low_f16(scale) : kv_high_f16(scale),
                                 sum[j], s[m][i][j]);
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] *= q.scale;
        }
    }
};

/* ---- values ---------------------------------------------------------------
 *
 * Groups are channels of a token.  A weight times the token's scale multiplies
 * the codes; all channels of a group share sum p low. */

template <int BITS, int D>
struct kv_folded_values : kv_integers_side<kv_fields<BITS>::T> {
    using params = kv_gpu_integers_side;
    using fields = kv_fields<BITS>;
    static constexpr int M = fields::T / 16, PAIRS = fields::PAIRS;
    static constexpr unsigned CODES = D * 16;
    static_assert(PAIRS == 2 * M, "a word is a channel's codes of a piece");
    static_assert(D / 32 <= 8, "row r of the lows' product is group r");

    /* o: in the last tile's unit, 1 / unit is `inverse`; low: row r is the sum
     * of p low of group r, row r + 8 the sum of p rest; without lows row r is
     * the sum of p scale, in o's unit. */
    template <int NT> struct sums {
        kv_sums_f32<D, NT> o;
        float low[NT][4], inverse;
    };

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

    /* Converts both kinds of sums to the unit of this tile. */
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

    /* low += sum of weights times lows; or of weights times scales, without the
     * factors of their fields. */
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
            uint32_t scale[PAIRS], words[4], folded[M][NT][2];

            kv_pair_words<PAIRS>(heads + (k * 16 >> p.shift) * p.heads, 0,
                                 scale);
            kv_unpack16(codes + (k / 2 * 32 + kv_lane()) * 16, words);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        folded[m][i][j] =
                            kv_mul_f16x2(b[m][i][j], scale[2 * m + j]);
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
