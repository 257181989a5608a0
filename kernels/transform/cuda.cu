/* Attention to coefficients in one bitstream per token for all KV heads
 * (kernels/transform/transform.h).  A state reaches back into bits of other
 * heads, so the block of each head reads whole bitstreams: once from memory,
 * for the other heads from the L2 cache.
 *
 * A block of 8 warps takes 8 rows (query heads of a KV head, for query token 0,
 * then 1, ..) over tiles of 64 tokens, one of keys and one of values in shared
 * memory: it works on one while the other is copied.
 *
 *   decode   warp: two coefficients   lane: two tokens   -> y, halves
 *   qk       warp: 16 tokens, every other 16 coefficients.  Keys before RoPE
 *            become channels and are rotated: every other 32 channels
 *   softmax  warp: a row
 *   pv       warp: 16 coefficients of every 128, all tokens
 *
 * Lanes are tokens where bitstreams are read, without bank conflicts; bank
 * conflicts of table reads depend on the states.
 *
 * y of keys is words [slot / 2][64 + 8], of two slots of a token; y of values
 * is words [slot][32 + 4], of two tokens of a slot.  So fragments a of gpu.cuh
 * are 4 words of 32 banks each.
 *
 * The matrix of keys before RoPE, slots to channels, is fragments b of 16 slots
 * and 8 channels, [head_dim / 32][4][head_dim / 16][lane][2 words]; the four
 * are channels 0 to 7 and 8 to 15 of the 16 that begin with 16 i, then their
 * partners. */
#include "kernels/cuda/decode_launch.cuh"
#include "kernels/transform/cuda.h"
#include "kernels/trellis/trellis.h"

enum {
    TOKENS = 64, /* tokens in a tile */
    ROWS = 8,
    LINE = TOKENS * 4,              /* bytes of one word of all 64 tokens */
    KEYS_APART = TOKENS + 8,        /* words of two slots */
    VALUES_APART = TOKENS / 2 + 4,  /* words of one slot */
    WEIGHTS_APART = TOKENS / 2 + 4, /* words of a row */
    SCORES_APART = TOKENS + 4       /* floats of a row */
};

/* One side's data in a block's shared memory. */
struct kv_transform_shared_side {
    unsigned n;                /* slots */
    const uint8_t *bitstreams; /* a tile; a line of zeros is before it */
    const uint32_t *place;
    const uint16_t *tables;

    __device__ unsigned sixteens() const
    {
        return (n + 15) / 16;
    }
};

static __host__ __device__ size_t tile_bytes(const kv_gpu_transform_side &g,
                                             unsigned d)
{
    return (size_t)g.n_words * LINE +
           (g.rotated ? d / 2 * 2 * sizeof(float) : 0);
}

/* A side's shared memory: | zeros | tile | tables | places | */
static __host__ __device__ size_t side_bytes(const kv_gpu_transform_side &g,
                                             unsigned d)
{
    return LINE + tile_bytes(g, d) +
           (size_t)g.n_tables * KV_TRELLIS_STATES * 2 + d * 4;
}

/* Loads a side; all threads call it, before a barrier. */
KV_DEVICE kv_transform_shared_side load_side(const kv_gpu_transform_side &g,
                                             unsigned d, uint8_t *shared)
{
    const unsigned tables = g.n_tables * KV_TRELLIS_STATES * 2;
    uint8_t *const bitstreams = shared + LINE;
    uint8_t *const table = bitstreams + tile_bytes(g, d);
    uint32_t *const place = reinterpret_cast<uint32_t *>(table + tables);
    uint32_t *const zeros = reinterpret_cast<uint32_t *>(shared);

    kv_fetch<true>(table, reinterpret_cast<const uint8_t *>(g.tables), tables);
    for (unsigned i = threadIdx.x; i < LINE / 4; i += blockDim.x)
        zeros[i] = 0;
    for (unsigned i = threadIdx.x; i < d; i += blockDim.x)
        place[i] = g.place[blockIdx.y * (size_t)d + i];
    return {g.n[blockIdx.y], bitstreams, place,
            reinterpret_cast<const uint16_t *>(table)};
}

