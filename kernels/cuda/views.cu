#include "kernels/cuda/views.h"

#include "kernels/cuda/gpu.cuh"

// A block takes TILE queries of a head and passes over the keys, TILE at a
// time.  Thread (y, x) of 16 by 16 has queries 4 y + i, keys x + 16 j, and
// channels 4 x + k of each 64 of the values.
enum { TILE = 64, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE };
// The size of a row of P: a multiple of 16 bytes that puts rows 4 apart on
// other banks.
enum { P_ROW = TILE + 4 };

enum { UNQUANTIZED, QUANTIZED, VIEWS };

// Rows of keys or values, laid out so that reads along a row by kv_four have no
// bank conflicts.
template <int C> struct kv_views_shared {
    static constexpr int row = C + 4;
    float q[TILE * row], kv[TILE * row], p[TILE * P_ROW];
};

struct kv_four {
    float x, y, z, w;
};

KV_DEVICE kv_four kv_load_four(const float *p)
{
    const uint4 w = kv_load16(p);

    return {kv_from_bits(w.x), kv_from_bits(w.y), kv_from_bits(w.z),
            kv_from_bits(w.w)};
}

// The forms of a side that queries [i0, i1) see: the minimum and maximum of
// `until` over the queries, equal in every thread.
struct kv_view_views {
    const kv_attend_side &side;
    unsigned min_, max_;

    __device__ kv_view_views(const kv_attend_side &s, unsigned i0, unsigned i1)
        : side(s), min_(~0u), max_(0)
    {
        for (unsigned i = i0; i < i1 && s.quantized && s.unquantized; i++) {
            min_ = min(min_, s.until[i]);
            max_ = max(max_, s.until[i]);
        }
    }
    // The forms of TILE tokens from j0 on: bit 1 << form.
    __device__ unsigned of(unsigned j0) const
    {
        if (!side.quantized || !side.unquantized)
            return side.quantized ? 1u << QUANTIZED : 1u << UNQUANTIZED;
        if (j0 >= max_ || j0 + TILE <= side.sinks)
            return 1u << UNQUANTIZED;
        return j0 >= side.sinks && j0 + TILE <= min_
                   ? 1u << QUANTIZED
                   : 1u << QUANTIZED | 1u << UNQUANTIZED;
    }
    // Whether query i sees token j in this form; forms: of() its tile.
    __device__ bool sees(unsigned views, int form, unsigned i, unsigned j) const
    {
        return views == 1u << form ||
               (form == QUANTIZED) == (j >= side.sinks && j < side.until[i]);
    }
    __device__ const float *rows(int form) const
    {
        return form == UNQUANTIZED ? side.unquantized : side.quantized;
    }
};

// Starts to copy channels [c0, c0 + C) of rows [first, first + TILE) to `to`.
// Rows from `end` on repeat the last row, channels from d on are zeros.
template <int C>
KV_DEVICE void kv_load_rows(const float *from, size_t stride, unsigned first,
                            unsigned end, unsigned c0, unsigned d, float *to)
{
    constexpr unsigned row_bytes = kv_views_shared<C>::row * sizeof(float);
    const unsigned c = threadIdx.x * 4 % C;

#pragma unroll 4
    for (unsigned r = threadIdx.x * 4 / C; r < TILE; r += THREADS * 4 / C) {
        const unsigned row = min(first + r, end - 1);
        const uint32_t zero[4] = {};

        if (c0 + c < d)
            kv_copy_async(kv_place_of(to) + r * row_bytes + c * sizeof(float),
                          from + row * stride + c0 + c);
        else
            kv_store16(to + r * kv_views_shared<C>::row + c, zero);
    }
}

// kv_load_rows() where 4 does not divide d, so that rows begin anywhere.
template <int C>
KV_DEVICE void kv_load_odd_rows(const float *from, size_t stride,
                                unsigned first, unsigned end, unsigned c0,
                                unsigned d, float *to)
{
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < TILE * C; i += THREADS) {
        const unsigned r = i / C, c = i % C;

        to[r * kv_views_shared<C>::row + c] =
            c0 + c < d ? from[min(first + r, end - 1) * stride + c0 + c] : 0;
    }
}

