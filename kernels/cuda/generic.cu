#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/generic_rotated.cuh"
#include "kernels/hack/cuda_generic.cuh"

// A block of 8 warps takes 8 rows (query heads of a KV head, for query token 0,
// then 1, ..) over tiles of 64 tokens, a tile of keys and one of values in
// shared memory: it works on one while the other is copied.
//   scores   thread: a token, channels of one quarter     lanes: tokens
//   softmax  warp: a row
//   gather   thread: a channel, tokens of one split       lanes: channels
// All sums are in f32.
enum {
    ROWS = KV_WARPS,
    THREADS = 32 * KV_WARPS,
    TOKENS = 64,
    QUARTERS = THREADS / TOKENS,
    SCORES = QUARTERS * ROWS * TOKENS,
    WEIGHTS = TOKENS * ROWS,
    FOURS = TOKENS / 4
};

static_assert(SCORES >= THREADS * ROWS,
              "splits of sums take the scores' place");
static_assert(SCORES >= ROWS * KV_GPU_MAX_DIM, "and so do raw queries");

// | queries [8][head_dim up to 4] | scores | weights | factors [8] | limits [8]
// | a tile of keys | of values |, floats.
struct kv_generic_workspace {
    float *queries, *scores, *weights, *factors;
    unsigned *limits;
    uint8_t *keys, *values;

    static __host__ __device__ unsigned apart(unsigned d)
    {
        return (d + 3) / 4 * 4;
    }
    static __host__ __device__ size_t floats(unsigned d)
    {
        return ROWS * apart(d) + SCORES + WEIGHTS + 2 * ROWS;
    }
    __device__ kv_generic_workspace(uint8_t *shared, unsigned d, size_t k_bytes)
        : queries(reinterpret_cast<float *>(shared)),
          scores(queries + ROWS * apart(d)), weights(scores + SCORES),
          factors(weights + WEIGHTS),
          limits(reinterpret_cast<unsigned *>(factors + ROWS)),
          keys(shared + floats(d) * sizeof(float)), values(keys + k_bytes)
    {
    }
};

template <class R>
KV_DEVICE void kv_generic_scores(const R &reader,
                                 const kv_generic_workspace &workspace,
                                 unsigned d)
{
    const unsigned t = threadIdx.x % TOKENS, quarter = threadIdx.x / TOKENS;
    const unsigned apart = workspace.apart(d);
    float s[ROWS] = {0};

    for (unsigned c = 4 * quarter; c < apart; c += 4 * QUARTERS) {
        float x[4];

        reader.template four<false>(workspace.keys, c, t, x);
#pragma unroll
        for (unsigned row = 0; row < ROWS; row++) {
            const uint4 q = kv_load16(workspace.queries + row * apart + c);

            s[row] = fmaf(kv_from_bits(q.x), x[0], s[row]);
            s[row] = fmaf(kv_from_bits(q.y), x[1], s[row]);
            s[row] = fmaf(kv_from_bits(q.z), x[2], s[row]);
            s[row] = fmaf(kv_from_bits(q.w), x[3], s[row]);
        }
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; row++)
        workspace.scores[(quarter * ROWS + row) * TOKENS + t] = s[row];
}

// This warp's row: scores become weights.  token: the run's index of the
// tile's first.
KV_DEVICE void kv_generic_softmax(const kv_generic_workspace &workspace,
                                  unsigned token, float &max, float &sum)
{
    const unsigned row = kv_warp();
    float s[2];

#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const unsigned t = 32 * i + kv_lane();

        s[i] = 0;
#pragma unroll
        for (unsigned quarter = 0; quarter < QUARTERS; quarter++)
            s[i] += workspace.scores[(quarter * ROWS + row) * TOKENS + t];
        if (token + t >= workspace.limits[row])
            s[i] = KV_NONE;
    }

    const float factor = kv_softmax_row(s, max, sum);

#pragma unroll
    for (unsigned i = 0; i < 2; i++)
        workspace.weights[(32 * i + kv_lane()) * ROWS + row] = s[i];
    if (kv_lane() == 0)
        workspace.factors[row] = factor;
}

// Splits of a tile's tokens: as many as the threads allow.
KV_DEVICE unsigned kv_generic_splits(unsigned d)
{
    return min((unsigned)THREADS / d, (unsigned)FOURS);
}

