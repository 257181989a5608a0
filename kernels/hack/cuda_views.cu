#include "kernels/hack/cuda_views.h"

#include "kernels/cuda/families.h"
#include "kernels/hack/cuda_any.cuh"

// A block takes 16 rows: the query heads of a KV head for one query, then for
// the next.  It passes over the sinks, then over the other tokens a piece at a
// time; halves of a piece are loaded 32 at a time.
enum {
    NT = 2,
    ROWS = 8 * NT,
    MINE = ROWS / KV_WARPS, // rows of a warp's softmax
    THREADS = 32 * KV_WARPS,
    SOME = 32
};

// ---- a block's memory ----------------------------------------------------

// | queries [16][head_dim] | scores [16][..] | halves [32][head_dim + 4] |
// 16 unused | factors, sums [16] | of each row: tokens it sees, keys that are
// codes, values that are codes [16] | rows of queries | rows of weights |
// keys | values |
struct kv_hack_views_workspace {
    float *queries, *scores, *halves, *factors, *sums;
    unsigned *seen, *k_until, *v_until;
    uint8_t *q_rows, *w_rows, *keys, *values;

    static __host__ __device__ unsigned apart(unsigned d)
    {
        return d + 4;
    }
    static __host__ __device__ size_t floats(const kv_gpu_hack_side &k)
    {
        return (size_t)ROWS * (k.head_dim + kv_hack_scores_apart(k.tokens)) +
               SOME * apart(k.head_dim) + 16 + 5 * ROWS;
    }
    static __host__ __device__ size_t bytes(const kv_gpu_hack_side &k,
                                            const kv_gpu_hack_side &v)
    {
        return floats(k) * sizeof(float) + kv_hack_rows::bytes(k, ROWS) +
               kv_hack_rows::bytes(v, ROWS) + kv_gpu_hack_piece_bytes(&k) +
               kv_gpu_hack_piece_bytes(&v);
    }
    __device__ kv_hack_views_workspace(uint8_t *shared,
                                       const kv_gpu_hack_side &k,
                                       const kv_gpu_hack_side &v)
        : queries(reinterpret_cast<float *>(shared)),
          scores(queries + ROWS * k.head_dim),
          halves(scores + ROWS * kv_hack_scores_apart(k.tokens)),
          factors(halves + SOME * apart(k.head_dim) + 16), sums(factors + ROWS),
          seen(reinterpret_cast<unsigned *>(sums + ROWS)), k_until(seen + ROWS),
          v_until(k_until + ROWS), q_rows(shared + floats(k) * sizeof(float)),
          w_rows(q_rows + kv_hack_rows::bytes(k, ROWS)),
          keys(w_rows + kv_hack_rows::bytes(v, ROWS)),
          values(keys + kv_gpu_hack_piece_bytes(&k))
    {
    }
};

// Loads rows [first, end) of a KV head's halves and waits for them, for all
// threads; rows from `end` on repeat the last row.
KV_DEVICE void kv_load_halves(const float *from, size_t stride, unsigned first,
                              unsigned end, unsigned d, float *to)
{
    const unsigned each = d / 4, apart = kv_hack_views_workspace::apart(d);

    kv_sync_block(); // all have read the old rows
    for (unsigned i = threadIdx.x; i < SOME * each; i += THREADS)
        kv_copy_async(
            kv_place_of(to) + (i / each * apart + i % each * 4) * sizeof(float),
            from + min(first + i / each, end - 1) * stride + i % each * 4);
    kv_copy_commit();
    kv_copy_wait<0>();
    kv_sync_block();
}

// ---- halves --------------------------------------------------------------