// Waits until all copies have arrived, for all threads.
KV_DEVICE void kv_loaded(void)
{
    kv_copy_commit();
    kv_copy_wait<0>();
    kv_sync_block();
}

// s [EACH][EACH] += q k' over channels [0, n), n a multiple of 4.
template <int C>
KV_DEVICE void kv_add_scores(const float *q, const float *k, unsigned n,
                             float (*s)[EACH])
{
    constexpr int row = kv_views_shared<C>::row;
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;

#pragma unroll 1
    for (unsigned c = 0; c < n; c += 4) {
        kv_four b[EACH];

#pragma unroll
        for (int j = 0; j < EACH; j++)
            b[j] = kv_load_four(k + (x + SIDE * j) * row + c);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const kv_four a = kv_load_four(q + (EACH * y + i) * row + c);

#pragma unroll
            for (int j = 0; j < EACH; j++) {
                s[i][j] = fmaf(a.x, b[j].x, s[i][j]);
                s[i][j] = fmaf(a.y, b[j].y, s[i][j]);
                s[i][j] = fmaf(a.z, b[j].z, s[i][j]);
                s[i][j] = fmaf(a.w, b[j].w, s[i][j]);
            }
        }
    }
}

// out [EACH][C / SIDE] += p v.
template <int C>
KV_DEVICE void kv_add_values(const float *p, const float *v,
                             float (*out)[C / SIDE])
{
    constexpr int row = kv_views_shared<C>::row;
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;

#pragma unroll 2
    for (unsigned j = 0; j < TILE; j++) {
        float w[EACH];

#pragma unroll
        for (int i = 0; i < EACH; i++)
            w[i] = p[(EACH * y + i) * P_ROW + j];
#pragma unroll
        for (int g = 0; g < C / TILE; g++) {
            const kv_four b = kv_load_four(v + j * row + TILE * g + 4 * x);

#pragma unroll
            for (int i = 0; i < EACH; i++) {
                out[i][4 * g] = fmaf(w[i], b.x, out[i][4 * g]);
                out[i][4 * g + 1] = fmaf(w[i], b.y, out[i][4 * g + 1]);
                out[i][4 * g + 2] = fmaf(w[i], b.z, out[i][4 * g + 2]);
                out[i][4 * g + 3] = fmaf(w[i], b.w, out[i][4 * g + 3]);
            }
        }
    }
}

// Reduces x over the SIDE threads that share queries.
KV_DEVICE float kv_row_max(float x)
{
    for (unsigned mask = 1; mask < SIDE; mask *= 2)
        x = fmaxf(x, kv_shuffle_xor(x, mask));
    return x;
}

KV_DEVICE float kv_row_sum(float x)
{
    for (unsigned mask = 1; mask < SIDE; mask *= 2)
        x += kv_shuffle_xor(x, mask);
    return x;
}

// A block's queries [i0, i1) of one head of one sequence, and the output
// channels that it computes, from c0 on.  PLAIN: without window, cap and slope,
// and 4 divides the head's channels.
template <bool PLAIN> struct kv_view_tile {
    const kv_attend_job &job;
    unsigned i0, i1, c0;
    size_t seq;

    // The i-th query of this thread; past the last query it is the last one
    // again, which is not stored.
    __device__ unsigned query(int i) const
    {
        return min(i0 + EACH * (threadIdx.x / SIDE) + i, i1 - 1);
    }
    __device__ unsigned end(unsigned i) const // the end of the tokens it sees
    {
        return (unsigned)job.view.first + i + 1;
    }
    __device__ unsigned begin(unsigned i) const
    {
        const unsigned window = (unsigned)job.view.window;

        return window && window < end(i) ? end(i) - window : 0;
    }
    __device__ bool sees(unsigned i, unsigned j) const
    {
        return j < end(i) && (PLAIN || j >= begin(i));
    }
    // The logit, times log2 e, of query i with key j.
    __device__ float logit(float product, unsigned i, unsigned j) const
    {
        const kv_attend_view &v = job.view;
        float s = product * v.scale;

        if (PLAIN)
            return product * (v.scale * 1.44269504f);
        if (v.cap != 0)
            s = v.cap * tanhf(s / v.cap);
        if (v.slope)
            s -= v.slope[blockIdx.y] * (float)(end(i) - 1 - j);
        return s * 1.44269504f;
    }
    __device__ unsigned d() const
    {
        return (unsigned)job.view.head_dim;
    }
    __device__ size_t q_row() const
    {
        return job.view.n_heads * d();
    }
    // The offset of query 0.
    __device__ size_t q() const
    {
        return (seq * job.q_rows * job.view.n_heads + blockIdx.y) * d();
    }
    // Loads TILE rows of keys or values from j0 on, channels [c, c + C).
    template <int C>
    __device__ void load(const float *rows, unsigned j0, unsigned c,
                         float *to) const
    {
        const kv_attend_view &v = job.view;
        const unsigned head = blockIdx.y / (unsigned)(v.n_heads / v.n_kv_heads);

        put<C>(rows + (seq * v.n * v.n_kv_heads + head) * d(),
               v.n_kv_heads * d(), j0, (unsigned)v.n, c, to);
    }
    template <int C>
    __device__ void put(const float *from, size_t stride, unsigned first,
                        unsigned last, unsigned c, float *to) const
    {
        if (PLAIN || d() % 4 == 0)
            kv_load_rows<C>(from, stride, first, last, c, d(), to);
        else
            kv_load_odd_rows<C>(from, stride, first, last, c, d(), to);
    }
};