KV_DEVICE void fetch_tile(const kv_gpu_transform_side &g,
                          const kv_transform_shared_side &side, unsigned d,
                          const uint8_t *tiles, unsigned i)
{
    const unsigned bytes = (unsigned)tile_bytes(g, d);

    kv_fetch<true>(const_cast<uint8_t *>(side.bitstreams),
                   tiles + (size_t)i * bytes, bytes);
}

/* A slot of this lane's two tokens, halves; the slot is one for the warp. */
KV_DEVICE uint32_t two_tokens(const kv_transform_shared_side &x, unsigned slot)
{
    if (slot >= x.n)
        return 0;

    const uint32_t place = x.place[slot];
    const unsigned shift = place & ((1u << KV_PLACE_SHIFT) - 1);
    const uint8_t *const word =
        x.bitstreams + (place >> (KV_PLACE_SHIFT + KV_PLACE_TABLE)) * LINE +
        kv_lane() * 8;
    const uint16_t *const table =
        x.tables + (place >> KV_PLACE_SHIFT & ((1u << KV_PLACE_TABLE) - 1)) *
                       KV_TRELLIS_STATES;
    const uint2 low = kv_load8(word);
    uint32_t state[2] = {low.x >> shift, low.y >> shift};

    if (shift > 32 - KV_TRELLIS_BITS) {
        const uint2 high = kv_load8(word - LINE);

        state[0] |= high.x << (32 - shift);
        state[1] |= high.y << (32 - shift);
    }
    return table[state[0] % KV_TRELLIS_STATES] |
           (uint32_t)table[state[1] % KV_TRELLIS_STATES] << 16;
}

template <bool VALUES>
KV_DEVICE void decode(const kv_transform_shared_side &x, uint32_t *y)
{
    for (unsigned i = 2 * kv_warp(); i < 16 * x.sixteens(); i += 2 * KV_WARPS) {
        const uint32_t a = two_tokens(x, i), b = two_tokens(x, i + 1);

        if (VALUES) {
            y[i * VALUES_APART + kv_lane()] = a;
            y[(i + 1) * VALUES_APART + kv_lane()] = b;
        } else {
            *reinterpret_cast<uint2 *>(y + i / 2 * KEYS_APART +
                                       2 * kv_lane()) = {
                kv_bytes(a, b, 0x5410), kv_bytes(a, b, 0x7632)};
        }
    }
}

/* | queries, halves: words of two slots or channels [D / 2][8] | y | scores
 * [2][8] | weights [8] | factors | constants | limits | keys | values |
 * keys before RoPE: angles | */
template <int D> struct kv_transform_workspace {
    static constexpr unsigned Y = D / 2 * KEYS_APART, QUERIES = D / 2 * 8,
                              SCORES = 2 * ROWS * SCORES_APART,
                              WEIGHTS = ROWS * WEIGHTS_APART,
                              WORDS = QUERIES + Y + SCORES + WEIGHTS + 3 * ROWS;
    static_assert(Y == D * VALUES_APART, "both sides take as much");
    static_assert(Y >= 2 * ROWS * D, "queries are made there");
    static_assert(WORDS % 4 == 0, "what follows is copied by 16 bytes");

    uint32_t *queries, *y, *weights;
    float *scores, *factors, *constants;
    unsigned *limits;
    uint8_t *sides;

    __device__ kv_transform_workspace(uint8_t *shared)
        : queries(reinterpret_cast<uint32_t *>(shared)), y(queries + QUERIES),
          weights(y + Y + SCORES), scores(reinterpret_cast<float *>(y + Y)),
          factors(reinterpret_cast<float *>(weights + WEIGHTS)),
          constants(factors + ROWS),
          limits(reinterpret_cast<unsigned *>(constants + ROWS)),
          sides(shared + WORDS * 4)
    {
    }
};

/* The transform by a matrix; NULL: none. */
static __host__ __device__ kv_gpu_space matrix_space(const float *matrix)
{
    return {(unsigned)(matrix ? KV_SPACE_MATRIX : KV_SPACE_NONE),
            0,
            0,
            matrix,
            NULL,
            NULL};
}

/* ---- queries ------------------------------------------------------------- */

