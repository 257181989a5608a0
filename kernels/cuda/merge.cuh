/* Merges partial results of decode attention: the warps' parts into the
 * block's, and the blocks' parts into the result. */
#ifndef KV_CUDA_MERGE_CUH
#define KV_CUDA_MERGE_CUH

#include "kernels/cuda/decode.h"
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/space.cuh"

/* How many of n rows, from the first on, belong to queries. */
KV_DEVICE unsigned kv_rows_asked(const kv_decode &p, unsigned first, unsigned n)
{
    const unsigned all = p.group * p.nq;

    return first < all ? min(n, all - first) : 0;
}

/* The position of the part of a split, KV head and group of rows: | max | sum |
 * o |.  d: head_dim, here and below a constant if the caller has one. */
KV_DEVICE float *kv_part(const kv_decode &p, unsigned split, unsigned d,
                         unsigned rows)
{
    const size_t floats = (size_t)rows * (d + 2);
    const size_t groups = gridDim.z, heads = gridDim.y;

    return p.parts +
           ((split * heads + blockIdx.y) * groups + blockIdx.z) * floats;
}

/* Merges the parts of the block's warps, at most W, in shared memory, into the
 * block's; weights are relative to the largest max. */
template <int D, int NT, unsigned W>
KV_DEVICE void kv_merge_warps(const float *warps, float *part)
{
    constexpr unsigned rows = 8 * NT, floats = rows * (D + 2);

    for (unsigned i = threadIdx.x; i < rows * D; i += blockDim.x) {
        const float *max = warps + i / D, *sum = max + rows;
        const float *o = warps + 2 * rows + i;
        float m = KV_NONE, l = 0, x = 0;

#pragma unroll
        for (unsigned k = 0; k < W; k++)
            if (k < kv_block_warps<W>())
                m = fmaxf(m, max[k * floats]);
#pragma unroll
        for (unsigned k = 0; k < W; k++)
            if (k < kv_block_warps<W>()) {
                const float w = max[k * floats] == KV_NONE
                                    ? 0
                                    : kv_exp2(max[k * floats] - m);

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

/* A row of the result: the largest max of its splits, 1 over the sum of all
 * weights relative to it, and the codes' share of this sum. */
struct kv_merged {
    float max, inverse, share;
};

/* A warp takes a row, a lane a split; each split is read once.  to: [rows]. */
KV_DEVICE void kv_weigh_splits(const kv_gpu_work &work, size_t apart,
                               unsigned rows, unsigned asked,
                               const float *parts, kv_merged *to)
{
    for (unsigned row = kv_warp(); row < asked; row += kv_block_warps()) {
        const float *const max = parts + row, *const sum = max + rows;
        float m = KV_NONE, l = 0, coded = 0;

#pragma unroll 2
        for (unsigned k = kv_lane(); k < work.n_splits; k += 32) {
            const float its = kv_load_written(max + k * apart);
            const float all = kv_load_written(sum + k * apart);
            const float top = fmaxf(m, its), shift = top == KV_NONE ? 0 : top;
            const float before = kv_exp2(m - shift);
            const float weight = kv_exp2(its - shift) * all;

            l = fmaf(l, before, weight);
            coded = fmaf(coded, before, k < work.n_coded ? weight : 0);
            m = top;
        }

        float top = m;

        for (unsigned mask = 1; mask < 32; mask *= 2)
            top = fmaxf(top, kv_shuffle_xor(top, mask));

        const float factor = kv_exp2(m - (top == KV_NONE ? 0 : top));

        l *= factor;
        coded *= factor;
        for (unsigned mask = 1; mask < 32; mask *= 2) {
            l += kv_shuffle_xor(l, mask);
            coded += kv_shuffle_xor(coded, mask);
        }
        if (kv_lane() == 0)
            to[row] = {top, 1 / l, coded / l};
    }
}

/* V channels of a part, 4 or 1. */
template <int V> KV_DEVICE void kv_load_channels(const float *p, float *x)
{
    if constexpr (V == 4) {
        const uint4 w = kv_load16_written(p);

        x[0] = kv_from_bits(w.x);
        x[1] = kv_from_bits(w.y);
        x[2] = kv_from_bits(w.z);
        x[3] = kv_from_bits(w.w);
    } else {
        x[0] = kv_load_written(p);
    }
}

/* Sums V channels over the splits first, first + step, .. below n_splits, each
 * split times its weight relative to m; o points to these channels in the first
 * split.  Splits below n_coded are added to coded [V], the others to plain [V].
 * Eight splits are loaded at a time. */
template <int V>
KV_DEVICE void kv_sum_splits(const kv_gpu_work &work, const float *max,
                             const float *o, size_t apart, float m,
                             unsigned first, unsigned step, float *coded,
                             float *plain)
{
    constexpr unsigned AT_ONCE = 8;

    for (unsigned k = first; k < work.n_splits; k += AT_ONCE * step) {
        float its[AT_ONCE], x[AT_ONCE][V];

#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) { /* past the end: the last
                                                  * split */
            const size_t at = min(k + i * step, work.n_splits - 1) * apart;

            its[i] = kv_load_written(max + at);
            kv_load_channels<V>(o + at, x[i]);
        }
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) {
            const unsigned split = k + i * step;
            const float weight = split < work.n_splits && its[i] != KV_NONE
                                     ? kv_exp2(its[i] - m)
                                     : 0;
            const float of_codes = split < work.n_coded ? weight : 0;
            const float of_others = weight - of_codes;

#pragma unroll
            for (int j = 0; j < V; j++) {
                coded[j] = fmaf(of_codes, x[i][j], coded[j]);
                plain[j] = fmaf(of_others, x[i][j], plain[j]);
            }
        }
    }
}

/* Calls put(i, coded, plain) for V channels from channel i of [asked][d] on.
 * coded is their sum over splits of codes, plain their sum over the other
 * splits plus the mean of decoded values.  `lanes` lanes, a power of two, share
 * the splits of V channels. */
template <int V, class F>
KV_DEVICE void kv_merge_channels(const kv_decode &p, const kv_gpu_work &work,
                                 size_t apart, unsigned d, unsigned rows,
                                 unsigned asked, const float *parts,
                                 const kv_merged *merged, const F &put)
{
    const unsigned n = asked * d / V; /* d is even, and a multiple of 4 if V is
                                       * 4 */
    unsigned lanes = 1;

    while (lanes < 8 && n * lanes * 2 <= blockDim.x)
        lanes *= 2;

    const unsigned each = 32 / lanes, part = kv_lane() / each;

    for (unsigned first = kv_warp() * each; first < n;
         first += kv_block_warps() * each) {
        const unsigned at = first + kv_lane() % each;
        const unsigned i = min(at, n - 1) * V, row = i / d;
        const float *const max = parts + row, *const o = parts + 2 * rows + i;
        const kv_merged its = merged[row];
        float coded[V] = {}, plain[V] = {};

        kv_sum_splits<V>(work, max, o, apart, its.max, part, lanes, coded,
                         plain);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float mean =
                p.mean ? p.mean[blockIdx.y * (size_t)d + i % d + j] : 0;

            for (unsigned mask = each; mask < 32; mask *= 2) {
                coded[j] += kv_shuffle_xor(coded[j], mask);
                plain[j] += kv_shuffle_xor(plain[j], mask);
            }
            coded[j] *= its.inverse;
            plain[j] = fmaf(plain[j], its.inverse, its.share * mean);
        }
        if (at < n && part == 0)
            put(i, coded, plain);
    }
}

