/* Keys as integers in groups (grouped_codes.h).  Queries are divided by the
 * largest, so that halves of them times steps neither overflow nor vanish. */
#ifndef KV_INTEGERS_CUDA_KEYS_CUH
#define KV_INTEGERS_CUDA_KEYS_CUH

#include "kernels/integers/cuda.cuh"

/* What both kinds of groups have. */
template <int BITS, int D> struct kv_integers_keys {
    using params = kv_gpu_integers_side;
    using fields = kv_fields<BITS>;
    static constexpr int T = fields::T, TILE = KV_GPU_TILE;
    static constexpr int TABLE = 0, BLOCKS = 2, LEAST = D * 16;
    static constexpr int M = T / 16;
    static constexpr int WORDS = D / 8 / fields::PAIRS; /* of a row, a lane's */
    static constexpr unsigned CODES = D * 16;

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
    /* Fragment a of token rows [16 m, 16 m + 16) and channels from 16 k on. */
    static __device__ void fragment(const uint32_t *words, int m, int k,
                                    uint32_t *a)
    {
        const int word = 2 * k / fields::PAIRS;

        fields::fragment(words + (m * WORDS + word) * 2,
                         k % (fields::PAIRS / 2), a);
    }
};

/* Groups of 32 to 128 tokens of a channel: q . k = sum (q step) code + q . low,
 * of which the second sum is one for all tokens of a group. */
template <int BITS, int D> struct kv_folded_keys : kv_integers_keys<BITS, D> {
    using base = kv_integers_keys<BITS, D>;
    using params = typename base::params;
    static constexpr int M = base::M, T = base::T;
    static constexpr int BLOCKS = BITS == 2 ? 1 : 2;
    static constexpr int RUNS = T > 32 ? 2 : 1; /* of 32 tokens in a step */

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

    /* Heads of the group of token t of the step. */
    static __device__ const uint8_t *heads(const params &p, const uint8_t *head,
                                           const uint8_t *codes, unsigned step,
                                           unsigned t)
    {
        const uint8_t *at = p.in_head ? head + 16 : codes + base::CODES;
        const unsigned token = p.in_head ? step * T + t : t;

        return at + (token >> p.shift) * p.heads;
    }

    /* low[j] += q . x of columns 2c + j % 2, x being a group's lows or rests:
     * those of the step's first tokens and (j >= 2) of its last. */
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

    /* s += sum (q step) code: of N tiles of 16 tokens that have the same heads,
     * the first of them m. */
    template <int NT, int N>
    static __device__ void add_codes(const uint8_t *heads, const uint8_t *codes,
                                     int m, const query<NT> &q,
                                     float s[][NT][4])
    {
        uint32_t words[N * 2 * base::WORDS];

        kv_code_words<N * 2 * base::WORDS>(codes, m * 2 * base::WORDS, words);
#pragma unroll
        for (int k = 0; k < D / 16; k += 2) {
            uint32_t step[4];

            kv_pair_words<4>(heads, 2 * k, step);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t b[NT][2];

#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        b[i][half] = kv_mul_f16x2(q.q.b[i][k + j][half],
                                                  step[2 * j + half]);
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
    static __device__ void
    scores(const params &p, const uint8_t *, const uint8_t *head, unsigned step,
           const uint8_t *codes, const query<NT> &q, float s[M][NT][4])
    {
        const uint8_t *first = heads(p, head, codes, step, 0);
        const uint8_t *last =
            RUNS > 1 ? heads(p, head, codes, step, T / 2) : first;
        const float unit = kv_float_at(head, 0);
        const float scale = kv_float_at(head, 1) * q.largest;
        float low[NT][4];

#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                low[i][j] = 0;
        add_lows<NT>(first + p.lows, last + p.lows, q, low);
        if (p.rests)
            add_lows<NT>(first + p.rests, last + p.rests, q, low);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = low[i][m / (M / RUNS) * 2 + j % 2] * unit;
#pragma unroll
        for (int run = 0; run < RUNS; run++)
            add_codes<NT, M / RUNS>(run ? last : first, codes, run * M / RUNS,
                                    q, s);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] *= scale;
    }
};

/* Up to 4 groups of 32 or more channels of a token: q . k = sum over groups of
 * step (sum q code) + low (sum q); lane c has group c of the second product. */
template <int BITS, int D> struct kv_unfolded_keys : kv_integers_keys<BITS, D> {
    using base = kv_integers_keys<BITS, D>;
    using params = typename base::params;
    using fields = typename base::fields;
    static constexpr int M = base::M, T = base::T;
    static constexpr int BLOCKS = BITS == 2 ? 1 : 2;
    static constexpr int AT_ONCE = base::WORDS > 1 ? 1 : 2; /* 16 bytes */

    /* q: 2^15 queries, field by field; codes of these make 2^-9 q . code. sums:
     * fragment b of 2^-9 times the sum over the channels of a group, which is
     * a half in row 2 group, and what that leaves in the next. */
    static constexpr float UNIT = 0x1p-9f;
    template <int NT> struct query {
        kv_queries_f16<D, NT> q;
        uint32_t sums[NT];
        float scale;
    };

    /* Sum over a group's channels of what queries are as halves; lanes that
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

    template <int NT>
    static __device__ void
    scores(const params &p, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[M][NT][4])
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
        const uint8_t *steps = codes + base::CODES + r * M * 4;
        const uint8_t *lows = steps + p.lows;
        uint32_t words[AT_ONCE * 2 * base::WORDS];

#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m % AT_ONCE == 0)
                kv_code_words<AT_ONCE * 2 * base::WORDS>(
                    codes, m * 2 * base::WORDS, words);

            const uint32_t low =
                c < p.n_groups ? kv_word_at(lows + c * p.heads, m) : 0;
            const uint32_t rest =
                c < p.n_groups && p.rests
                    ? kv_word_at(steps + p.rests + c * p.heads, m)
                    : 0;
            const uint32_t a[4] = {
                kv_bytes(low, 0, 0x1010), kv_bytes(low, 0, 0x3232),
                kv_bytes(rest, 0, 0x1010), kv_bytes(rest, 0, 0x3232)};

#pragma unroll
            for (int i = 0; i < NT; i++) {
                const uint32_t b[2] = {q.sums[i], q.sums[i]};

#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
                kv_mma_f16(s[m][i], a, b);
            }
#pragma unroll
            for (int k = 0; k < D / 16; k += 2) {
                const uint32_t step =
                    kv_word_at(steps + (k * 16 >> p.shift) * p.heads, m);
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
                            fmaf(j < 2 ? kv_low_f16(step) : kv_high_f16(step),
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

#endif
