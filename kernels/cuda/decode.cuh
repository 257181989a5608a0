/* Decode attention: a few queries of a sequence over all of its tokens, each
 * byte of the cache read once for all query heads of a KV head (FlashDecoding).
 *
 * Blocks of WARPS warps split the tokens of (sequence, KV head); a warp takes
 * tiles of TILE tokens in turn and walks each in steps of T tokens, whose bytes
 * stream through a ring of its own in shared memory.  No two warps wait for
 * each other before the end, where they merge, in order; the last block of a
 * (sequence, KV head) to arrive merges all of them, in order: the same bits on
 * every run.
 *
 * Tokens are rows and queries columns of the matrix products: scores
 * S [T][8] = K Q^T, then O^T [head_dim][8] += V^T P.  A family is two policies,
 * one for keys and one for values.  Members of a policy:
 *
 *   params            the kernel's argument, by value
 *   T, TILE           tokens a step and a tile, which the warps take in turn;
 *                     the same for both.  A tile is 128 tokens, of kvquant 64,
 *                     of halves, which lie step by step, 16
 *   BLOCKS            blocks that share a multiprocessor at 8 rows: limited
 *                     by registers and tables
 *   head_bytes(p)     bytes at the start of a tile, shared by its steps
 *   step_bytes(p)     bytes of a step, behind them; both multiples of 16
 *   LEAST             of these, as many as the compiler can know
 *   TABLE             bytes in shared memory for the whole block, filled by
 *   load(p, head, table)             all threads, before a barrier; values
 *                     without one are given that of the keys
 * keys:
 *   query<NT>                        queries in the products' layout
 *   prepare(p, table, q, rows, query)
 *                                    q: [8 NT][D] in shared memory, times
 *                                    scale and log2(e), which may be written
 *                                    over
 *   scores(p, table, head, step, codes, query, s)
 *                                    s [T / 16][NT][4], written
 * values:
 *   sums<NT>                         O^T as the products give it
 *   clear(sums)
 *   gather(p, table, head, step, codes, rows, first, weight, factor, sums)
 *                                    sums = factor * sums + V^T P; weight
 *                                    [T / 16][NT][4], factor [NT][2]; first:
 *                                    position of the step's first token
 *   finish(p, sums, o)               o: [8 NT][D] in shared memory, written
 *
 * head, codes: of the tile and the step, in shared memory, a step's keys right
 * before its values; codes may be written over.  step: which of its tile.
 * s, weight: fragments c of gpu.cuh for each 16 tokens, column 2c of N-tile i
 * is row 8 i + 2c of q. */
#ifndef KV_CUDA_DECODE_CUH
#define KV_CUDA_DECODE_CUH

#include "kernels/cuda/decode.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/softmax.cuh"

enum { KV_WARPS = 8 };

/* The query heads of a warp's rows, from the first on: row i is query head i %
 * group of the KV head, of query token i / group, the last of which is token n
 * - 1. */
struct kv_rows {
    unsigned first, group, nq, n;
    const uint8_t *k, *v; /* the KV head's tiles of the run */
};

KV_DEVICE unsigned kv_row_head(const kv_rows &x, unsigned row)
{
    return blockIdx.y * x.group + row % x.group;
}

KV_DEVICE unsigned kv_row_position(const kv_rows &x, unsigned row)
{
    return x.n - x.nq + row / x.group;
}

/* Tokens of one run that a block attends to. */
struct kv_span {
    unsigned first;       /* position of the run's first token */
    const uint8_t *k, *v; /* the KV head's tiles */
    unsigned first_tile, n_tiles;
    unsigned common; /* tokens of the run that every query sees */
    unsigned seen;   /* .. that one of this warp's sees: later ones in the last
                      * tile may be padding */
};

/* Bytes that a warp, or together a block, copies, LEAST or more: for those one
 * instruction for each 16 of a thread. */
template <bool TOGETHER, unsigned MIN = 0>
KV_DEVICE void kv_fetch(uint8_t *to, const uint8_t *from, unsigned bytes)
{
    constexpr unsigned all = (TOGETHER ? 32 * KV_WARPS : 32) * 16;
    const unsigned mine = (TOGETHER ? threadIdx.x : kv_lane()) * 16;
    const kv_place place = kv_place_of(to) + mine;
    unsigned at = 0;

    from += mine;
#pragma unroll
    for (; at + all <= MIN; at += all)
        kv_copy_async(place + at, from + at);
    for (; at + all <= bytes; at += all)
        kv_copy_async(place + at, from + at);
    if (at + mine < bytes)
        kv_copy_async(place + at, from + at);
}