template <class R>
KV_DEVICE void kv_generic_gather(const R &reader,
                                 const kv_generic_workspace &workspace,
                                 unsigned d, float *sums)
{
    const unsigned c = threadIdx.x % d, splits = kv_generic_splits(d);

#pragma unroll
    for (unsigned row = 0; row < ROWS; row++)
        sums[row] *= workspace.factors[row];
    for (unsigned four = threadIdx.x / d; four < FOURS; four += splits) {
        float x[4];

        reader.template four<true>(workspace.values, 4 * four, c, x);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
#pragma unroll
            for (unsigned row = 0; row < ROWS; row += 4) {
                const uint4 w =
                    kv_load16(workspace.weights + (4 * four + j) * ROWS + row);

                sums[row] = fmaf(kv_from_bits(w.x), x[j], sums[row]);
                sums[row + 1] = fmaf(kv_from_bits(w.y), x[j], sums[row + 1]);
                sums[row + 2] = fmaf(kv_from_bits(w.z), x[j], sums[row + 2]);
                sums[row + 3] = fmaf(kv_from_bits(w.w), x[j], sums[row + 3]);
            }
    }
}

// Scores of the tile of keys; CODED: they are codes, else halves.
template <bool CODED>
KV_DEVICE void kv_generic_qk(const kv_gpu_generic &k,
                             const kv_generic_workspace &workspace)
{
    if (CODED && k.kind == KV_GENERIC_ROTATED)
        kv_rotated_channels(k, workspace.keys);
    if (CODED)
        kv_with_reader<false>(k, [&](const auto &reader) {
            kv_generic_scores(reader, workspace, k.head_dim);
        });
    else
        kv_generic_scores(kv_read_floats<KV_GENERIC_HALVES>{k}, workspace,
                          k.head_dim);
}

// sums += weights times the tile of values.
template <bool CODED>
KV_DEVICE void kv_generic_pv(const kv_gpu_generic &v,
                             const kv_generic_workspace &workspace, float *sums)
{
    const unsigned d = v.head_dim;

    if (threadIdx.x >= kv_generic_splits(d) * d)
        return;
    if (CODED)
        kv_with_reader<true>(v, [&](const auto &reader) {
            kv_generic_gather(reader, workspace, d, sums);
        });
    else
        kv_generic_gather(kv_read_floats<KV_GENERIC_HALVES>{v}, workspace, d,
                          sums);
}

// Stores the sum over splits in the block's part; max, sum: of this warp's row.
KV_DEVICE void kv_generic_store(const kv_generic_workspace &workspace,
                                unsigned d, const float *sums, float max,
                                float sum, float *part)
{
    const unsigned splits = kv_generic_splits(d);

    if (threadIdx.x < splits * d)
#pragma unroll
        for (unsigned row = 0; row < ROWS; row++)
            workspace
                .scores[(threadIdx.x / d * ROWS + row) * d + threadIdx.x % d] =
                sums[row];
    if (kv_lane() == 0) {
        part[kv_warp()] = max;
        part[ROWS + kv_warp()] = sum;
    }
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < ROWS * d; i += THREADS) {
        float x = 0;

        for (unsigned split = 0; split < splits; split++)
            x += workspace.scores[split * ROWS * d + i];
        part[2 * ROWS + i] = x;
    }
}

// Attends to a block's piece of work and stores the block's part; CODED: codes,
// else halves on both sides.
template <bool CODED>
KV_DEVICE void kv_generic_span(const kv_decode &p, const kv_gpu_generic &k,
                               const kv_gpu_generic &v, const kv_gpu_work &work)
{
    const kv_gpu_run &run = work.run;
    const kv_rows rows = {blockIdx.z * ROWS,
                          p.group,
                          p.nq,
                          work.n,
                          kv_generic_head(k, run.k, run.k_head),
                          run.v + blockIdx.y * run.v_head};
    constexpr unsigned each = KV_GPU_TILE / TOKENS;
    const unsigned first = work.first_tile * each;
    const unsigned end = min((work.first_tile + work.n_tiles) * each,
                             (run.n + TOKENS - 1) / TOKENS);
    const unsigned d = k.head_dim;
    const kv_generic_workspace workspace(kv_shared(), d, kv_generic_bytes(k));
    float sums[ROWS] = {0}, max = KV_NONE, sum = 0;

    for (unsigned i = threadIdx.x; i < ROWS * workspace.apart(d); i += THREADS)
        if (i % workspace.apart(d) >= d) // behind a row
            workspace.queries[i] = 0;
    if (threadIdx.x < ROWS)
        workspace.limits[threadIdx.x] =
            kv_seen(rows, run, rows.first + threadIdx.x);
    kv_load_queries(p, CODED ? p.enter : kv_gpu_space{}, work.sequence,
                    rows.first, ROWS, d, workspace.apart(d), workspace.scores,
                    workspace.queries);
    kv_generic_fetch(k, workspace.keys, rows.k, first);
    kv_copy_commit();
    for (unsigned i = first; i < end; i++) {
        kv_generic_fetch(v, workspace.values, rows.v, i);
        kv_copy_commit();
        kv_copy_wait<1>();
        kv_sync_block(); // keys (at first, also queries) have arrived
        kv_generic_qk<CODED>(k, workspace);
        kv_sync_block();
        if (i + 1 < end)
            kv_generic_fetch(k, workspace.keys, rows.k, i + 1);
        kv_copy_commit();
        kv_generic_softmax(workspace, i * TOKENS, max, sum);
        kv_copy_wait<1>();
        kv_sync_block(); // values and weights have arrived
        kv_generic_pv<CODED>(v, workspace, sums);
        kv_sync_block(); // all are done with the values
    }
    kv_generic_store(workspace, d, sums, max, sum,
                     kv_part(p, work.split, d, ROWS));
}