// A thread's results for its queries: sums of values, largest score, sum of
// weights.
template <int C> struct kv_view_sums {
    float out[EACH][C / SIDE] = {}, max[EACH], sum[EACH] = {};
};

// Scores of the tile's queries with TILE keys from j0 on; first: queries that
// fit one piece are not in shared memory yet.
template <int C, bool PLAIN>
KV_DEVICE void kv_view_scores(const kv_view_tile<PLAIN> &t, const float *keys,
                              unsigned j0, bool first,
                              kv_views_shared<C> *shared, float (*s)[EACH])
{
    const unsigned d = t.d();

#pragma unroll 1
    for (unsigned c = 0; c < d; c += C) {
        kv_sync_block();
        t.template load<C>(keys, j0, c, shared->kv);
        if (d > C || first)
            t.template put<C>(t.job.q + t.q(), t.q_row(), t.i0, t.i1, c,
                              shared->q);
        kv_loaded();
        kv_add_scores<C>(shared->q, shared->kv,
                         (min(d - c, (unsigned)C) + 3) / 4 * 4, s);
    }
}

// Turns scores of one form of the keys into weights; the weight of a token that
// the query sees in the other form is 0.
template <int C, bool PLAIN>
KV_DEVICE void kv_view_weights(const kv_view_tile<PLAIN> &t,
                               const kv_view_views &k, unsigned views, int form,
                               unsigned j0, float (*s)[EACH],
                               kv_view_sums<C> &sums)
{
    const unsigned x = threadIdx.x % SIDE;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const unsigned query = t.query(i);
        float max = sums.max[i];

#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const unsigned key = j0 + x + SIDE * j;

            s[i][j] = t.sees(query, key) && k.sees(views, form, query, key)
                          ? t.logit(s[i][j], query, key)
                          : -__builtin_huge_valf();
            max = fmaxf(max, s[i][j]);
        }
        max = kv_row_max(max);

        // before any token was seen, weights and sums are zero
        const float from = max > -__builtin_huge_valf() ? max : 0;
        const float by = kv_exp2(sums.max[i] - from);

        sums.max[i] = max;
        sums.sum[i] *= by;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            s[i][j] = kv_exp2(s[i][j] - from);
            sums.sum[i] += s[i][j];
        }
#pragma unroll
        for (int c = 0; c < C / SIDE; c++)
            sums.out[i][c] *= by;
    }
}

// out += w v over TILE tokens from j0 on, each form of the values by itself.
template <int C, bool PLAIN>
KV_DEVICE void kv_view_values(const kv_view_tile<PLAIN> &t,
                              const kv_view_views &v, unsigned j0,
                              float (*w)[EACH], kv_views_shared<C> *shared,
                              kv_view_sums<C> &sums)
{
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const unsigned views = v.of(j0);

#pragma unroll 1
    for (int form = 0; form < VIEWS; form++) {
        if (!(views >> form & 1))
            continue;
        kv_sync_block();
        t.template load<C>(v.rows(form), j0, t.c0, shared->kv);
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                shared->p[(EACH * y + i) * P_ROW + x + SIDE * j] =
                    v.sees(views, form, t.query(i), j0 + x + SIDE * j) ? w[i][j]
                                                                       : 0;
        kv_loaded();
        kv_add_values<C>(shared->p, shared->kv, sums.out);
    }
}

