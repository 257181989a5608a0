/* Decode attention: a few queries of a sequence over all of its tokens, each
 * byte of the cache read once for all query heads of a KV head (FlashDecoding).
 *
 * Blocks of 8 warps or more split the tokens of (sequence, KV head); a warp
 * takes tiles of TILE tokens in turn and walks each in steps of T tokens, whose
 * bytes stream through a ring of its own in shared memory.  Warps do not wait
 * for each other until the end, when they merge in order; the last block of a
 * (sequence, KV head) to arrive merges all blocks in order.  So every run gives
 * the same bits.
 *
 * Tokens are rows and queries columns of the matrix products: scores
 * S [T][8] = K Q^T, then O^T [head_dim][8] += V^T P.  A family is two policies,
 * one for keys and one for values.  Members of a policy:
 *
 *   params            the kernel's argument, by value
 *   T, TILE           tokens a step and a tile, which the warps take in turn;
 *                     the same for both.  A tile is 128 tokens, in family
 *                     "levels" 64, of halves and codebooks one step
 *   BLOCKS            blocks that share a multiprocessor at 8 rows: limited
 *                     by registers and tables
 *   WARPS             the maximum number of warps of a block at 8 rows, of
 *                     which BLOCKS blocks have the registers; fewer, at least
 *                     KV_WARPS, where shared memory holds no more
 *   head_bytes(p)     bytes at the start of a tile, shared by its steps
 *   step_bytes(p)     bytes of a step, after the head; both multiples of 16
 *   WRITES            whether scores or gather write over codes
 *   TABLE             bytes in shared memory for the whole block, filled by
 *   load(p, head, table)             all threads, before a barrier; values
 *                     without a table are given the keys'
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
 * head and codes point to the tile's head and the step's codes in shared
 * memory, where a step's keys lie right before its values.  Codes may be
 * overwritten if WRITES is set.  step: its index in the tile.  s, weight:
 * fragments c of gpu.cuh for each 16 tokens, column 2c of N-tile i is row 8 i +
 * 2c of q. */
#ifndef KV_CUDA_DECODE_CUH
#define KV_CUDA_DECODE_CUH

#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/softmax.cuh"

/* The query heads of a warp's rows: row i is query head i % group of the KV
 * head and query token i / group; the last query token is token n - 1. */
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

/* The number of the run's tokens that a row's query sees. */
KV_DEVICE unsigned kv_seen(const kv_rows &rows, const kv_gpu_run &run,
                           unsigned row)
{
    const unsigned query = min(row / rows.group, rows.nq - 1);
    const unsigned seen = rows.n - rows.nq + 1 + query;

    return seen > run.first ? min(seen - run.first, run.n) : 0;
}

/* Masks the scores of tokens after a query's own.  token: the run's index of
 * the step's first token; limit: [8 NT] in shared memory, how many of the run's
 * tokens each row sees. */
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

/* Walks this warp's share of a span, or the whole span if the warps of a block
 * walk together, each with its own rows. */
