/* The generic kernel's part for HACK, which multiplies codes as integers: tiles
 * are steps of hack_steps.h of KV_GPU_TILE tokens, a block has 8 rows. */
#ifndef KV_HACK_CUDA_GENERIC_CUH
#define KV_HACK_CUDA_GENERIC_CUH

#include "kernels/hack/cuda_steps.cuh"

/* | queries [8][head_dim] | scores [8][..] | factors [8] | limits [8]: 4 bytes
 *   each | rows of queries | of weights | keys | values | */
struct kv_generic_hack_room {
    static constexpr unsigned ROWS = 8, TOKENS = KV_GPU_TILE;

    float *queries, *scores, *factors;
    unsigned *limits;
    uint8_t *q_rows, *w_rows, *keys, *values;

    static __host__ __device__ size_t floats(unsigned d)
    {
        return ROWS * ((d + 3) / 4 * 4 + kv_hack_scores_apart(TOKENS) + 2);
    }
    static __host__ __device__ size_t bytes(const kv_hack_steps &k,
                                            const kv_hack_steps &v)
    {
        return floats(k.head_dim) * sizeof(float) +
               kv_hack_rows::bytes(k, ROWS) + kv_hack_rows::bytes(v, ROWS) +
               kv_hack_step_room(k) + kv_hack_step_room(v);
    }
    __device__ kv_generic_hack_room(uint8_t *shared, const kv_hack_steps &k,
                                    const kv_hack_steps &v)
        : queries(reinterpret_cast<float *>(shared)),
          scores(queries + ROWS * ((k.head_dim + 3) / 4 * 4)),
          factors(scores + ROWS * kv_hack_scores_apart(TOKENS)),
          limits(reinterpret_cast<unsigned *>(factors + ROWS)),
          q_rows(shared + floats(k.head_dim) * sizeof(float)),
          w_rows(q_rows + kv_hack_rows::bytes(k, ROWS)),
          keys(w_rows + kv_hack_rows::bytes(v, ROWS)),
          values(keys + kv_hack_step_room(k))
    {
    }
};

/* A block's piece of codes into its part; a warp has one row's softmax. */
KV_DEVICE void kv_generic_hack_span(const kv_decode &p, const kv_hack_steps &k,
                                    const kv_hack_steps &v,
                                    const kv_gpu_work &work)
{
    using room_type = kv_generic_hack_room;
    constexpr unsigned ROWS = room_type::ROWS, TOKENS = room_type::TOKENS;
    static_assert(ROWS == KV_WARPS, "a warp has one row");
    const kv_gpu_sequence &sequence = p.sequences[work.sequence];
    const kv_gpu_run &run = sequence.run[work.run];
    const kv_rows rows = {blockIdx.z * ROWS,
                          p.group,
                          p.nq,
                          sequence.n,
                          run.k + blockIdx.y * run.k_head,
                          run.v + blockIdx.y * run.v_head};
    const size_t k_bytes = kv_hack_step_bytes(&k);
    const size_t v_bytes = kv_hack_step_bytes(&v);
    const unsigned d = k.head_dim, row = kv_warp();
    const unsigned end = work.first_tile + work.n_tiles;
    const room_type room(kv_shared(), k, v);
    const kv_hack_rows queries(room.q_rows, k, ROWS);
    const kv_hack_rows weights(room.w_rows, v, ROWS);
    float *const s = room.scores + row * kv_hack_scores_apart(TOKENS);
    const unsigned head = kv_row_head(rows, rows.first + row);
    const unsigned position = kv_row_position(rows, rows.first + row);
    const uint64_t k_key = kv_mix(kv_mix(k.key, head), position);
    const uint64_t v_key = kv_mix(kv_mix(v.key, head), position);
    kv_hack_results<1> sums = {};
    float max = KV_NONE, sum = 0;
    kv_decode unscaled = p; // their codes are those of queries as they are

    unscaled.scale = 1;
    if (threadIdx.x < ROWS)
        room.limits[threadIdx.x] = kv_seen(rows, run, rows.first + threadIdx.x);
    kv_load_queries(unscaled, NULL, sequence.index, rows.first, ROWS, d, d,
                    room.queries, room.queries);
    kv_hack_fetch(k, room.keys, rows.k + work.first_tile * k_bytes);
    kv_copy_commit();
    kv_sync_block();
    for (unsigned part = 0; part < k.parts; part++)
        kv_hack_quantize_part(k, room.queries + row * d, part, row,
                              {k.stochastic, k_key, 0}, KV_HACK_NEXT_CHANNEL,
                              queries);
    for (unsigned i = work.first_tile; i < end; i++) {
        kv_hack_fetch(v, room.values, rows.v + i * v_bytes);
        kv_copy_commit();
        kv_copy_wait<1>();
        kv_sync_block(); // keys and, at first, queries are there
        kv_hack_scores(k, room.keys, queries, p.scale, room.scores);
        kv_sync_block();
        if (i + 1 < end)
            kv_hack_fetch(k, room.keys, rows.k + (i + 1) * k_bytes);
        kv_copy_commit();

        const unsigned seen = room.limits[row], token = i * TOKENS;
        const float factor = kv_hack_weigh(
            s, TOKENS, [&](unsigned t) { return token + t < seen; }, max, sum);

        if (kv_lane() == 0)
            room.factors[row] = factor;
        kv_sync_warp();
        for (unsigned part = 0; part < v.parts; part++)
            kv_hack_quantize_part(
                v, s, part, row,
                {v.stochastic, v_key, kv_hack_counter(run.first + token, 0)},
                KV_HACK_NEXT_TOKEN, weights);
        kv_copy_wait<1>();
        kv_sync_block(); // values and weights are there
        kv_hack_rescale(room.factors, sums);
        kv_hack_gather(v, room.values, weights, v.parts, sums);
        kv_sync_block(); // all are done with the values
    }

    float *const to = kv_part(p, work.split, d, ROWS);

    if (kv_lane() == 0) {
        to[row] = max;
        to[ROWS + row] = sum;
    }
    kv_hack_each(v, sums, [&](unsigned r, unsigned c, float x) {
        to[2 * ROWS + r * d + c] = x;
    });
}

#endif
