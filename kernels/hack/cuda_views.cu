#include "kernels/hack/cuda_views.h"

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/families.h"
#include "kernels/hack/cuda_steps.cuh"

// A block takes 16 rows: query heads of a KV head, for one query, then the
// next.  It passes over the tokens a step at a time, first over the sinks;
// halves of a step 32 at a time.
enum {
    NT = 2,
    ROWS = 8 * NT,
    MINE = ROWS / KV_WARPS, // rows of a warp's softmax
    THREADS = 32 * KV_WARPS,
    SOME = 32
};

// ---- steps ---------------------------------------------------------------

struct kv_arranged {
    kv_hack_steps h;
    struct kv_gpu_groups g;
    unsigned n; // tokens
};

// Where code z of a line is: token and channel.  Whether there is one.
KV_DEVICE bool kv_arranged_at(const kv_arranged &a, unsigned line, unsigned z,
                              unsigned *t, unsigned *c)
{
    *t = blockIdx.x * a.h.tokens + (a.h.values ? z : line);
    *c = a.h.values ? line : z;
    return z < a.h.codes && *t < a.n && *c < a.h.head_dim;
}

// Grid: (steps, KV heads).
__global__ void __launch_bounds__(THREADS)
    kv_hack_arrange_kernel(const kv_arranged a, const uint8_t *bytes,
                           uint8_t *steps)
{
    const kv_hack_steps &h = a.h;
    const kv_coded_head<kv_hack> from = {a.g, gridDim.y, blockIdx.y, h.head_dim,
                                         bytes};
    uint8_t *const to = steps + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) *
                                    kv_hack_step_bytes(&h);
    const unsigned planes = h.parts * h.lines;
    const unsigned line_bytes = kv_hack_line_bytes(&h), runs = 1u << h.runs;
    uint16_t *const range =
        reinterpret_cast<uint16_t *>(to + (size_t)h.lines * line_bytes);
    unsigned t, c;

    for (unsigned i = threadIdx.x; i < h.lines * line_bytes; i += THREADS) {
        const unsigned line = i / line_bytes, at = i % line_bytes;
        unsigned byte = 0;

        for (unsigned run = 0; run < runs; run++)
            if (kv_arranged_at(a, line, (at / 16 * runs + run) * 16 + at % 16,
                               &t, &c))
                byte |= from.code(t, c) << run * (8 / runs);
        to[i] = (uint8_t)byte;
    }
    for (unsigned i = threadIdx.x; i < planes; i += THREADS) {
        const unsigned line = i % h.lines, first = i / h.lines * h.part;
        unsigned sum = 0;

        if (!kv_arranged_at(a, line, first, &t, &c))
            continue;

        const kv_hack its = from.group(t, c);

        for (unsigned j = 0; j < kv_hack_part_values(&h, i / h.lines); j++)
            sum += h.values ? from.code(t + j, c) : from.code(t, c + j);
        range[i] = its.scale;
        range[planes + i] = its.min;
        range[2 * planes + i] = (uint16_t)sum;
    }
}

extern "C" int kv_gpu_hack_arrange(const struct kv_gpu_code *code,
                                   const struct kv_hack_steps *h,
                                   const uint8_t *bytes, size_t n,
                                   size_t n_steps, uint8_t *steps,
                                   struct kv_err *e)
{
    const kv_arranged a = {*h, code->groups, (unsigned)n};
    const char *wrong;

    if (!n_steps)
        return 0;
    wrong =
        kv_launch(kv_hack_arrange_kernel,
                  dim3((unsigned)n_steps, (unsigned)code->n_heads),
                  dim3(THREADS), (size_t)0, (cudaStream_t)0, a, bytes, steps);
    return wrong ? kv_fail(e, "codes of %zu tokens: %s", n, wrong) : 0;
}

// ---- a block's memory ----------------------------------------------------

// | queries [16][head_dim] | scores [16][..] | halves [32][head_dim + 4] |
// 16 more | factors, sums [16] | of each row, tokens it sees, keys that are
// codes, values that are: [16] | rows of queries | of weights | keys | values |
struct kv_hack_forms_room {
    float *queries, *scores, *halves, *factors, *sums;
    unsigned *seen, *k_until, *v_until;
    uint8_t *q_rows, *w_rows, *keys, *values;

