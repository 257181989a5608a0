/* The generic kernel's part for HACK, which multiplies codes as integers: a
 * tile is one piece of cuda_layout.h, a block has 8 rows. */
#ifndef KV_HACK_CUDA_GENERIC_CUH
#define KV_HACK_CUDA_GENERIC_CUH

#include "kernels/hack/cuda_any.cuh"

/* | queries [8][head_dim] | scores [8][..] | factors [8] | limits [8]: 4 bytes
 *   each | rows of queries | rows of weights | keys | values | */
struct kv_generic_hack_workspace {
    static constexpr unsigned ROWS = 8, TOKENS = KV_GPU_TILE;

    float *queries, *scores, *factors;
    unsigned *limits;
    uint8_t *q_rows, *w_rows, *keys, *values;

    static __host__ __device__ size_t floats(unsigned d)
    {
        return ROWS * ((d + 3) / 4 * 4 + kv_hack_scores_apart(TOKENS) + 2);
    }
    static __host__ __device__ size_t bytes(const kv_gpu_hack_side &k,
                                            const kv_gpu_hack_side &v)
    {
        return floats(k.head_dim) * sizeof(float) +
               kv_hack_rows::bytes(k, ROWS) + kv_hack_rows::bytes(v, ROWS) +
               kv_gpu_hack_piece_bytes(&k) + kv_gpu_hack_piece_bytes(&v);
    }
    __device__ kv_generic_hack_workspace(uint8_t *shared,
                                         const kv_gpu_hack_side &k,
                                         const kv_gpu_hack_side &v)
        : queries(reinterpret_cast<float *>(shared)),
          scores(queries + ROWS * ((k.head_dim + 3) / 4 * 4)),
          factors(scores + ROWS * kv_hack_scores_apart(TOKENS)),
          limits(reinterpret_cast<unsigned *>(factors + ROWS)),
          q_rows(shared + floats(k.head_dim) * sizeof(float)),
          w_rows(q_rows + kv_hack_rows::bytes(k, ROWS)),
          keys(w_rows + kv_hack_rows::bytes(v, ROWS)),
          values(keys + kv_gpu_hack_piece_bytes(&k))
    {
    }
};

/* A block's threads; each warp computes one row's softmax. */
struct kv_generic_hack {
    using workspace = kv_generic_hack_workspace;
    static_assert(workspace::ROWS == KV_WARPS, "a warp has one row");

    const kv_gpu_hack_side &k, &v;
    const kv_gpu_run &run;
    const workspace at;
    const kv_hack_rows queries, weights;
    uint64_t q_key, w_key;
    kv_hack_results<1> sums;
    float max, sum;

    __device__ kv_generic_hack(const kv_gpu_hack_side &k,
                               const kv_gpu_hack_side &v, const kv_gpu_run &run,
                               const kv_rows &rows)
        : k(k), v(v), run(run), at(kv_shared(), k, v),
          queries(at.q_rows, k, workspace::ROWS),
          weights(at.w_rows, v, workspace::ROWS), sums(), max(KV_NONE), sum(0)
    {
        const unsigned row = rows.first + kv_warp();
        const unsigned head = kv_row_head(rows, row);
        const unsigned position = kv_row_position(rows, row);

        q_key = kv_mix(kv_mix(k.key, head), position);
        w_key = kv_hack_weight_key(v.key, head, position);
    }
    __device__ void quantize_queries() const
    {
        for (unsigned part = 0; part < k.parts; part++)
            kv_hack_quantize_part(k, at.queries + kv_warp() * k.head_dim, part,
                                  kv_warp(), q_key, 0, queries);
    }
    /* Turns the scores of the tile that begins with this token into weights. */
    __device__ void weigh(unsigned token)
    {
        const unsigned row = kv_warp(), seen = at.limits[row];
        float *const s = at.scores + row * kv_hack_scores_apart(v.tokens);
        const float factor = kv_hack_weigh(
            s, v.tokens, [&](unsigned t) { return token + t < seen; }, max,
            sum);

        if (kv_lane() == 0)
            at.factors[row] = factor;
        kv_sync_warp();
        for (unsigned part = 0; part < v.parts; part++)
            kv_hack_quantize_part(v, s, part, row, w_key, run.first + token,
                                  weights);
    }
    __device__ void store(float *to) const
    {
        if (kv_lane() == 0) {
            to[kv_warp()] = max;
            to[workspace::ROWS + kv_warp()] = sum;
        }
        to += 2 * workspace::ROWS;
        kv_hack_each(v, sums, [&](unsigned r, unsigned c, float x) {
            to[r * v.head_dim + c] = x;
        });
    }
};

/* Attends to a block's share of the codes; the result is the block's part. */
KV_DEVICE void kv_generic_hack_span(const kv_decode &p,
                                    const kv_gpu_hack_side &k,
                                    const kv_gpu_hack_side &v,
                                    const kv_gpu_work &work)
{
    constexpr unsigned ROWS = kv_generic_hack_workspace::ROWS;
    const kv_gpu_run &run = work.run;
    const kv_rows rows = {blockIdx.z * ROWS,
                          p.group,
                          p.nq,
                          work.n,
                          run.k + blockIdx.y * run.k_head,
                          run.v + blockIdx.y * run.v_head};
    const unsigned d = k.head_dim, end = work.first_tile + work.n_tiles;
    kv_generic_hack b(k, v, run, rows);
    kv_decode unscaled = p; // scaling does not change the queries' codes

    unscaled.scale = 1;
    if (threadIdx.x < ROWS)
        b.at.limits[threadIdx.x] = kv_seen(rows, run, rows.first + threadIdx.x);
    kv_load_queries(unscaled, {}, work.sequence, rows.first, ROWS, d, d,
                    b.at.queries, b.at.queries);
    kv_hack_fetch(k, b.at.keys, rows.k, work.first_tile);
    kv_copy_commit();
    kv_sync_block();
    b.quantize_queries();
    for (unsigned i = work.first_tile; i < end; i++) {
        kv_hack_fetch(v, b.at.values, rows.v, i);
        kv_copy_commit();
        kv_copy_wait<1>();
        kv_sync_block(); // keys (for the first tile, also queries) have arrived
        kv_hack_scores(k, b.at.keys, b.queries, p.scale, b.at.scores);
        kv_sync_block();
        if (i + 1 < end)
            kv_hack_fetch(k, b.at.keys, rows.k, i + 1);
        kv_copy_commit();
        b.weigh(i * v.tokens);
        kv_copy_wait<1>();
        kv_sync_block(); // values and weights have arrived
        kv_hack_rescale(b.at.factors, b.sums);
        kv_hack_gather(v, b.at.values, b.weights, v.parts, b.sums);
        kv_sync_block(); // all are done with the values
    }
    b.store(kv_part(p, work.split, d, ROWS));
}

#endif