// Grid: (pieces of work, KV heads, groups of 8 rows).
__global__ void __launch_bounds__(THREADS, 2)
    kv_generic_kernel(const kv_decode p, const kv_gpu_generic k,
                      const kv_gpu_generic v, const kv_gpu_generic halves)
{
    const kv_gpu_work &work = p.work[blockIdx.x];

    if (work.coded)
        kv_generic_span<true>(p, k, v, work);
    else
        kv_generic_span<false>(p, halves, halves, work);
    if (kv_last_of(p, work))
        kv_merge_splits<1>(p, work, k.head_dim, ROWS);
}

// kv_generic_kernel() for HACK's codes.
__global__ void __launch_bounds__(THREADS, 2)
    kv_generic_hack_kernel(const kv_decode p, const kv_gpu_hack_side k,
                           const kv_gpu_hack_side v,
                           const kv_gpu_generic halves)
{
    const kv_gpu_work &work = p.work[blockIdx.x];

    if (work.coded)
        kv_generic_hack_span(p, k, v, work);
    else
        kv_generic_span<false>(p, halves, halves, work);
    if (kv_last_of(p, work))
        kv_merge_splits<1>(p, work, k.head_dim, ROWS);
}

static size_t shared_bytes(const kv_gpu_generic &k, const kv_gpu_generic &v)
{
    return kv_generic_workspace::floats(k.head_dim) * sizeof(float) +
           kv_generic_bytes(k) + kv_generic_bytes(v);
}

template <class SIDE>
static int launch_one(struct kv_gpu_launch *l,
                      void (*kernel)(kv_decode, SIDE, SIDE, kv_gpu_generic),
                      const SIDE &k, const SIDE &v, size_t coded,
                      struct kv_err *e)
{
    const kv_gpu_generic halves = kv_gpu_generic_halves(l->head_dim);
    const size_t plain = shared_bytes(halves, halves);
    const unsigned rows = l->p.group * l->p.nq;
    const dim3 grid((unsigned)l->n_work, (unsigned)l->n_kv_heads,
                    (rows + ROWS - 1) / ROWS);

    l->shared = coded > plain ? coded : plain;

    const char *wrong =
        kv_launch_blocks(l, kernel, KV_WARPS, TOKENS, grid, l->p, k, v, halves);

    return wrong ? kv_fail(e, "generic attention: %s", wrong) : 0;
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const kv_gpu_generic k = kv_gpu_generic_of(l->k);
    const kv_gpu_generic v = kv_gpu_generic_of(l->v);

    if (l->prefill)
        return kv_fail(e,
                       "no CUDA kernel of prefill attention for these codes");
    if (k.kind == KV_GENERIC_HACK) {
        const kv_gpu_hack_side ks = kv_gpu_hack_params_generic(l->k, l->seed);
        const kv_gpu_hack_side vs = kv_gpu_hack_params_generic(l->v, l->seed);

        return launch_one(l, kv_generic_hack_kernel, ks, vs,
                          kv_generic_hack_workspace::bytes(ks, vs), e);
    }
    return launch_one(l, kv_generic_kernel, k, v, shared_bytes(k, v), e);
}

extern "C" const struct kv_gpu_family kv_gpu_generic_tiles = {
    "generic", kv_gpu_generic_open, launch};