    static __host__ __device__ unsigned apart(unsigned d)
    {
        return d + 4;
    }
    static __host__ __device__ size_t floats(const kv_hack_steps &k)
    {
        return (size_t)ROWS * (k.head_dim + kv_hack_scores_apart(k.tokens)) +
               SOME * apart(k.head_dim) + 16 + 5 * ROWS;
    }
    static __host__ __device__ size_t bytes(const kv_hack_steps &k,
                                            const kv_hack_steps &v)
    {
        return floats(k) * sizeof(float) + kv_hack_rows::bytes(k, ROWS) +
               kv_hack_rows::bytes(v, ROWS) + kv_hack_step_room(k) +
               kv_hack_step_room(v);
    }
    __device__ kv_hack_forms_room(uint8_t *shared, const kv_hack_steps &k,
                                  const kv_hack_steps &v)
        : queries(reinterpret_cast<float *>(shared)),
          scores(queries + ROWS * k.head_dim),
          halves(scores + ROWS * kv_hack_scores_apart(k.tokens)),
          factors(halves + SOME * apart(k.head_dim) + 16), sums(factors + ROWS),
          seen(reinterpret_cast<unsigned *>(sums + ROWS)), k_until(seen + ROWS),
          v_until(k_until + ROWS), q_rows(shared + floats(k) * sizeof(float)),
          w_rows(q_rows + kv_hack_rows::bytes(k, ROWS)),
          keys(w_rows + kv_hack_rows::bytes(v, ROWS)),
          values(keys + kv_hack_step_room(k))
    {
    }
};

// Rows [first, end) of a KV head's halves, all of them there for all threads;
// those from `end` on are the last one again.
KV_DEVICE void kv_load_halves(const float *from, size_t stride, unsigned first,
                              unsigned end, unsigned d, float *to)
{
    const unsigned each = d / 4, apart = kv_hack_forms_room::apart(d);

    kv_sync_block(); // all are done with what was there
    for (unsigned i = threadIdx.x; i < SOME * each; i += THREADS)
        kv_copy_async(
            kv_place_of(to) + (i / each * apart + i % each * 4) * sizeof(float),
            from + min(first + i / each, end - 1) * stride + i % each * 4);
    kv_copy_commit();
    kv_copy_wait<0>();
    kv_sync_block();
}

// ---- halves --------------------------------------------------------------