template <bool TOGETHER> KV_DEVICE void kv_sync(void)
{
    if (TOGETHER)
        kv_sync_block();
    else
        kv_sync_warp();
}

/* The ring of a warp, or of a block: STAGES steps of both sides, and the heads
 * of the tiles that these can be of. */
template <class K, class V, int STAGES, bool TOGETHER = false> struct kv_ring {
    static constexpr int STEPS = K::TILE / K::T;
    static constexpr int TILES = (STAGES + STEPS - 2) / STEPS + 1;

    unsigned k_step, v_step, k_head, v_head;
    uint8_t *base;

    static __host__ __device__ size_t bytes(const typename K::params &k,
                                            const typename V::params &v)
    {
        return STAGES * (K::step_bytes(k) + V::step_bytes(v)) +
               TILES * (K::head_bytes(k) + V::head_bytes(v));
    }
    __device__ uint8_t *codes(unsigned j) const
    {
        return base + j % STAGES * (k_step + v_step);
    }
    __device__ uint8_t *head(unsigned j) const
    {
        return base + STAGES * (k_step + v_step) +
               j / STEPS % TILES * (k_head + v_head);
    }
    /* Starts the copy of the warp's step j, which is step j % STEPS of a tile;
     * k, v: that tile. */
    __device__ void fetch(unsigned j, const uint8_t *k, const uint8_t *v) const
    {
        if (j % STEPS == 0) {
            kv_fetch<TOGETHER>(head(j), k, k_head);
            kv_fetch<TOGETHER>(head(j) + k_head, v, v_head);
        }
        kv_fetch<TOGETHER, K::MIN>(codes(j), k + k_head + j % STEPS * k_step,
                                   k_step);
        kv_fetch<TOGETHER, V::MIN>(codes(j) + k_step,
                                   v + v_head + j % STEPS * v_step, v_step);
    }
};

/* How many tokens of the run a row's query sees. */
KV_DEVICE unsigned kv_seen(const kv_rows &rows, const kv_gpu_run &run,
                           unsigned row)
{
    const unsigned query = min(row / rows.group, rows.nq - 1);
    const unsigned seen = rows.n - rows.nq + 1 + query;

    return seen > run.first ? min(seen - run.first, run.n) : 0;
}

/* Queries of later positions see more: scores of tokens past a query's own are
 * no scores.  token: the run's index of the step's first; limit: [8 NT] in
 * shared memory, how many of the run each row sees. */
template <int M, int NT>
KV_DEVICE void kv_mask(float s[M][NT][4], unsigned token, const unsigned *limit)
{
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const unsigned end = limit[8 * i + kv_lane() % 4 * 2 + j];

#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    if (token + 16 * m + kv_lane() / 4 + 8 * k >= end)
                        s[m][i][j + 2 * k] = KV_NONE;
        }
}

/* This warp's share of a span; or, where the warps of a block walk together,
 * each with rows of its own, all of it. */