template <class K, class V, int STAGES, bool TOGETHER, int NT, unsigned W>
KV_DEVICE void
kv_walk(const kv_course<K, V, STAGES, TOGETHER, W> &course,
        const typename K::params &kp, const typename V::params &vp,
        const uint8_t *k_table, const uint8_t *v_table, const kv_span &span,
        const kv_rows &rows, const unsigned *limit,
        const typename K::template query<NT> &query, kv_softmax<NT> &softmax,
        typename V::template sums<NT> &sums)
{
    constexpr int M = K::T / 16, STEPS = course.STEPS;
    const auto &ring = course.ring;

    for (unsigned j = 0; j < course.n_steps; j++) {
        const unsigned token = course.token(j);
        float s[M][NT][4], factor[NT][2];

        if (K::WRITES || V::WRITES)
            kv_fence_copies(); /* order these writes before the next copy's */
        kv_sync<TOGETHER>();   /* all have read the stage that is overwritten */
        course.fetch(j + STAGES - 1);
        if (STAGES == 1)
            kv_sync<TOGETHER>();
        ring.wait(j);
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
    ring.end();
}

/* ---- the kernel --------------------------------------------------------- */

/* Loads rows [first, first + n) of the queries, scaled and transformed, 0 past
 * the last, `apart` floats from one to the next; raw: memory for [n][d], unused
 * if there is no transform. */
KV_DEVICE void kv_load_queries(const kv_decode &p, const kv_gpu_space &enter,
                               unsigned sequence, unsigned first, unsigned n,
                               unsigned d, unsigned apart, float *raw, float *q)
{
    const unsigned asked = kv_rows_asked(p, first, n);
    const bool enters = kv_is_space(enter);

    for (unsigned i = threadIdx.x; i < n * d; i += blockDim.x) {
        const size_t row = first + i / d;
        const size_t query = sequence * (size_t)p.nq + row / p.group;
        const size_t head = blockIdx.y * (size_t)p.group + row % p.group;
        const float x =
            i / d < asked
                ? p.q[(query * p.group * gridDim.y + head) * d + i % d] *
                      p.scale
                : 0;

        if (enters)
            raw[i] = x;
        if (!enters || i / d >= asked)
            q[i / d * apart + i % d] = x;
    }
    if (!enters)
        return;
    kv_sync_block();
    kv_change_space(enter, raw, asked, d,
                    [&](unsigned row, unsigned c, float x) {
                        if (row < asked)
                            q[row * apart + c] = x;
                    });
}

/* Attends to a block's span with these two policies; the result is the block's
 * part.  W: the maximum number of warps. */
template <class K, class V, int STAGES, int D, int NT, unsigned W>
KV_DEVICE void kv_attend_span(const kv_decode &p, const typename K::params &kp,
                              const typename V::params &vp,
                              const kv_gpu_space &enter,
                              const kv_gpu_work &work)
{
    const kv_gpu_run &run = work.run;
    const kv_rows rows = {blockIdx.z * 8 * NT,
                          p.group,
                          p.nq,
                          work.n,
                          run.k + blockIdx.y * run.k_head,
                          run.v + blockIdx.y * run.v_head};
    const kv_span span = {run.first,    rows.k,
                          rows.v,       work.first_tile,
                          work.n_tiles, kv_seen(rows, run, 0),
                          run.n};
    uint8_t *const shared = kv_shared();
    float *const queries = reinterpret_cast<float *>(shared);
    unsigned *const limit = reinterpret_cast<unsigned *>(queries + 8 * NT * D);
    float *const raw = reinterpret_cast<float *>(limit + 8 * NT);
    uint8_t *const k_table = reinterpret_cast<uint8_t *>(
        raw + (kv_is_space(enter) ? 8 * NT * D : 0));
    uint8_t *const v_table = V::TABLE ? k_table + K::TABLE : k_table;
    uint8_t *const rings = k_table + K::TABLE + V::TABLE;
    const kv_course<K, V, STAGES, false, W> course(
        kp, vp, span,
        rings + kv_uniform_warp() * kv_ring<K, V, STAGES>::bytes(kp, vp));
    typename K::template query<NT> query;
    typename V::template sums<NT> sums;
    kv_softmax<NT> softmax;

    course.begin();
    kv_load_queries(p, enter, work.sequence, rows.first, 8 * NT, D, D, raw,
                    queries);
    K::load(kp, blockIdx.y, k_table);
    V::load(vp, blockIdx.y, v_table);
    if (threadIdx.x < 8 * NT)
        limit[threadIdx.x] = kv_seen(rows, run, rows.first + threadIdx.x);
    kv_sync_block();
    K::template prepare<NT>(kp, k_table, queries, rows, query);
    kv_softmax_clear<NT>(softmax);
    V::template clear<NT>(sums);
    kv_walk<K, V, STAGES, false, NT, W>(course, kp, vp, k_table, v_table, span,
                                        rows, limit, query, softmax, sums);

    /* All threads are done with the rings; the warps' parts overwrite them. */
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
    kv_merge_warps<D, NT, W>(warps, kv_part(p, work.split, D, 8 * NT));
}

/* Whether this block is the last of its (sequence, KV head, rows) to finish. */
KV_DEVICE bool kv_last_of(const kv_decode &p, const kv_gpu_work &work)
{
    unsigned *const counter =
        p.counters +
        ((size_t)work.sequence * gridDim.y + blockIdx.y) * gridDim.z +
        blockIdx.z;
    unsigned *const order = reinterpret_cast<unsigned *>(kv_shared());

    kv_sync_block();
    if (threadIdx.x == 0) {
        *order = kv_count_up(counter);
        if (*order == work.n_splits - 1)
            *counter = 0; /* for the next launch */
    }
    kv_sync_block();

    const bool last = *order == work.n_splits - 1;

    kv_sync_block(); /* all have read the memory that merging overwrites */
    return last;
}

template <class K, class V, int D, int NT> constexpr int kv_blocks(void)
{
    constexpr int both = K::BLOCKS < V::BLOCKS ? K::BLOCKS : V::BLOCKS;

    return NT == 1 && D <= 128 && both <= KV_BIG_BLOCKS ? both : 1;
}

template <class K, class V, int D, int NT>
__host__ __device__ constexpr unsigned kv_max_warps(void)
{
    constexpr unsigned both = K::WARPS < V::WARPS ? K::WARPS : V::WARPS;

    return NT == 1 && D <= 128 ? both : (unsigned)KV_WARPS;
}

/* FK, FV: policies of the uncoded runs, sinks and tail.  Grid: (pieces of work,
 * KV heads, groups of 8 NT rows); rows are the query heads of a KV head for
 * query token 0, then 1, .. */
template <class K, class V, int STAGES, class FK, class FV, int D, int NT>
__global__ void __launch_bounds__(32 * kv_max_warps<K, V, D, NT>(),
                                  kv_blocks<K, V, D, NT>())
    kv_decode_kernel(const kv_decode p, const typename K::params kp,
                     const typename V::params vp, const typename FK::params fkp,
                     const typename FV::params fvp)
{
    constexpr unsigned W = kv_max_warps<K, V, D, NT>();
    const kv_gpu_work &work = p.work[blockIdx.x]; /* a copy spills */

    kv_prefetch_space(p.enter, D);
    kv_prefetch_space(p.leave, D);
    if (work.coded)
        kv_attend_span<K, V, STAGES, D, NT, W>(p, kp, vp, p.enter, work);
    else
        kv_attend_span<FK, FV, 1, D, NT, W>(p, fkp, fvp, {}, work);
    if (kv_last_of(p, work))
        kv_merge_splits<4>(p, work, D, 8 * NT);
}

/* Shared memory of the kernel: queries, also untransformed if they enter the
 * codes' space, tables, and the larger of the warps' rings and parts. */
template <class K, class V, int STAGES, int D, int NT>
static size_t kv_span_shared(const typename K::params &kp,
                             const typename V::params &vp,
                             unsigned warps = KV_WARPS, bool enters = false)
{
    const size_t rings = kv_ring<K, V, STAGES>::bytes(kp, vp);
    const size_t parts = 8 * NT * (D + 2) * sizeof(float);

    return 8 * NT * (D * (1 + enters) + 1) * sizeof(float) + K::TABLE +
           V::TABLE + warps * (rings > parts ? rings : parts);
}

#endif
