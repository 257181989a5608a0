/* Prefill attention: many queries of a sequence, causal, with the policies of
 * decode.cuh.  A block has 8 NT rows for each of its warps; all warps walk
 * together, with one ring, over the tokens that the block's last row sees.
 * Codes come first, and their results leave the codes' space; then follow sinks
 * and tail.
 *
 *   | queries | of each warp: max, sum, limit [8 NT] | results | tables | ring
 * |
 *
 * A warp's results are | max | sum | o |, like parts in decode.cuh. */
#ifndef KV_CUDA_PREFILL_CUH
#define KV_CUDA_PREFILL_CUH

#include "kernels/cuda/decode_launch.cuh"

/* The positions of the pieces of a block's shared memory. */
template <int D, int NT> struct kv_prefill_workspace {
    static constexpr unsigned MINE = 8 * NT, ROWS = KV_WARPS * MINE;
    static constexpr size_t QUERIES = ROWS * D * sizeof(float);
    static constexpr size_t STATE = ROWS * 3 * sizeof(float);
    static constexpr size_t RESULTS = ROWS * (D + 2) * sizeof(float);

    float *queries, *state, *results;
    uint8_t *rest; /* tables and ring */

    __device__ explicit kv_prefill_workspace(uint8_t *shared)
        : queries(reinterpret_cast<float *>(shared)),
          state(reinterpret_cast<float *>(shared + QUERIES)),
          results(reinterpret_cast<float *>(shared + QUERIES + STATE)),
          rest(shared + QUERIES + STATE + RESULTS)
    {
    }
    __device__ float *my_queries() const
    {
        return queries + kv_warp() * MINE * D;
    }
    __device__ float *my_state() const
    {
        return state + kv_warp() * 3 * MINE;
    }
    /* How many of a run's tokens each row sees, [MINE]. */
    __device__ unsigned *my_limits() const
    {
        return reinterpret_cast<unsigned *>(my_state() + 2 * MINE);
    }
    __device__ float *my_results() const
    {
        return results + kv_warp() * MINE * (D + 2);
    }
};

/* For one warp's rows: merges the results of a run (max and sum in state, o)
 * into the results so far, or starts them. */
template <int D, int NT>
KV_DEVICE void kv_join(const kv_prefill_workspace<D, NT> &workspace, bool first)
{
    constexpr unsigned rows = 8 * NT;
    const float *max = workspace.my_state(), *sum = max + rows;
    const float *o = workspace.my_queries();
    float *to = workspace.my_results();

    for (unsigned row = 0; row < rows; row++) {
        const float old = first ? KV_NONE : to[row];
        const float top = fmaxf(old, max[row]);
        const float keep = old == KV_NONE ? 0 : kv_exp2(old - top);
        const float take = max[row] == KV_NONE ? 0 : kv_exp2(max[row] - top);

        kv_sync_warp(); /* all have read the old maximum */
        for (unsigned c = kv_lane(); c < D; c += 32) {
            float *x = to + 2 * rows + row * D + c;

            *x = fmaf(take, o[row * D + c], first ? 0 : keep * *x);
        }
        if (kv_lane() == 0) {
            to[rows + row] =
                fmaf(take, sum[row], first ? 0 : keep * to[rows + row]);
            to[row] = top;
        }
    }
}

/* Stores a warp's maxima and sums of a run in its state. */
template <int D, int NT>
KV_DEVICE void kv_prefill_keep(const kv_prefill_workspace<D, NT> &workspace,
                               const kv_softmax<NT> &softmax)
{
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float sum = kv_column_sum(softmax.sum[i][j]);
            float *const state =
                workspace.my_state() + i * 8 + kv_lane() * 2 + j;

            if (kv_lane() < 4) {
                state[0] = softmax.max[i][j];
                state[8 * NT] = sum;
            }
        }
}

/* Transforms the block's results out of the codes' space; the queries' memory
 * is the workspace. */
template <int D, int NT>
KV_DEVICE void kv_prefill_leave(const kv_prefill_workspace<D, NT> &workspace,
                                const kv_gpu_space &leave)
{
    constexpr unsigned n = kv_prefill_workspace<D, NT>::ROWS * D;
    constexpr unsigned mine = 8 * NT;
    const auto result = [&](unsigned i) -> float & {
        return workspace.results[i / (mine * D) * mine * (D + 2) + 2 * mine +
                                 i % (mine * D)];
    };

    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        workspace.queries[i] = result(i);
    kv_sync_block();
    kv_change_space(
        leave, workspace.queries, n / D, D,
        [&](unsigned row, unsigned c, float x) { result(row * D + c) = x; });
}