// Scores of tokens [first, end) for rows whose keys are halves there: a thread
// has a token and its warp's rows.
KV_DEVICE void kv_score_halves(const kv_hack_views_workspace &at, unsigned d,
                               unsigned first, unsigned end, unsigned sinks,
                               float scale, float *s, unsigned apart)
{
    const float *const key =
        at.halves + kv_lane() * kv_hack_views_workspace::apart(d);
    const unsigned token = first + kv_lane();
    float x[MINE] = {};

    for (unsigned c = 0; c < d; c += 4) {
        const uint4 k = kv_load16(key + c);

#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const uint4 q =
                kv_load16(at.queries + (kv_warp() + i * KV_WARPS) * d + c);

            x[i] = fmaf(kv_from_bits(q.x), kv_from_bits(k.x), x[i]);
            x[i] = fmaf(kv_from_bits(q.y), kv_from_bits(k.y), x[i]);
            x[i] = fmaf(kv_from_bits(q.z), kv_from_bits(k.z), x[i]);
            x[i] = fmaf(kv_from_bits(q.w), kv_from_bits(k.w), x[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const unsigned row = kv_warp() + i * KV_WARPS;

        if (token < end && (token < sinks || token >= at.k_until[row]))
            s[row * apart] = x[i] * scale;
    }
}

// Adds weights times values of n tokens that are halves; s: the first one's
// weights.
KV_DEVICE void kv_gather_halves(const kv_hack_views_workspace &at, unsigned d,
                                unsigned n, const float *s, unsigned apart,
                                kv_hack_results<NT> &x)
{
    for (unsigned t = 0; t < n; t++) {
        float w[NT][2];

#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                w[i][j] = s[(8 * i + kv_lane() % 4 * 2 + j) * apart + t];
#pragma unroll
        for (int j = 0; j < KV_HACK_TILES; j++) {
            const unsigned c = 16 * (kv_warp() + j * KV_WARPS) + kv_lane() / 4;
            const float *value =
                at.halves + t * kv_hack_views_workspace::apart(d) + c;

            if (c - kv_lane() / 4 < d)
#pragma unroll
                for (int i = 0; i < NT; i++)
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        x.o[j][i][k] =
                            fmaf(w[i][k % 2], value[k / 2 * 8], x.o[j][i][k]);
        }
    }
}

// ---- the kernel ----------------------------------------------------------

// The operations of a pass over some tokens.
struct kv_hack_pass {
    unsigned first, end; // tokens
    unsigned piece;      // of codes
    bool k_codes, k_halves, v_halves;
    unsigned v_parts; // partitions of values that are codes for some row
};

// The i-th pass of a block that sees n tokens; its queries see from min_codes
// to max_codes tokens as codes, for K and V.
KV_DEVICE kv_hack_pass kv_hack_pass_of(const kv_attend_job &a,
                                       const kv_gpu_hack_side &v, unsigned i,
                                       unsigned n, const unsigned *min_codes,
                                       const unsigned *max_codes)
{
    const unsigned sinks = (unsigned)a.k.sinks;
    const unsigned plain = (min(sinks, n) + v.tokens - 1) / v.tokens;
    kv_hack_pass p = {};

    if (i < plain) {
        p.first = i * v.tokens;
        p.end = min(p.first + v.tokens, min(sinks, n));
        p.k_halves = p.v_halves = true;
        return p;
    }
    p.piece = i - plain;
    p.first = sinks + p.piece * v.tokens;
    p.end = min(p.first + v.tokens, n);
    p.k_codes = p.first < max_codes[0];
    p.k_halves = p.end > min_codes[0];
    p.v_halves = p.end > min_codes[1];
    if (p.first < max_codes[1])
        p.v_parts = min((max_codes[1] - p.first) / v.part, v.parts);
    return p;
}

// A block: 16 rows of a KV head of a sequence.
struct kv_hack_block {
    const kv_attend_job &a;
    const kv_gpu_hack_views &h;
    const kv_gpu_hack_side &k, &v;
    const unsigned d, group, rows; // query heads of a KV head; rows in all
    size_t seq;
    unsigned row0, n; // the first row; tokens that the last one sees
    unsigned min_codes[2],
        max_codes[2];     // tokens as codes: of the first and last query
    size_t kv_row, kv_at; // halves: from one token to the next; the first token
    const uint8_t *k_pieces, *v_pieces;
    const unsigned apart;
    const float scale;
    const kv_hack_views_workspace at;
    const kv_hack_rows queries, weights;
    kv_hack_results<NT> results;
    float max[MINE], sum[MINE];

    // x counts sequences, then groups of rows, the longest first.
    __device__ kv_hack_block(const kv_attend_job &a, const kv_gpu_hack_views &h)
        : a(a), h(h), k(h.k), v(h.v), d((unsigned)a.view.head_dim),
          group((unsigned)(a.view.n_heads / a.view.n_kv_heads)),
          rows((unsigned)a.view.nq * group), seq(blockIdx.x % a.view.n_seqs),
          apart(kv_hack_scores_apart(v.tokens)),
          scale(a.view.scale * 1.44269504f), at(kv_shared(), k, v),
          queries(at.q_rows, k, ROWS), weights(at.w_rows, v, ROWS), results(),
          sum()
    {
        const unsigned n_seqs = (unsigned)a.view.n_seqs;
        const size_t head = seq * a.view.n_kv_heads + blockIdx.y;

        row0 = (gridDim.x / n_seqs - 1 - blockIdx.x / n_seqs) * ROWS;

        const unsigned q0 = row0 / group;
        const unsigned q1 = min(row0 + ROWS - 1, rows - 1) / group;

        n = (unsigned)min(a.view.first + q1 + 1, a.view.n);
        min_codes[0] = a.k.until[q0];
        min_codes[1] = a.v.until[q0];
        max_codes[0] = a.k.until[q1];
        max_codes[1] = a.v.until[q1];
        kv_row = a.view.n_kv_heads * d;
        kv_at = seq * a.view.n * kv_row + blockIdx.y * d;
        k_pieces = h.k_steps + head * h.n_steps * kv_gpu_hack_piece_bytes(&k);
        v_pieces = h.v_steps + head * h.n_steps * kv_gpu_hack_piece_bytes(&v);
        for (int i = 0; i < MINE; i++)
            max[i] = KV_NONE;
    }

    // min(row, last row).
    __device__ unsigned row_of(unsigned row) const
    {
        return min(row0 + row, rows - 1);
    }
    // The offset of a row of the job in q and out.
    __device__ size_t place_of(unsigned row) const
    {
        return ((seq * a.q_rows + row / group) * a.view.n_heads +
                blockIdx.y * group + row % group) *
               d;
    }
    __device__ size_t head_of(unsigned row) const
    {
        return blockIdx.y * group + row % group;
    }
    __device__ size_t position_of(unsigned row) const
    {
        return a.view.first + row / group;
    }

    __device__ void load_rows() const
    {
        for (unsigned i = threadIdx.x; i < ROWS * d; i += THREADS)
            at.queries[i] = a.q[place_of(row_of(i / d)) + i % d];
        if (threadIdx.x < ROWS) {
            const size_t query = row_of(threadIdx.x) / group;

            at.seen[threadIdx.x] = (unsigned)(a.view.first + query) + 1;
            at.k_until[threadIdx.x] = a.k.until[query];
            at.v_until[threadIdx.x] = a.v.until[query];
        }
    }

    __device__ void quantize_queries() const
    {
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const unsigned row = kv_warp() + i * KV_WARPS;
            const uint64_t key = kv_mix(kv_mix(k.key, head_of(row_of(row))),
                                        position_of(row_of(row)));

            for (unsigned part = 0; part < k.parts; part++)
                kv_hack_quantize_part(k, at.queries + row * d, part, row, key,
                                      0, queries);
        }
    }

    __device__ void score(const kv_hack_pass &p) const
    {
        if (p.k_codes)
            kv_hack_scores(k, at.keys, queries, scale, at.scores);
        for (unsigned t = p.first; p.k_halves && t < p.end; t += SOME) {
            kv_load_halves(a.k.unquantized + kv_at, kv_row, t, p.end, d,
                           at.halves);
            kv_score_halves(at, d, t, p.end, (unsigned)a.k.sinks, scale,
                            at.scores + t - p.first + kv_lane(), apart);
        }
    }

    // The weights of a row.  Weights of values that the row sees as codes are
    // quantized, and are 0 among the halves.
    __device__ void weigh_row(const kv_hack_pass &p, unsigned row, float &max,
                              float &sum) const
    {
        const unsigned seen = min(p.end, at.seen[row]);
        const uint64_t key = kv_hack_weight_key(v.key, head_of(row_of(row)),
                                                position_of(row_of(row)));
        float *const s = at.scores + row * apart;
        const float factor = kv_hack_weigh(
            s, v.tokens, [&](unsigned t) { return p.first + t < seen; }, max,
            sum);

        if (kv_lane() == 0)
            at.factors[row] = factor;
        kv_sync_warp();
        for (unsigned part = 0; part < p.v_parts; part++) {
            if (p.first + (part + 1) * v.part > at.v_until[row]) {
                if (kv_lane() == 0)
                    weights.column[part * ROWS + row] = {0, 0, 0};
                continue;
            }
            kv_hack_quantize_part(v, s, part, row, key, p.first, weights);
            for (unsigned t = kv_lane(); t < v.part; t += 32)
                s[part * v.part + t] = 0;
        }
    }

    __device__ void gather(const kv_hack_pass &p)
    {
        kv_hack_rescale(at.factors, results);
        kv_hack_gather(v, at.values, weights, p.v_parts, results);
        for (unsigned t = p.first; p.v_halves && t < p.end; t += SOME) {
            kv_load_halves(a.v.unquantized + kv_at, kv_row, t, p.end, d,
                           at.halves);
            kv_gather_halves(at, d, min(p.end - t, (unsigned)SOME),
                             at.scores + t - p.first, apart, results);
        }
    }

    __device__ void store() const
    {
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (kv_lane() == 0)
                at.sums[kv_warp() + i * KV_WARPS] = sum[i];
        kv_sync_block();
        kv_hack_each(v, results, [&](unsigned row, unsigned c, float x) {
            if (row0 + row < rows)
                a.out[place_of(row0 + row) + c] = x / at.sums[row];
        });
    }
};

// Grid: (sequences x groups of rows, KV heads).
__global__ void __launch_bounds__(THREADS, 2)
    kv_hack_views_kernel(const kv_attend_job a, const kv_gpu_hack_views h)
{
    kv_hack_block b(a, h);
    const unsigned sinks = min((unsigned)a.k.sinks, b.n), each = h.v.tokens;
    const unsigned passes =
        (sinks + each - 1) / each + (b.n - sinks + each - 1) / each;
    kv_hack_pass p = kv_hack_pass_of(a, h.v, 0, b.n, b.min_codes, b.max_codes);

    b.load_rows();
    kv_sync_block();
    if (p.k_codes)
        kv_hack_fetch(h.k, b.at.keys, b.k_pieces, p.piece);
    kv_copy_commit();
    b.quantize_queries();
    for (unsigned pass = 0; pass < passes; pass++) {
        const kv_hack_pass next =
            kv_hack_pass_of(a, h.v, pass + 1, b.n, b.min_codes, b.max_codes);

        if (p.v_parts)
            kv_hack_fetch(h.v, b.at.values, b.v_pieces, p.piece);
        kv_copy_commit();
        kv_copy_wait<1>();
        kv_sync_block(); // keys (first: and queries) have arrived
        b.score(p);
        kv_sync_block();
        if (pass + 1 < passes && next.k_codes)
            kv_hack_fetch(h.k, b.at.keys, b.k_pieces, next.piece);
        kv_copy_commit();
#pragma unroll
        for (int i = 0; i < MINE; i++)
            b.weigh_row(p, kv_warp() + i * KV_WARPS, b.max[i], b.sum[i]);
        kv_copy_wait<1>();
        kv_sync_block(); // values and weights have arrived
        b.gather(p);
        kv_sync_block(); // all are done with the values
        p = next;
    }
    b.store();
}

// ---- launching ----------------------------------------------------------

static kv_gpu_hack_side side_of(const struct kv_gpu_code *c, size_t tokens,
                                uint64_t seed)
{
    kv_tile_hack h = {};

    h.codes.bits = c->groups.bits;
    h.q_bits = c->groups.q_bits;
    h.part = c->groups.len;
    h.stochastic = c->groups.stochastic;
    h.layer = c->groups.layer;
    return kv_gpu_hack_side_of(&h, c->groups.values, c->head_dim, tokens, seed);
}

extern "C" bool kv_gpu_hack_views_open(const struct kv_gpu_code *k,
                                       const struct kv_gpu_code *v,
                                       uint64_t seed,
                                       const struct kv_device *device,
                                       struct kv_gpu_hack_views *h)
{
    const size_t part = v->groups.len, d = k->head_dim;
    const size_t tokens = part < 64 ? 64 / part * part : part;

    if (k->coding != KV_GPU_GROUPS || k->groups.quantizer != KV_GPU_HACK ||
        v->coding != KV_GPU_GROUPS || v->groups.quantizer != KV_GPU_HACK)
        return false;
    if (part > KV_HACK_ANY_PART || k->groups.len > KV_HACK_ANY_PART || d % 4 ||
        d > KV_GPU_MAX_DIM)
        return false;
    h->k = side_of(k, tokens, seed);
    h->v = side_of(v, tokens, seed);
    return kv_hack_views_workspace::bytes(h->k, h->v) <= device->shared;
}

extern "C" int kv_gpu_attend_hack(const struct kv_attend_job *a,
                                  const struct kv_gpu_hack_views *h,
                                  struct kv_err *e)
{
    const struct kv_attend_view *v = &a->view;

    if (!kv_gpu_plain_takes(v))
        return kv_gpu_plain_fail(e);

    const size_t rows = v->nq * (v->n_heads / v->n_kv_heads);
    const dim3 grid((unsigned)((rows + ROWS - 1) / ROWS * v->n_seqs),
                    (unsigned)v->n_kv_heads);
    const char *wrong = kv_launch(kv_hack_views_kernel, grid, dim3(THREADS),
                                  kv_hack_views_workspace::bytes(h->k, h->v),
                                  (cudaStream_t)0, *a, *h);

    return wrong
               ? kv_fail(e, "attention on codes of %zu tokens: %s", v->n, wrong)
               : 0;
}