/* Writes the queries as halves.  For coefficients, also computes q . mean,
 * which is added to every score. */
template <int D>
KV_DEVICE void load_queries(const kv_decode &p, const kv_gpu_transform_side &k,
                            const kv_rows &rows, unsigned sequence,
                            const kv_transform_workspace<D> &w)
{
    float *const raw = reinterpret_cast<float *>(w.y);
    float *const q = raw + ROWS * D;

    const kv_gpu_space enter = matrix_space(k.rotated ? NULL : k.matrix);

    kv_load_queries(p, enter, sequence, rows.first, ROWS, D, D, raw, q);
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < D / 2 * 8; i += blockDim.x) {
        const float *at = q + i % 8 * D + i / 8 * 2;

        w.queries[i] = kv_pack_f16(at[0], at[1]);
    }

    const float *const mean = k.mean + blockIdx.y * (size_t)D;
    float sum = 0;

    for (unsigned c = kv_lane(); !k.rotated && c < D; c += 32)
        sum += raw[kv_warp() * D + c] * mean[c];
    for (unsigned mask = 1; mask < 32; mask *= 2)
        sum += kv_shuffle_xor(sum, mask);
    w.constants[kv_warp()] = sum;
}

template <int D>
KV_DEVICE void query_fragment(const kv_transform_workspace<D> &w, unsigned k,
                              uint32_t *b)
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

    b[0] = w.queries[(8 * k + c) * 8 + r];
    b[1] = w.queries[(8 * k + c + 4) * 8 + r];
}

/* ---- scores -------------------------------------------------------------- */

/* Loads fragment a of 16 tokens from 16 m on and slots from 16 k on. */
KV_DEVICE void key_fragment(const uint32_t *y, unsigned m, unsigned k,
                            uint32_t *a)
{
    const uint32_t *const at =
        y + (8 * k + kv_lane() % 4) * KEYS_APART + 16 * m + kv_lane() / 4;

    a[0] = at[0];
    a[1] = at[8];
    a[2] = at[4 * KEYS_APART];
    a[3] = at[4 * KEYS_APART + 8];
}

template <int D>
KV_DEVICE void qk(const kv_transform_workspace<D> &w, unsigned sixteens,
                  unsigned m, unsigned half, float *s)
{
    for (unsigned k = half; k < sixteens; k += 2) {
        uint32_t a[4], b[2];

        key_fragment(w.y, m, k, a);
        query_fragment(w, k, b);
        kv_mma_f16(s, a, b);
    }
}

/* Angles of keys before RoPE in shared memory, cosine and sine of each pair:
 * for tokens 0 to 7, [8][D + 16], whose rows are half of the banks apart, and
 * for every eighth token of the current tile, [8][D]. */
template <int D> struct kv_transform_angles {
    static constexpr unsigned APART = D + 16, FLOATS = 8 * (APART + D);

    float *within, *eighths;

    __device__ kv_transform_angles(uint8_t *shared)
        : within(reinterpret_cast<float *>(shared)), eighths(within + 8 * APART)
    {
    }
    /* Loads `within`; all threads call it, before a barrier. */
    __device__ void load(const kv_gpu_transform_side &g) const
    {
        for (unsigned i = threadIdx.x; i < 8 * D; i += blockDim.x)
            within[i / D * APART + i % D] = g.within[i];
    }
    /* Computes `eighths` for a tile; first: the angles of the tile's first
     * token. */
    __device__ void tile(const kv_gpu_transform_side &g,
                         const uint8_t *first) const
    {
        for (unsigned i = threadIdx.x; i < 8 * D / 2; i += blockDim.x) {
            const uint2 a = kv_load8(first + i % (D / 2) * 8);
            const uint2 b = kv_load8(g.within + (8 * (D / 2) + i) * 2);
            const float ac = kv_from_bits(a.x), as = kv_from_bits(a.y);
            const float bc = kv_from_bits(b.x), bs = kv_from_bits(b.y);

            eighths[2 * i] = fmaf(ac, bc, -(as * bs));
            eighths[2 * i + 1] = fmaf(as, bc, ac * bs);
        }
    }
};