// Scores of tokens [first, end), by row where its keys are halves: a thread has
// a token and its warp's rows.
KV_DEVICE void kv_score_halves(const kv_hack_forms_room &room, unsigned d,
                               unsigned first, unsigned end, unsigned sinks,
                               float scale, float *s, unsigned apart)
{
    const float *const key =
        room.halves + kv_lane() * kv_hack_forms_room::apart(d);
    const unsigned token = first + kv_lane();
    float x[MINE] = {};

    for (unsigned c = 0; c < d; c += 4) {
        const uint4 k = kv_load16(key + c);

#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const uint4 q =
                kv_load16(room.queries + (kv_warp() + i * KV_WARPS) * d + c);

            x[i] = fmaf(kv_from_bits(q.x), kv_from_bits(k.x), x[i]);
            x[i] = fmaf(kv_from_bits(q.y), kv_from_bits(k.y), x[i]);
            x[i] = fmaf(kv_from_bits(q.z), kv_from_bits(k.z), x[i]);
            x[i] = fmaf(kv_from_bits(q.w), kv_from_bits(k.w), x[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const unsigned row = kv_warp() + i * KV_WARPS;

        if (token < end && (token < sinks || token >= room.k_until[row]))
            s[row * apart] = x[i] * scale;
    }
}

// Adds weights times values of n tokens that are halves; s: the first one's
// weights.
KV_DEVICE void kv_gather_halves(const kv_hack_forms_room &room, unsigned d,
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
                room.halves + t * kv_hack_forms_room::apart(d) + c;

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

// What a pass over some tokens does.
struct kv_hack_pass {
    unsigned first, end; // tokens
    unsigned step;       // of codes
    bool k_codes, k_halves, v_halves;
    unsigned v_parts; // partitions of values that some row has as codes
};

// The i-th pass of a block that sees n tokens, whose queries have from least to
// most tokens as codes, K and V.
KV_DEVICE kv_hack_pass kv_hack_pass_of(const kv_attend_job &a,
                                       const kv_hack_steps &v, unsigned i,
                                       unsigned n, const unsigned *least,
                                       const unsigned *most)
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
    p.step = i - plain;
    p.first = sinks + p.step * v.tokens;
    p.end = min(p.first + v.tokens, n);
    p.k_codes = p.first < most[0];
    p.k_halves = p.end > least[0];
    p.v_halves = p.end > least[1];
    if (p.first < most[1])
        p.v_parts = min((most[1] - p.first) / v.part, v.parts);
    return p;
}

// Block (x, KV head): x counts the sequences, then the groups of rows, of which
// the longest come first.
__global__ void __launch_bounds__(THREADS, 2)
    kv_hack_forms_kernel(const kv_attend_job a, const kv_gpu_hack_forms h)
{
    const kv_hack_steps &k = h.k, &v = h.v;
    const kv_attend_view &view = a.view;
    const unsigned group = (unsigned)(view.n_heads / view.n_kv_heads);
    const unsigned d = (unsigned)view.head_dim,
                   rows = (unsigned)view.nq * group;
    const unsigned blocks = gridDim.x / (unsigned)view.n_seqs;
    const size_t seq = blockIdx.x % view.n_seqs;
    const unsigned row0 =
        (blocks - 1 - blockIdx.x / (unsigned)view.n_seqs) * ROWS;
    const unsigned q0 = row0 / group;
    const unsigned q1 = min(row0 + ROWS - 1, rows - 1) / group;
    const unsigned n = (unsigned)min(view.first + q1 + 1, view.n);
    const unsigned least[] = {a.k.until[q0], a.v.until[q0]};
    const unsigned most[] = {a.k.until[q1], a.v.until[q1]};
    const unsigned sinks = min((unsigned)a.k.sinks, n);
    const unsigned passes = (sinks + v.tokens - 1) / v.tokens +
                            (n - sinks + v.tokens - 1) / v.tokens;
    const size_t kv_row = view.n_kv_heads * d;
    const size_t kv_at = seq * view.n * kv_row + blockIdx.y * d;
    const size_t steps = (seq * view.n_kv_heads + blockIdx.y) * h.n_steps;
    const unsigned apart = kv_hack_scores_apart(v.tokens);
    const float scale = view.scale * 1.44269504f;
    const kv_hack_forms_room room(kv_shared(), k, v);
    const kv_hack_rows queries(room.q_rows, k, ROWS);
    const kv_hack_rows weights(room.w_rows, v, ROWS);
    kv_hack_results<NT> results = {};
    float max[MINE], sum[MINE] = {};

    for (unsigned i = threadIdx.x; i < ROWS * d; i += THREADS) {
        const unsigned row = min(row0 + i / d, rows - 1);
        const size_t query = seq * a.q_rows + row / group;

        room.queries[i] =
            a.q[(query * view.n_heads + blockIdx.y * group + row % group) * d +
                i % d];
    }
    if (threadIdx.x < ROWS) {
        const size_t query = min(row0 + threadIdx.x, rows - 1) / group;

        room.seen[threadIdx.x] = (unsigned)(view.first + query) + 1;
        room.k_until[threadIdx.x] = a.k.until[query];
        room.v_until[threadIdx.x] = a.v.until[query];
    }
    kv_sync_block();

    kv_hack_pass p = kv_hack_pass_of(a, v, 0, n, least, most);

    if (p.k_codes)
        kv_hack_fetch(k, room.keys,
                      h.k_steps + (steps + p.step) * kv_hack_step_bytes(&k));
    kv_copy_commit();
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const unsigned row = kv_warp() + i * KV_WARPS;
        const unsigned at = min(row0 + row, rows - 1);
        const uint64_t key =
            kv_mix(kv_mix(k.key, blockIdx.y * group + at % group),
                   view.first + at / group);

        max[i] = KV_NONE;
        for (unsigned part = 0; part < k.parts; part++)
            kv_hack_quantize_part(k, room.queries + row * d, part, row,
                                  {k.stochastic, key, 0}, KV_HACK_NEXT_CHANNEL,
                                  queries);
    }
    for (unsigned pass = 0; pass < passes; pass++) {
        const kv_hack_pass next =
            kv_hack_pass_of(a, v, pass + 1, n, least, most);

        if (p.v_parts)
            kv_hack_fetch(v, room.values,
                          h.v_steps +
                              (steps + p.step) * kv_hack_step_bytes(&v));
        kv_copy_commit();
        kv_copy_wait<1>();
        kv_sync_block(); // keys and, at first, queries are there
        if (p.k_codes)
            kv_hack_scores(k, room.keys, queries, scale, room.scores);
        for (unsigned t = p.first; p.k_halves && t < p.end; t += SOME) {
            kv_load_halves(a.k.unquantized + kv_at, kv_row, t, p.end, d,
                           room.halves);
            kv_score_halves(room, d, t, p.end, (unsigned)a.k.sinks, scale,
                            room.scores + t - p.first + kv_lane(), apart);
        }
        kv_sync_block();
        if (pass + 1 < passes && next.k_codes)
            kv_hack_fetch(k, room.keys,
                          h.k_steps +
                              (steps + next.step) * kv_hack_step_bytes(&k));
        kv_copy_commit();
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const unsigned row = kv_warp() + i * KV_WARPS;
            const unsigned at = min(row0 + row, rows - 1);
            const unsigned seen = min(p.end, room.seen[row]);
            const uint64_t key =
                kv_mix(kv_mix(v.key, blockIdx.y * group + at % group),
                       view.first + at / group);
            float *const s = room.scores + row * apart;
            const float factor = kv_hack_weigh(
                s, v.tokens, [&](unsigned t) { return p.first + t < seen; },
                max[i], sum[i]);

            if (kv_lane() == 0)
                room.factors[row] = factor;
            kv_sync_warp();
            for (unsigned part = 0; part < p.v_parts; part++) {
                if (p.first + (part + 1) * v.part > room.v_until[row]) {
                    if (kv_lane() == 0)
                        weights.column[part * ROWS + row] = {0, 0, 0};
                    continue;
                }
                kv_hack_quantize_part(
                    v, s, part, row,
                    {v.stochastic, key, kv_hack_counter(p.first, 0)},
                    KV_HACK_NEXT_TOKEN, weights);
                // not among the halves
                for (unsigned t = kv_lane(); t < v.part; t += 32)
                    s[part * v.part + t] = 0;
            }
        }
        kv_copy_wait<1>();
        kv_sync_block(); // values and weights are there
        kv_hack_rescale(room.factors, results);
        kv_hack_gather(v, room.values, weights, p.v_parts, results);
        for (unsigned t = p.first; p.v_halves && t < p.end; t += SOME) {
            kv_load_halves(a.v.unquantized + kv_at, kv_row, t, p.end, d,
                           room.halves);
            kv_gather_halves(room, d, min(p.end - t, (unsigned)SOME),
                             room.scores + t - p.first, apart, results);
        }
        kv_sync_block(); // all are done with the values
        p = next;
    }
#pragma unroll
    for (int i = 0; i < MINE; i++)
        if (kv_lane() == 0)
            room.sums[kv_warp() + i * KV_WARPS] = sum[i];
    kv_sync_block();
    kv_hack_each(v, results, [&](unsigned row, unsigned c, float x) {
        const unsigned at = row0 + row;
        const size_t query = seq * a.q_rows + at / group;

        if (at < rows)
            a.out[(query * view.n_heads + blockIdx.y * group + at % group) * d +
                  c] = x / room.sums[row];
    });
}

