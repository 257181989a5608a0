#include "kernels/cuda/views.h"

#include "kernels/cuda/gpu.cuh"

// A block takes TILE queries of a head and passes over the keys TILE at a time.
// Thread (y, x) of 16 by 16 has queries 4 y + i, keys x + 16 j, and of the
// values the channels 4 x + k of each 64.
enum { TILE = 64, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE };
// Rows of P: a 16-byte multiple that puts rows 4 apart on other banks.
enum { P_ROW = TILE + 4 };

enum { FRESH, SETTLED, FORMS };

// Rows of keys or values: reads along a row by kv_four meet no bank twice.
template <int C> struct kv_forms_room {
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

// What the block's queries see of TILE keys from j0 on: bit 1 << form.
KV_DEVICE unsigned kv_forms_of(const kv_gpu_forms_side &s, unsigned least,
                               unsigned most, unsigned j0)
{
    if (!s.quantized || !s.unquantized)
        return s.quantized ? 1u << SETTLED : 1u << FRESH;
    if (j0 >= most || j0 + TILE <= s.sinks)
        return 1u << FRESH;
    return j0 >= s.sinks && j0 + TILE <= least ? 1u << SETTLED
                                               : 1u << SETTLED | 1u << FRESH;
}

KV_DEVICE bool kv_sees(const kv_gpu_forms_side &s, unsigned seen, int form,
                       unsigned i, unsigned j)
{
    return seen == 1u << form ||
           (form == SETTLED) == (j >= s.sinks && j < s.until[i]);
}

// Least and most of until over queries [i0, i1), the same in every thread.
KV_DEVICE void kv_until(const kv_gpu_forms_side &s, unsigned i0, unsigned i1,
                        unsigned *least, unsigned *most)
{
    *least = ~0u;
    *most = 0;
    for (unsigned i = i0; i < i1 && s.quantized && s.unquantized; i++) {
        *least = min(*least, s.until[i]);
        *most = max(*most, s.until[i]);
    }
}

// Channels [c0, c0 + C) of rows [first, first + TILE) on their way into to;
// rows from `end` on are the last one again, channels from d on are zeros.
template <int C>
KV_DEVICE void kv_load_rows(const float *from, size_t stride, unsigned first,
                            unsigned end, unsigned c0, unsigned d, float *to)
{
    constexpr unsigned row_bytes = kv_forms_room<C>::row * sizeof(float);
    const unsigned c = threadIdx.x * 4 % C;

#pragma unroll 4
    for (unsigned r = threadIdx.x * 4 / C; r < TILE; r += THREADS * 4 / C) {
        const unsigned row = min(first + r, end - 1);
        const uint32_t zero[4] = {};

        if (c0 + c < d)
            kv_copy_async(kv_place_of(to) + r * row_bytes + c * sizeof(float),
                          from + row * stride + c0 + c);
        else
            kv_store16(to + r * kv_forms_room<C>::row + c, zero);
    }
}

// All that was loaded is there, for all threads.
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
    constexpr int row = kv_forms_room<C>::row;
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
    constexpr int row = kv_forms_room<C>::row;
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

// x over the SIDE threads that share queries.
KV_DEVICE float kv_row_most(float x)
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

// Block (x, head): x counts the C channels of the output that it makes, then
// the windows, then the tiles of queries, of which the longest come first.
template <int C>
__global__ void __launch_bounds__(THREADS, 2)
    kv_forms_kernel(kv_gpu_forms f, unsigned tiles, unsigned slices)
{
    kv_forms_room<C> *const room =
        reinterpret_cast<kv_forms_room<C> *>(kv_shared());
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const unsigned c0 = blockIdx.x % slices * C, d = (unsigned)f.head_dim;
    const size_t window = blockIdx.x / slices % f.n_windows;
    const unsigned tile = (unsigned)(blockIdx.x / slices / f.n_windows);
    const unsigned i0 = (unsigned)f.first + (tiles - 1 - tile) * TILE;
    const unsigned i1 = min(i0 + TILE, (unsigned)f.end);
    const unsigned kv_head = blockIdx.y / (unsigned)(f.n_heads / f.n_kv_heads);
    const size_t q_row = f.n_heads * d, kv_row = f.n_kv_heads * d;
    const size_t q_at = window * f.n * q_row + blockIdx.y * d;
    const size_t kv_at = window * f.n * kv_row + kv_head * d;
    float out[EACH][C / SIDE] = {}, max_[EACH], sum[EACH] = {};
    unsigned k_least, k_most, v_least, v_most;

    kv_until(f.k, i0, i1, &k_least, &k_most);
    kv_until(f.v, i0, i1, &v_least, &v_most);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        max_[i] = -__builtin_huge_valf();

    for (unsigned j0 = 0; j0 < i1; j0 += TILE) {
        const unsigned k_seen = kv_forms_of(f.k, k_least, k_most, j0);
        const unsigned v_seen = kv_forms_of(f.v, v_least, v_most, j0);

        // Each form of the keys by itself: those that a query sees in the other
        // one have no weight.  Queries beyond the last are the last again; they
        // are not stored.
#pragma unroll 1
        for (int form = 0; form < FORMS; form++) {
            const float *keys = form == FRESH ? f.k.unquantized : f.k.quantized;
            float s[EACH][EACH] = {};

            if (!(k_seen >> form & 1))
                continue;
#pragma unroll 1
            for (unsigned c = 0; c < d; c += C) {
                kv_sync_block();
                kv_load_rows<C>(keys + kv_at, kv_row, j0, (unsigned)f.n, c, d,
                                room->kv);
                if (d > C || j0 == 0)
                    kv_load_rows<C>(f.q + q_at, q_row, i0, i1, c, d, room->q);
                kv_loaded();
                kv_add_scores<C>(room->q, room->kv, min(d - c, (unsigned)C), s);
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const unsigned last = min(i0 + EACH * y + i, i1 - 1);
                float most = max_[i];

#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const unsigned key = j0 + x + SIDE * j;

                    s[i][j] =
                        key <= last && kv_sees(f.k, k_seen, form, last, key)
                            ? s[i][j] * (f.scale * 1.44269504f)
                            : -__builtin_huge_valf();
                    most = fmaxf(most, s[i][j]);
                }
                most = kv_row_most(most);

                // before anything was seen: weights and sums of zero
                const float from = most > -__builtin_huge_valf() ? most : 0;
                const float by = kv_exp2(max_[i] - from);

                max_[i] = most;
                sum[i] *= by;
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    s[i][j] = kv_exp2(s[i][j] - from);
                    sum[i] += s[i][j];
                }
#pragma unroll
                for (int c = 0; c < C / SIDE; c++)
                    out[i][c] *= by;
            }
#pragma unroll 1
            for (int v_form = 0; v_form < FORMS; v_form++) {
                const float *values =
                    v_form == FRESH ? f.v.unquantized : f.v.quantized;

                if (!(v_seen >> v_form & 1))
                    continue;
                kv_sync_block();
                kv_load_rows<C>(values + kv_at, kv_row, j0, (unsigned)f.n, c0,
                                d, room->kv);
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < EACH; j++) {
                        const unsigned last = min(i0 + EACH * y + i, i1 - 1);
                        const unsigned key = j0 + x + SIDE * j;

                        room->p[(EACH * y + i) * P_ROW + x + SIDE * j] =
                            kv_sees(f.v, v_seen, v_form, last, key) ? s[i][j]
                                                                    : 0;
                    }
                kv_loaded();
                kv_add_values<C>(room->p, room->kv, out);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const unsigned row = i0 + EACH * y + i;
        const float all = kv_row_sum(sum[i]);

#pragma unroll
        for (int c = 0; c < C / SIDE; c++) {
            const unsigned channel = c0 + c / 4 * TILE + 4 * x + c % 4;

            if (row < i1 && channel < d)
                f.out[q_at + row * q_row + channel] = out[i][c] / all;
        }
    }
}

template <int C> static const char *launch(const struct kv_gpu_forms *f)
{
    const unsigned tiles = (unsigned)((f->end - f->first + TILE - 1) / TILE);
    const unsigned slices = (unsigned)((f->head_dim + C - 1) / C);
    const dim3 grid((unsigned)(tiles * f->n_windows * slices),
                    (unsigned)f->n_heads);

    return kv_launch(kv_forms_kernel<C>, grid, dim3(THREADS),
                     sizeof(kv_forms_room<C>), 0, *f, tiles, slices);
}

extern "C" int kv_gpu_attend_forms(const struct kv_gpu_forms *f,
                                   struct kv_err *e)
{
    const char *wrong;

    if (f->head_dim % 4)
        return kv_fail(e,
                       "no CUDA kernel of attention for head_dim %zu: a "
                       "multiple of 4 is expected",
                       f->head_dim);
    wrong = f->head_dim > TILE ? launch<2 * TILE>(f) : launch<TILE>(f);
    return wrong ? kv_fail(e, "attention of %zu tokens: %s", f->n, wrong) : 0;
}