/* Rotates channels x of a fragment c, 16 tokens from 16 m on and 8 channels
 * from `first` on, and their partners y. */
template <int D>
KV_DEVICE void rotate(const kv_transform_angles<D> &angles, unsigned m,
                      unsigned first, float *x, float *y)
{
    const unsigned at = 2 * (first + kv_lane() % 4 * 2);
    const uint4 w = kv_load16(
        angles.within + kv_lane() / 4 * kv_transform_angles<D>::APART + at);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 s = kv_load16(angles.eighths + (2 * m + half) * D + at);
        const uint32_t a[2][2] = {{s.x, s.y}, {s.z, s.w}};
        const uint32_t b[2][2] = {{w.x, w.y}, {w.z, w.w}};

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float ac = kv_from_bits(a[i][0]), as = kv_from_bits(a[i][1]);
            const float bc = kv_from_bits(b[i][0]), bs = kv_from_bits(b[i][1]);
            const float cosine = fmaf(ac, bc, -(as * bs));
            const float sine = fmaf(as, bc, ac * bs);
            const int j = 2 * half + i;
            const float low = x[j];

            x[j] = fmaf(y[j], -sine, low * cosine);
            y[j] = fmaf(low, sine, y[j] * cosine);
        }
    }
}

/* 16 tokens of 16 channels as a fragment a. */
KV_DEVICE void halves_of(const float (*x)[4], uint32_t *a)
{
    a[0] = kv_pack_f16(x[0][0], x[0][1]);
    a[1] = kv_pack_f16(x[0][2], x[0][3]);
    a[2] = kv_pack_f16(x[1][0], x[1][1]);
    a[3] = kv_pack_f16(x[1][2], x[1][3]);
}

template <int D>
KV_DEVICE void qk_rotated(const kv_transform_workspace<D> &w,
                          const kv_gpu_transform_side &g, unsigned sixteens,
                          const kv_transform_angles<D> &angles, unsigned m,
                          unsigned half, float *s)
{
    constexpr unsigned fragment = D / 16 * 32 * 2; /* words of 8 channels */
    const float *const mean = g.mean + blockIdx.y * (size_t)D;
    const uint32_t *const matrix =
        g.fragment + blockIdx.y * (size_t)(D / 8 * fragment);

    for (unsigned i = half; i < D / 32; i += 2) {
        float x[4][4];
        uint32_t a[4], b[2];

#pragma unroll
        for (int f = 0; f < 4; f++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[f][j] = mean[f / 2 * (D / 2) + 16 * i + f % 2 * 8 +
                               kv_lane() % 4 * 2 + j % 2];
        for (unsigned k = 0; k < sixteens; k++) {
            key_fragment(w.y, m, k, a);
#pragma unroll
            for (int f = 0; f < 4; f++) {
                const uint2 w = kv_load8(matrix + (4 * i + f) * fragment +
                                         (k * 32 + kv_lane()) * 2);

                b[0] = w.x;
                b[1] = w.y;
                kv_mma_f16(x[f], a, b);
            }
        }
#pragma unroll
        for (int f = 0; f < 2; f++)
            rotate<D>(angles, m, 16 * i + 8 * f, x[f], x[f + 2]);
#pragma unroll
        for (int f = 0; f < 2; f++) {
            halves_of(x + 2 * f, a);
            query_fragment(w, f * (D / 32) + i, b);
            kv_mma_f16(s, a, b);
        }
    }
}

/* s: fragment c. */
template <int D>
KV_DEVICE void put_scores(const kv_transform_workspace<D> &w, unsigned m,
                          unsigned half, const float *s)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const unsigned row = kv_lane() % 4 * 2 + j % 2;

        w.scores[(half * ROWS + row) * SCORES_APART + 16 * m + kv_lane() / 4 +
                 j / 2 * 8] = s[j];
    }
}

/* ---- weights ------------------------------------------------------------- */

/* Turns the scores of this warp's row into weights.  token: the index in the
 * run of the tile's first token. */