/* Merges the splits' parts into the result; sums over codes are transformed out
 * of the codes' space.  V: channels that a thread reads at once, 1, or 4, which
 * then divides d.  Shared memory: | merged [rows] | codes' sums [rows][d] |
 * other sums [rows][d] |, the sums only if codes leave their space. */
template <int V>
KV_DEVICE void kv_merge_splits(const kv_decode &p, const kv_gpu_work &work,
                               unsigned d, unsigned rows)
{
    const size_t apart =
        (size_t)gridDim.y * gridDim.z * rows * (d + 2); /* split to split */
    const float *const parts = kv_part(p, work.first_split, d, rows);
    kv_merged *const merged = reinterpret_cast<kv_merged *>(kv_shared());
    float *const coded = reinterpret_cast<float *>(merged + rows);
    float *const plain = coded + rows * d;
    const unsigned asked = kv_rows_asked(p, blockIdx.z * rows, rows);
    const bool leaves = kv_is_space(p.leave);
    const auto out = [&](unsigned i) -> float & {
        const size_t row = blockIdx.z * rows + i / d;
        const size_t query = work.sequence * (size_t)p.nq + row / p.group;
        const size_t head = blockIdx.y * (size_t)p.group + row % p.group;

        return p.out[(query * p.group * gridDim.y + head) * d + i % d];
    };

    kv_weigh_splits(work, apart, rows, asked, parts, merged);
    kv_sync_block();
    kv_merge_channels<V>(
        p, work, apart, d, rows, asked, parts, merged,
        [&](unsigned i, const float *of_codes, const float *of_others) {
#pragma unroll
            for (int j = 0; j < V; j++)
                if (leaves) {
                    coded[i + j] = of_codes[j];
                    plain[i + j] = of_others[j];
                } else {
                    out(i + j) = of_codes[j] + of_others[j];
                }
        });
    if (!leaves)
        return;
    kv_sync_block();
    kv_change_space(p.leave, coded, asked, d,
                    [&](unsigned row, unsigned c, float x) {
                        if (row < asked)
                            out(row * d + c) = x + plain[row * d + c];
                    });
}

#endif