template <int C, bool PLAIN>
KV_DEVICE void kv_view_store(const kv_view_tile<PLAIN> &t,
                             const kv_view_sums<C> &sums)
{
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const unsigned row = t.i0 + EACH * y + i;
        const float all = kv_row_sum(sums.sum[i]);

#pragma unroll
        for (int c = 0; c < C / SIDE; c++) {
            const unsigned channel = t.c0 + c / 4 * TILE + 4 * x + c % 4;

            if (row < t.i1 && channel < t.d())
                t.job.out[t.q() + row * t.q_row() + channel] =
                    sums.out[i][c] / all;
        }
    }
}

// Block (x, head): x counts groups of C output channels, then sequences, then
// tiles of queries, the longest first.
template <int C, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 2)
    kv_views_kernel(kv_attend_job a, unsigned tiles, unsigned slices)
{
    auto *const shared = reinterpret_cast<kv_views_shared<C> *>(kv_shared());
    const kv_attend_view &view = a.view;
    const unsigned block = blockIdx.x / slices;
    const unsigned i0 = (tiles - 1 - (unsigned)(block / view.n_seqs)) * TILE;
    const kv_view_tile<PLAIN> t = {a, i0, min(i0 + TILE, (unsigned)view.nq),
                                   blockIdx.x % slices * C,
                                   block % view.n_seqs};
    const kv_view_views k(a.k, t.i0, t.i1), v(a.v, t.i0, t.i1);
    const unsigned start = PLAIN ? 0 : t.begin(t.i0) / TILE * TILE;
    kv_view_sums<C> sums;

#pragma unroll
    for (int i = 0; i < EACH; i++)
        sums.max[i] = -__builtin_huge_valf();
    for (unsigned j0 = start; j0 < t.end(t.i1 - 1); j0 += TILE) {
        const unsigned views = k.of(j0);

#pragma unroll 1
        for (int form = 0; form < VIEWS; form++) {
            float s[EACH][EACH] = {};

            if (!(views >> form & 1))
                continue;
            kv_view_scores<C>(t, k.rows(form), j0, j0 == start, shared, s);
            kv_view_weights<C>(t, k, views, form, j0, s, sums);
            kv_view_values<C>(t, v, j0, s, shared, sums);
        }
    }
    kv_view_store<C>(t, sums);
}

template <int C, bool PLAIN>
static const char *launch(const struct kv_attend_job *a)
{
    const struct kv_attend_view *v = &a->view;
    const unsigned tiles = (unsigned)((v->nq + TILE - 1) / TILE);
    const unsigned slices = (unsigned)((v->head_dim + C - 1) / C);
    const dim3 grid((unsigned)(tiles * v->n_seqs * slices),
                    (unsigned)v->n_heads);

    return kv_launch(kv_views_kernel<C, PLAIN>, grid, dim3(THREADS),
                     sizeof(kv_views_shared<C>), 0, *a, tiles, slices);
}

extern "C" int kv_gpu_attend_views(const struct kv_attend_job *a,
                                   struct kv_err *e)
{
    const bool wide = a->view.head_dim > TILE;
    const char *wrong;

    if (a->view.alive || a->view.shift || a->view.mass || a->view.sink_logit)
        return kv_fail(e, "no CUDA kernel of attention with a shift, a sink "
                          "logit, dropped tokens or mass");
    if (kv_attend_simple(&a->view) && a->view.head_dim % 4 == 0)
        wrong = wide ? launch<2 * TILE, true>(a) : launch<TILE, true>(a);
    else
        wrong = wide ? launch<2 * TILE, false>(a) : launch<TILE, false>(a);
    return wrong ? kv_fail(e, "attention of %zu tokens: %s", a->view.n, wrong)
                 : 0;
}