// ---- what there is -------------------------------------------------------

static kv_hack_steps steps_of(const struct kv_gpu_code *c, size_t tokens,
                              uint64_t seed)
{
    const kv_tile_hack h = {c->groups.bits, c->groups.q_bits, c->groups.len,
                            c->groups.stochastic, c->groups.layer};

    return kv_hack_steps_of(&h, c->groups.values, c->head_dim, tokens, seed);
}

extern "C" bool kv_gpu_hack_forms_open(const struct kv_gpu_code *k,
                                       const struct kv_gpu_code *v,
                                       uint64_t seed,
                                       const struct kv_device *device,
                                       struct kv_gpu_hack_forms *h)
{
    const size_t part = v->groups.len, d = k->head_dim;
    const size_t tokens = part < 64 ? 64 / part * part : part;

    if (k->coding != KV_GPU_GROUPS || k->groups.quantizer != KV_GPU_HACK ||
        v->coding != KV_GPU_GROUPS || v->groups.quantizer != KV_GPU_HACK)
        return false;
    if (part > KV_HACK_STEP_PART || k->groups.len > KV_HACK_STEP_PART ||
        d % 4 || d > KV_GPU_MAX_DIM)
        return false;
    h->k = steps_of(k, tokens, seed);
    h->v = steps_of(v, tokens, seed);
    return kv_hack_forms_room::bytes(h->k, h->v) <= device->shared;
}

extern "C" int kv_gpu_attend_hack(const struct kv_attend_job *a,
                                  const struct kv_gpu_hack_forms *h,
                                  struct kv_err *e)
{
    const struct kv_attend_view *v = &a->view;

    if (!kv_gpu_views_takes(v))
        return kv_gpu_views_fail(e);

    const size_t rows = v->nq * (v->n_heads / v->n_kv_heads);
    const dim3 grid((unsigned)((rows + ROWS - 1) / ROWS * v->n_seqs),
                    (unsigned)v->n_kv_heads);
    const char *wrong = kv_launch(kv_hack_forms_kernel, grid, dim3(THREADS),
                                  kv_hack_forms_room::bytes(h->k, h->v),
                                  (cudaStream_t)0, *a, *h);

    return wrong
               ? kv_fail(e, "attention on codes of %zu tokens: %s", v->n, wrong)
               : 0;
}