template <int D>
KV_DEVICE void softmax(const kv_transform_workspace<D> &w, unsigned token,
                       float &max, float &sum)
{
    const unsigned row = kv_warp(), t = 2 * kv_lane();
    const float *const at = w.scores + row * SCORES_APART + t;
    float s[2];

#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        s[i] = at[i] + at[ROWS * SCORES_APART + i] + w.constants[row];
        if (token + t + i >= w.limits[row])
            s[i] = KV_NONE;
    }

    const float factor = kv_softmax_row(s, max, sum);

    w.weights[row * WEIGHTS_APART + kv_lane()] = kv_pack_f16(s[0], s[1]);
    if (kv_lane() == 0)
        w.factors[row] = factor;
}

/* ---- values -------------------------------------------------------------- */

/* o: slots 16 (warp + 8 i) on, fragments c of O^T. */
template <int D>
KV_DEVICE void pv(const kv_transform_workspace<D> &w,
                  const kv_transform_shared_side &values, float (*o)[4])
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
    for (int i = 0; i < (D / 16 + KV_WARPS - 1) / KV_WARPS; i++) {
        const unsigned m = kv_warp() + KV_WARPS * i;

        if (m >= values.sixteens())
            continue;
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[i][j] *= w.factors[2 * c + j % 2];
#pragma unroll
        for (int k = 0; k < TOKENS / 16; k++) {
            const uint32_t *const y =
                w.y + (16 * m + r) * VALUES_APART + 8 * k + c;
            const uint32_t *const weight =
                w.weights + r * WEIGHTS_APART + 8 * k + c;
            const uint32_t a[4] = {y[0], y[8 * VALUES_APART], y[4],
                                   y[8 * VALUES_APART + 4]};
            const uint32_t b[2] = {weight[0], weight[4]};

            kv_mma_f16(o[i], a, b);
        }
    }
}

template <int D> KV_DEVICE void put_sums(float *to, const float (*o)[4])
{
#pragma unroll
    for (int i = 0; i < (D / 16 + KV_WARPS - 1) / KV_WARPS; i++) {
        const unsigned m = kv_warp() + KV_WARPS * i;

#pragma unroll
        for (int j = 0; j < 4; j++)
            if (m < D / 16)
                to[(kv_lane() % 4 * 2 + j % 2) * D + 16 * m + kv_lane() / 4 +
                   j / 2 * 8] = o[i][j];
    }
}

/* ---- the kernel ---------------------------------------------------------- */

/* Attends over a thread block's piece of codes and writes the block's partial
 * result. */
template <int D, bool ROTATED>
KV_DEVICE void span(const kv_decode &p, const kv_gpu_transform_side &k,
                    const kv_gpu_transform_side &v, const kv_gpu_work &work)
{
    constexpr unsigned each = KV_GPU_TILE / TOKENS;
    const kv_gpu_run &run = work.run;
    const kv_rows rows = {
        blockIdx.z * ROWS, p.group, p.nq, work.n, run.k, run.v};
    const kv_transform_workspace<D> w(kv_shared());
    const kv_transform_shared_side keys = load_side(k, D, w.sides);
    const kv_transform_shared_side values =
        load_side(v, D, w.sides + side_bytes(k, D));
    const kv_transform_angles<D> angles(w.sides + side_bytes(k, D) +
                                        side_bytes(v, D));
    const unsigned first = work.first_tile * each;
    const unsigned end = first + work.n_tiles * each;
    const unsigned m = kv_warp() % 4, half = kv_warp() / 4;
    float o[(D / 16 + KV_WARPS - 1) / KV_WARPS][4] = {};
    float max = KV_NONE, sum = 0;

    if (ROTATED)
        angles.load(k);
    if (threadIdx.x < ROWS)
        w.limits[threadIdx.x] = kv_seen(rows, run, rows.first + threadIdx.x);
    fetch_tile(k, keys, D, rows.k, first);
    kv_copy_commit();
    fetch_tile(v, values, D, rows.v, first);
    kv_copy_commit();
    load_queries<D>(p, k, rows, work.sequence, w);
    for (unsigned i = first; i < end; i++) {
        float s[4] = {0, 0, 0, 0};

        kv_copy_wait<1>();
        kv_sync_block(); /* keys have arrived; all are done with y */
        decode<false>(keys, w.y);
        if (ROTATED)
            angles.tile(k, keys.bitstreams + k.n_words * LINE);
        kv_sync_block();
        if (i + 1 < end)
            fetch_tile(k, keys, D, rows.k, i + 1);
        kv_copy_commit();
        if (ROTATED)
            qk_rotated<D>(w, k, keys.sixteens(), angles, m, half, s);
        else
            qk<D>(w, keys.sixteens(), m, half, s);
        put_scores<D>(w, m, half, s);
        kv_copy_wait<1>();
        kv_sync_block(); /* scores and values have arrived */
        softmax<D>(w, i * TOKENS, max, sum);
        decode<true>(values, w.y);
        kv_sync_block();
        if (i + 1 < end)
            fetch_tile(v, values, D, rows.v, i + 1);
        kv_copy_commit();
        pv<D>(w, values, o);
    }
    kv_copy_wait<0>();

    float *const part = kv_part(p, work.split, D, ROWS);

    if (kv_lane() == 0) {
        part[kv_warp()] = max;
        part[ROWS + kv_warp()] = sum;
    }
    put_sums<D>(part + 2 * ROWS, o);
}