template <class K, class V, int STAGES, bool TOGETHER, int NT>
KV_DEVICE void
kv_walk(const typename K::params &kp, const typename V::params &vp,
        const uint8_t *k_table, const uint8_t *v_table, const kv_span &span,
        const kv_rows &rows, const unsigned *limit,
        const typename K::template query<NT> &query, uint8_t *ring_base,
        kv_softmax<NT> &softmax, typename V::template sums<NT> &sums)
{
    static_assert(K::T == V::T && K::TILE == V::TILE,
                  "keys and values step together");
    constexpr int M = K::T / 16;
    using ring_type = kv_ring<K, V, STAGES, TOGETHER>;
    constexpr int STEPS = ring_type::STEPS;
    const ring_type ring = {
        (unsigned)K::step_bytes(kp), (unsigned)V::step_bytes(vp),
        (unsigned)K::head_bytes(kp), (unsigned)V::head_bytes(vp), ring_base};
    const size_t k_tile = ring.k_head + STEPS * ring.k_step;
    const size_t v_tile = ring.v_head + STEPS * ring.v_step;
    constexpr unsigned share = KV_GPU_TILE / K::TILE;
    constexpr unsigned apart = TOGETHER ? 1 : KV_WARPS;
    const unsigned warp = TOGETHER ? 0 : kv_warp();
    const unsigned n_tiles = span.n_tiles * share;
    const unsigned first_tile = span.first_tile * share;
    const unsigned mine = n_tiles > warp ? (n_tiles - warp - 1) / apart + 1 : 0;
    const unsigned n_steps = mine * STEPS;

#define KV_FETCH(j)                                                          \
    do {                                                                     \
        if ((j) < n_steps) {                                                 \
            const size_t tile =                                              \
                first_tile + warp + (size_t)((j) / STEPS) * apart;           \
                                                                             \
            ring.fetch((j), span.k + tile * k_tile, span.v + tile * v_tile); \
        }                                                                    \
        kv_copy_commit();                                                    \
    } while (0)

    for (unsigned j = 0; j + 1 < STAGES; j++)
        KV_FETCH(j);
    for (unsigned j = 0; j < n_steps; j++) {
        const unsigned token =
            (first_tile + warp + j / STEPS * apart) * K::TILE +
            j % STEPS * K::T;
        float s[M][NT][4], factor[NT][2];

        kv_sync<TOGETHER>(); /* all have read the stage that is overwritten */
        KV_FETCH(j + STAGES - 1);
        kv_copy_wait<STAGES - 1>();
        kv_sync<TOGETHER>();
        if (token >= span.seen)
            continue;

        uint8_t *const codes = ring.codes(j);
        const uint8_t *head = ring.head(j);

        K::template scores<NT>(kp, k_table, head, j % STEPS, codes, query, s);
        if (token + K::T > span.common)
            kv_mask<M, NT>(s, token, limit);
        kv_softmax_step<M, NT>(softmax, s, factor);
        V::template gather<NT>(vp, v_table, head + ring.k_head, j % STEPS,
                               codes + ring.k_step, rows, span.first + token, s,
                               factor, sums);
    }
    kv_copy_wait<0>();
#undef KV_FETCH
}

/* ---- merging ------------------------------------------------------------ */

/* Where a part of (split, KV head, group of rows) lies: | max | sum | o |.
 * d: head_dim, here and below a constant where the caller has one. */
KV_DEVICE float *kv_part(const kv_decode &p, unsigned split, unsigned d,
                         unsigned rows)
{
    const size_t floats = (size_t)rows * (d + 2);
    const size_t groups = gridDim.z, heads = gridDim.y;

    return p.parts +
           ((split * heads + blockIdx.y) * groups + blockIdx.z) * floats;
}

/* The warps' parts, in shared memory, into the block's; weights are relative to
 * the largest max. */
template <int D, int NT>
KV_DEVICE void kv_merge_warps(const float *warps, float *part)
{
    constexpr unsigned rows = 8 * NT, floats = rows * (D + 2);

    for (unsigned i = threadIdx.x; i < rows * D; i += blockDim.x) {
        const float *max = warps + i / D, *sum = max + rows;
        const float *o = warps + 2 * rows + i;
        float m = KV_NONE, l = 0, x = 0;

        for (unsigned k = 0; k < KV_WARPS; k++)
            m = fmaxf(m, max[k * floats]);
        for (unsigned k = 0; k < KV_WARPS; k++) {
            const float w =
                max[k * floats] == KV_NONE ? 0 : kv_exp2(max[k * floats] - m);

            l += w * sum[k * floats];
            x += w * o[k * floats];
        }
        part[2 * rows + i] = x;
        if (i % D == 0) {
            part[i / D] = m;
            part[rows + i / D] = l;
        }
    }
}

/* Rows x [..][d] in shared memory times the KV head's matrix, which element
 * (row, channel) i of the block this thread is asked for; NULL: x itself. */
KV_DEVICE float kv_rotated(const float *matrix, const float *x, unsigned i,
                           unsigned d)
{
    if (!matrix)
        return x[i];

    const float *m = matrix + (size_t)blockIdx.y * d * d + i % d;
    const float *row = x + i / d * d;
    float sum = 0;

#pragma unroll 8
    for (unsigned j = 0; j < d; j++)
        sum += row[j] * m[(size_t)j * d];
    return sum;
}