/* Attends to one run with these two policies. */
template <class K, class V, int STAGES, int D, int NT>
KV_DEVICE void
kv_prefill_run(const kv_decode &p, const kv_gpu_sequence &sequence,
               unsigned which, const typename K::params &kp,
               const typename V::params &vp, const kv_gpu_space &enter,
               const kv_gpu_space &leave, bool first,
               const kv_prefill_workspace<D, NT> &workspace)
{
    constexpr unsigned n_rows = kv_prefill_workspace<D, NT>::ROWS,
                       mine = 8 * NT;
    const kv_gpu_run &run = sequence.run[which];
    const unsigned block_row = blockIdx.x * n_rows, total = p.group * p.nq;
    const kv_rows rows = {block_row + kv_warp() * mine,
                          p.group,
                          p.nq,
                          sequence.n,
                          run.k + blockIdx.y * run.k_head,
                          run.v + blockIdx.y * run.v_head};
    const unsigned last = min(block_row + n_rows, total) - 1;
    const kv_span span = {
        run.first,
        rows.k,
        rows.v,
        0,
        (kv_seen(rows, run, last) + KV_GPU_TILE - 1) / KV_GPU_TILE,
        kv_seen(rows, run, rows.first),
        rows.first < total ? kv_seen(rows, run, rows.first + mine - 1) : 0};
    uint8_t *const k_table = workspace.rest, *const v_table =
                                                 k_table + K::TABLE;
    typename K::template query<NT> query;
    typename V::template sums<NT> sums;
    kv_softmax<NT> softmax;

    const kv_course<K, V, STAGES, true> course(kp, vp, span, v_table + V::TABLE,
                                               which);

    kv_sync_block(); /* all threads are done with the previous run */
    course.begin();
    /* Transforming the queries uses the results' memory, which is still
     * unused. */
    kv_load_queries(p, enter, sequence.index, block_row, n_rows, D, D,
                    kv_is_space(enter) ? workspace.results : workspace.queries,
                    workspace.queries);
    K::load(kp, blockIdx.y, k_table);
    V::load(vp, blockIdx.y, v_table);
    if (kv_lane() < mine)
        workspace.my_limits()[kv_lane()] =
            kv_seen(rows, run, rows.first + kv_lane());
    kv_sync_block();
    K::template prepare<NT>(kp, k_table, workspace.my_queries(), rows, query);
    kv_softmax_clear<NT>(softmax);
    V::template clear<NT>(sums);
    kv_walk<K, V, STAGES, true, NT>(course, kp, vp, k_table, v_table, span,
                                    rows, workspace.my_limits(), query, softmax,
                                    sums);
    kv_prefill_keep<D, NT>(workspace, softmax);
    V::template finish<NT>(vp, sums, workspace.my_queries());
    kv_sync_warp();
    kv_join<D, NT>(workspace, first);
    kv_sync_block();
    if (kv_is_space(leave))
        kv_prefill_leave<D, NT>(workspace, leave);
}

/* Grid: (groups of rows, KV heads, sequences). */
template <class K, class V, int STAGES, class FK, class FV, int D, int NT>
__global__ void __launch_bounds__(32 * KV_WARPS, 1)
    kv_prefill_kernel(const kv_decode p, const typename K::params kp,
                      const typename V::params vp,
                      const typename FK::params fkp,
                      const typename FV::params fvp)
{
    constexpr unsigned mine = 8 * NT;
    const kv_gpu_sequence &sequence = p.sequences[blockIdx.z];
    const kv_prefill_workspace<D, NT> workspace(kv_shared());
    bool first = true;

    if (sequence.run[KV_RUN_CODES].n) {
        kv_prefill_run<K, V, STAGES, D, NT>(p, sequence, KV_RUN_CODES, kp, vp,
                                            p.enter, p.leave, first, workspace);
        first = false;
    }
    for (unsigned r = KV_RUN_SINKS; r <= KV_RUN_REST;
         r += KV_RUN_REST - KV_RUN_SINKS)
        if (sequence.run[r].n) {
            kv_prefill_run<FK, FV, STAGES, D, NT>(p, sequence, r, fkp, fvp, {},
                                                  {}, first, workspace);
            first = false;
        }
    kv_sync_block();
    for (unsigned i = kv_lane(); i < mine * D; i += 32) {
        const float *from = workspace.my_results();
        const size_t row =
            blockIdx.x * workspace.ROWS + kv_warp() * mine + i / D;

        if (row >= (size_t)p.group * p.nq)
            return;

        const size_t query = sequence.index * (size_t)p.nq + row / p.group;
        const size_t head = blockIdx.y * (size_t)p.group + row % p.group;

        p.out[(query * p.group * gridDim.y + head) * D + i % D] =
            from[2 * mine + i] / from[mine + i / D];
    }
}

template <class K, class V, int STAGES, int D, int NT>
static int kv_prefill_launch(struct kv_gpu_launch *l,
                             const typename K::params &k,
                             const typename V::params &v, struct kv_err *e)
{
    using FK = kv_float_keys<D>;
    using FV = kv_float_values<D>;
    using workspace = kv_prefill_workspace<D, NT>;
    const size_t coded =
        K::TABLE + V::TABLE + kv_ring<K, V, STAGES, true>::bytes(k, v);
    const size_t plain = kv_ring<FK, FV, STAGES, true>::bytes({}, {});
    const unsigned rows = l->p.group * l->p.nq;
    const dim3 grid((rows + workspace::ROWS - 1) / workspace::ROWS,
                    (unsigned)l->n_kv_heads, (unsigned)l->n_sequences);

    l->shared = workspace::QUERIES + workspace::STATE + workspace::RESULTS +
                (coded > plain ? coded : plain);

    const char *wrong = kv_launch_blocks(
        l, kv_prefill_kernel<K, V, STAGES, FK, FV, D, NT>, KV_WARPS, K::T, grid,
        l->p, k, v, typename FK::params{}, typename FV::params{});

    return wrong ? kv_fail(e, "prefill attention: %s", wrong) : 0;
}

#endif