/* Grid: (pieces of work, KV heads, groups of 8 rows); sinks and tail are
 * halves. */
template <int D, bool ROTATED>
__global__ void __launch_bounds__(32 * KV_WARPS, D <= 128 ? 2 : 1)
    kv_transform_kernel(const kv_decode p, const kv_gpu_transform_side k,
                        const kv_gpu_transform_side v)
{
    const kv_gpu_work &work = p.work[blockIdx.x];

    if (work.coded)
        span<D, ROTATED>(p, k, v, work);
    else
        kv_attend_span<kv_float_keys<D>, kv_float_values<D>, 1, D, 1, KV_WARPS>(
            p, {}, {}, {}, work);
    if (kv_last_of(p, work))
        kv_merge_splits<4>(p, work, D, ROWS);
}

/* ---- launches ------------------------------------------------------------ */

template <int D, bool ROTATED>
static const char *launch(const kv_decode &p, struct kv_gpu_launch *l,
                          const kv_gpu_transform_side &k,
                          const kv_gpu_transform_side &v)
{
    const unsigned rows = p.group * p.nq;
    const dim3 grid((unsigned)l->n_work, (unsigned)l->n_kv_heads,
                    (rows + ROWS - 1) / ROWS);

    return kv_launch_blocks(l, kv_transform_kernel<D, ROTATED>, KV_WARPS,
                            TOKENS, grid, p, k, v);
}

template <int D> static const char *launch_dim(struct kv_gpu_launch *l)
{
    const kv_gpu_transform_side k = kv_gpu_transform_side_of(l->k),
                                v = kv_gpu_transform_side_of(l->v);
    const size_t coded = kv_transform_workspace<D>::WORDS * 4 +
                         side_bytes(k, D) + side_bytes(v, D) +
                         (k.rotated ? kv_transform_angles<D>::FLOATS * 4 : 0);
    const size_t plain =
        kv_span_shared<kv_float_keys<D>, kv_float_values<D>, 1, D, 1>({}, {});
    struct kv_decode p = l->p;

    l->shared = coded > plain ? coded : plain;
    p.leave = matrix_space(v.matrix);
    p.mean = v.mean;
    return k.rotated ? launch<D, true>(p, l, k, v)
                     : launch<D, false>(p, l, k, v);
}

static int launch_any(struct kv_gpu_launch *l, struct kv_err *e)
{
    const char *wrong = NULL;

    if (l->prefill)
        return kv_fail(e,
                       "no CUDA kernel of prefill attention for these codes");
    switch (l->head_dim) {
#define KV_CASE(D)                \
    case D:                       \
        wrong = launch_dim<D>(l); \
        break;
        KV_TRANSFORM_DIMS(KV_CASE)
#undef KV_CASE
    }
    return wrong ? kv_fail(e, "attention to coefficients: %s", wrong) : 0;
}

extern "C" const struct kv_gpu_family kv_gpu_transform = {
    "transform", kv_gpu_transform_open, launch_any};