/* The splits' parts into the result: those of codes leave their space. */
KV_DEVICE void kv_merge_splits(const kv_decode &p,
                               const kv_gpu_sequence &sequence, unsigned d,
                               unsigned rows)
{
    const size_t apart =
        (size_t)gridDim.y * gridDim.z * rows * (d + 2); /* split to split */
    const float *parts = kv_part(p, sequence.first_split, d, rows);
    float *const coded = reinterpret_cast<float *>(kv_shared());
    float *const plain = coded + rows * d;

    for (unsigned i = threadIdx.x; i < rows * d; i += blockDim.x) {
        const float *max = parts + i / d, *sum = max + rows;
        const float *o = parts + 2 * rows + i;
        const float mean = p.mean ? p.mean[blockIdx.y * (size_t)d + i % d] : 0;
        float m = KV_NONE, l = 0, from_codes = 0, beside = 0;

        for (unsigned k = 0; k < sequence.n_splits; k++)
            m = fmaxf(m, kv_load_written(max + k * apart));
        for (unsigned k = 0; k < sequence.n_splits; k++) {
            const float its = kv_load_written(max + k * apart);
            const float w = its == KV_NONE ? 0 : kv_exp2(its - m);
            const float x = w * kv_load_written(o + k * apart);
            const float weight = w * kv_load_written(sum + k * apart);

            l += weight;
            if (k < sequence.n_coded) {
                from_codes += x;
                beside += weight * mean;
            } else {
                beside += x;
            }
        }
        coded[i] = from_codes / l;
        plain[i] = beside / l;
    }
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < rows * d; i += blockDim.x) {
        const size_t row = blockIdx.z * rows + i / d;

        if (row >= (size_t)p.group * p.nq)
            return;

        const size_t query = sequence.index * (size_t)p.nq + row / p.group;
        const size_t head = blockIdx.y * (size_t)p.group + row % p.group;

        p.out[(query * p.group * gridDim.y + head) * d + i % d] =
            kv_rotated(p.leave, coded, i, d) + plain[i];
    }
}

/* ---- the kernel --------------------------------------------------------- */

/* Rows [first, first + n) of the queries, scaled and turned, 0 past the last,
 * `apart` floats from one to the next; raw: room for [n][d]. */
KV_DEVICE void kv_load_queries(const kv_decode &p, const float *enter,
                               unsigned sequence, unsigned first, unsigned n,
                               unsigned d, unsigned apart, float *raw, float *q)
{
    for (unsigned i = threadIdx.x; i < n * d; i += blockDim.x) {
        const size_t row = first + i / d;
        const size_t query = sequence * (size_t)p.nq + row / p.group;
        const size_t head = blockIdx.y * (size_t)p.group + row % p.group;

        raw[i] = row < (size_t)p.group * p.nq
                     ? p.q[(query * p.group * gridDim.y + head) * d + i % d] *
                           p.scale
                     : 0;
    }
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < n * d; i += blockDim.x)
        q[i / d * apart + i % d] = kv_rotated(enter, raw, i, d);
}

/* A block's span with these two policies, into its part. */
template <class K, class V, int STAGES, int D, int NT>
KV_DEVICE void kv_attend_span(const kv_decode &p, const typename K::params &kp,
                              const typename V::params &vp, const float *enter,
                              const kv_gpu_work &work)
{
    const kv_gpu_sequence &sequence = p.sequences[work.sequence];
    const kv_gpu_run &run = sequence.run[work.run];
    const kv_rows rows = {blockIdx.z * 8 * NT,
                          p.group,
                          p.nq,
                          sequence.n,
                          run.k + blockIdx.y * run.k_head,
                          run.v + blockIdx.y * run.v_head};
    const kv_span span = {run.first,    rows.k,
                          rows.v,       work.first_tile,
                          work.n_tiles, kv_seen(rows, run, 0),
                          run.n};
    uint8_t *const shared = kv_shared();
    float *const queries = reinterpret_cast<float *>(shared);
    unsigned *const limit = reinterpret_cast<unsigned *>(queries + 8 * NT * D);
    uint8_t *const k_table = reinterpret_cast<uint8_t *>(limit + 8 * NT);
    uint8_t *const v_table = V::TABLE ? k_table + K::TABLE : k_table;
    uint8_t *const rings = k_table + K::TABLE + V::TABLE;
    typename K::template query<NT> query;
    typename V::template sums<NT> sums;
    kv_softmax<NT> softmax;

    kv_load_queries(p, enter, sequence.index, rows.first, 8 * NT, D, D,
                    reinterpret_cast<float *>(rings), queries);
    K::load(kp, blockIdx.y, k_table);
    V::load(vp, blockIdx.y, v_table);
    if (threadIdx.x < 8 * NT)
        limit[threadIdx.x] = kv_seen(rows, run, rows.first + threadIdx.x);
    kv_sync_block();
    K::template prepare<NT>(kp, k_table, queries, rows, query);
    kv_softmax_clear<NT>(softmax);
    V::template clear<NT>(sums);
    kv_walk<K, V, STAGES, false, NT>(
        kp, vp, k_table, v_table, span, rows, limit, query,
        rings + kv_warp() * kv_ring<K, V, STAGES>::bytes(kp, vp), softmax,
        sums);

    /* All are done with the rings: the warps' parts take their place. */
    constexpr unsigned n_rows = 8 * NT, floats = n_rows * (D + 2);
    float *const warps = reinterpret_cast<float *>(rings);
    float *const mine = warps + kv_warp() * floats;

    kv_sync_block();
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float sum = kv_column_sum(softmax.sum[i][j]);

            if (kv_lane() < 4) {
                mine[i * 8 + kv_lane() * 2 + j] = softmax.max[i][j];
                mine[n_rows + i * 8 + kv_lane() * 2 + j] = sum;
            }
        }
    V::template finish<NT>(vp, sums, mine + 2 * n_rows);
    kv_sync_block();
    kv_merge_warps<D, NT>(warps, kv_part(p, work.split, D, 8 * NT));
}

/* Whether this block is the last of its (sequence, KV head, rows). */
KV_DEVICE bool kv_last_of(const kv_decode &p, const kv_gpu_sequence &sequence)
{
    unsigned *const counter =
        p.counters +
        ((size_t)sequence.index * gridDim.y + blockIdx.y) * gridDim.z +
        blockIdx.z;
    unsigned *const order = reinterpret_cast<unsigned *>(kv_shared());

    kv_sync_block();
    if (threadIdx.x == 0) {
        *order = kv_count_up(counter);
        if (*order == sequence.n_splits - 1)
            *counter = 0; /* for the next launch */
    }
    kv_sync_block();

    const bool last = *order == sequence.n_splits - 1;

    kv_sync_block(); /* all have read the memory that merging overwrites */
    return last;
}

template <class K, class V, int D, int NT> constexpr int kv_blocks(void)
{
    constexpr int both = K::BLOCKS < V::BLOCKS ? K::BLOCKS : V::BLOCKS;

    return NT == 1 && D <= 128 && both <= KV_BIG_BLOCKS ? both : 1;
}

/* FK, FV: policies of the runs that are not codes, sinks and tail.  Grid:
 * (pieces of work, KV heads, groups of 8 NT rows); rows are the query heads of
 * a KV head for query token 0, then 1, .. */
template <class K, class V, int STAGES, class FK, class FV, int D, int NT>
__global__ void __launch_bounds__(32 * KV_WARPS, kv_blocks<K, V, D, NT>())
    kv_decode_kernel(const kv_decode p, const typename K::params kp,
                     const typename V::params vp, const typename FK::params fkp,
                     const typename FV::params fvp)
{
    const kv_gpu_work work = p.work[blockIdx.x];

    if (work.run == KV_RUN_CODES)
        kv_attend_span<K, V, STAGES, D, NT>(p, kp, vp, p.enter, work);
    else
        kv_attend_span<FK, FV, 1, D, NT>(p, fkp, fvp, NULL, work);
    if (kv_last_of(p, p.sequences[work.sequence]))
        kv_merge_splits(p, p.sequences[work.sequence], D, 8 * NT);
}

/* Shared memory of the kernel: queries, tables and rings, or the warps' parts
 * where these are more. */
template <class K, class V, int STAGES, int D, int NT>
static size_t kv_span_shared(const typename K::params &kp,
                             const typename V::params &vp)
{
    const size_t rings = kv_ring<K, V, STAGES>::bytes(kp, vp);
    const size_t parts = 8 * NT * (D + 2) * sizeof(float);

    return 8 * NT * (D + 1) * sizeof(float) + K::TABLE + V::TABLE +
           KV_WARPS * (rings > parts ? rings : parts);
}

#endif
