/* Products with codes of HACK in the order of hack_steps.h, of sizes that are
 * known when it runs.
 *
 * A block's rows, 8 NT of them, are quantized like the queries and weights of
 * lib/schemes/hack_attend.c and meet 16 lines at a time on tensor cores, 32
 * codes or the 16 that a partition has left:
 *
 *   scores of a step     rows: queries    lines: tokens
 *   results              rows: weights    lines: channels
 *
 * Integer products are exact; eq. 4 (hack.cuh) is evaluated in f32. */
#ifndef KV_HACK_CUDA_STEPS_CUH
#define KV_HACK_CUDA_STEPS_CUH

#include "kernels/hack/cuda.cuh"
#include "kernels/hack/cuda_steps.h"
#include "kernels/hack/hack.h"
#include "kernels/integers/cuda_quantizers.cuh"

/* From one row of so many bytes to the next in shared memory: 8 rows' words lie
 * in different banks. */
static __host__ __device__ unsigned kv_hack_apart(unsigned bytes)
{
    return bytes / 16 % 2 ? bytes : bytes + 16;
}

/* Bytes of a step in shared memory. */
static __host__ __device__ size_t kv_hack_step_room(const kv_hack_steps &h)
{
    return (size_t)h.lines * kv_hack_apart(kv_hack_line_bytes(&h)) +
           (size_t)6 * h.parts * h.lines;
}

/* Starts the copy of a step, by the whole block. */
KV_DEVICE void kv_hack_fetch(const kv_hack_steps &h, uint8_t *to,
                             const uint8_t *step)
{
    const unsigned line = kv_hack_line_bytes(&h);
    const unsigned each = line / 16, apart = kv_hack_apart(line);
    const unsigned codes = h.lines * each, ranges = 6 * h.parts * h.lines / 16;
    const kv_place place = kv_place_of(to);

    for (unsigned i = threadIdx.x; i < codes; i += blockDim.x)
        kv_copy_async(place + i / each * apart + i % each * 16,
                      step + (size_t)i * 16);
    for (unsigned i = threadIdx.x; i < ranges; i += blockDim.x)
        kv_copy_async(place + h.lines * apart + i * 16,
                      step + ((size_t)codes + i) * 16);
}

/* The rows that a step is multiplied with, in shared memory. */
struct kv_hack_rows {
    uint8_t *code;          /* a byte each, [rows][kv_hack_apart(codes)] */
    kv_hack_column *column; /* [parts][rows] */
    unsigned n;             /* rows */

    static __host__ __device__ size_t bytes(const kv_hack_steps &h, unsigned n)
    {
        return (size_t)n *
               (kv_hack_apart(h.codes) + h.parts * sizeof(kv_hack_column));
    }
    __device__ kv_hack_rows(uint8_t *shared, const kv_hack_steps &h, unsigned n)
        : code(shared), column(reinterpret_cast<kv_hack_column *>(
                            shared + n * kv_hack_apart(h.codes))),
          n(n)
    {
    }
};

/* The random number of one value. */
struct kv_hack_draw {
    bool any;
    uint64_t key, counter;

    __device__ float operator()(void) const
    {
        return kv_random_unit(key, counter);
    }
};

/* A row's codes, by a warp: x, so many values of `part` each; the first one's
 * number is `first`, the next one's `next` further.  To the same codes as
 * quantize() of kernels/hack/hack.h. */
KV_DEVICE void kv_hack_quantize_part(const kv_hack_steps &h, const float *x,
                                     unsigned part, unsigned row,
                                     const kv_hack_draw &first, uint64_t next,
                                     const kv_hack_rows &to)
{
    uint8_t *const code =
        to.code + row * kv_hack_apart(h.codes) + part * h.part;
    const unsigned n = kv_hack_part_values(&h, part);
    float low = __builtin_huge_valf(), high = -low, sum = 0;

    x += part * h.part;
    for (unsigned j = kv_lane(); j < n; j += 32) {
        low = fminf(low, x[j]);
        high = fmaxf(high, x[j]);
    }
    for (unsigned mask = 1; mask < 32; mask *= 2) {
        low = fminf(low, kv_shuffle_xor(low, mask));
        high = fmaxf(high, kv_shuffle_xor(high, mask));
    }

    const float scale = (high - low) / h.top;

    for (unsigned j = kv_lane(); j < n; j += 32) {
        const kv_hack_draw draw = {first.any, first.key,
                                   first.counter + (part * h.part + j) * next};
        const unsigned c =
            scale > 0 ? kv_hack_rounded(x[j], low, scale, h.top, draw) : 0;

        code[j] = (uint8_t)c;
        sum += (float)c;
    }
    for (unsigned mask = 1; mask < 32; mask *= 2)
        sum += kv_shuffle_xor(sum, mask);
    if (kv_lane() == 0)
        to.column[part * to.n + row] = {scale, low,
                                        fmaf(scale, sum, (float)n * low)};
}

/* x += eq. 4 of rows 8 i and on and lines 16 m and on of a step, over the first
 * so many partitions; x: fragment c of gpu.cuh, its rows the lines. */
KV_DEVICE void kv_hack_product(const kv_hack_steps &h, const uint8_t *step,
                               unsigned m, const kv_hack_rows &rows, unsigned i,
                               unsigned parts, float *x)
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
    const unsigned apart = kv_hack_apart(kv_hack_line_bytes(&h));
    const unsigned row_apart = kv_hack_apart(h.codes);
    const unsigned plane = h.parts * h.lines, width = 8 >> h.runs;
    const uint32_t mask = ((1u << width) - 1) * 0x01010101u;
    const uint8_t *line = step + (16 * m + r) * apart + 4 * c;
    const uint8_t *row = rows.code + (8 * i + r) * row_apart + 4 * c;
    const uint16_t *range =
        reinterpret_cast<const uint16_t *>(step + h.lines * apart) + 16 * m + r;
    const kv_hack_column *column = rows.column + 8 * i + 2 * c;
    unsigned run = 0;

    for (unsigned part = 0; part < parts; part++) {
        const unsigned end = run + (kv_hack_part_values(&h, part) + 15) / 16;
        int product[4] = {};

        while (run < end) {
            uint32_t a[4] = {}, b[2] = {};

#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (run == end)
                    break;

                const unsigned in = run % (1u << h.runs) * width;
                const uint8_t *at = line + (run >> h.runs) * 16;

                a[2 * k] = kv_load4(at) >> in & mask;
                a[2 * k + 1] = kv_load4(at + 8 * apart) >> in & mask;
                b[k] = kv_load4(row + run * 16);
                run++;
            }
            kv_mma_u8u8(product, a, b);
        }
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const uint16_t *at = range + k / 2 * 8;

            x[k] = kv_hack_combine(column[k % 2], kv_low_f16(at[0]),
                                   kv_low_f16(at[plane]), (float)at[2 * plane],
                                   product[k], x[k]);
        }
        range += h.lines;
        column += rows.n;
    }
}

/* Rows of scores: those of a fragment's columns lie in different banks. */
static __host__ __device__ unsigned kv_hack_scores_apart(unsigned tokens)
{
    return tokens + 4;
}

/* s [rows][kv_hack_scores_apart()]: scores of a step's tokens, by the whole
 * block. */
KV_DEVICE void kv_hack_scores(const kv_hack_steps &k, const uint8_t *step,
                              const kv_hack_rows &queries, float scale,
                              float *s)
{
    const unsigned tiles = k.lines / 16, apart = kv_hack_scores_apart(k.tokens);

    for (unsigned job = kv_warp(); job < tiles * queries.n / 8;
         job += KV_WARPS) {
        const unsigned m = job % tiles, i = job / tiles;
        const unsigned t = 16 * m + kv_lane() / 4;
        const unsigned row = 8 * i + kv_lane() % 4 * 2;
        float x[4] = {};

        kv_hack_product(k, step, m, queries, i, k.parts, x);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            s[(row + j % 2) * apart + t + j / 2 * 8] = x[j] * scale;
    }
}

/* A row's scores of n tokens become weights, by a warp, relative to the largest
 * score that the row has seen; sees(t): whether it sees token t.  Gives what
 * weights so far are to be multiplied by. */
template <class F>
KV_DEVICE float kv_hack_weigh(float *s, unsigned n, const F &sees, float &max,
                              float &sum)
{
    float top = max, added = 0;

    for (unsigned t = kv_lane(); t < n; t += 32) {
        if (!sees(t))
            s[t] = KV_NONE;
        top = fmaxf(top, s[t]);
    }
    for (unsigned mask = 1; mask < 32; mask *= 2)
        top = fmaxf(top, kv_shuffle_xor(top, mask));

    const float shift = top == KV_NONE ? 0 : top;
    const float factor = kv_exp2(max - shift);

    for (unsigned t = kv_lane(); t < n; t += 32) {
        s[t] = kv_exp2(s[t] - shift);
        added += s[t];
    }
    for (unsigned mask = 1; mask < 32; mask *= 2)
        added += kv_shuffle_xor(added, mask);
    max = top;
    sum = fmaf(sum, factor, added);
    return factor;
}

/* Results, fragments c whose rows are channels: a warp has those of 16 m for m
 * of its own number and 8 further. */
enum { KV_HACK_TILES = 2 };

template <int NT> struct kv_hack_results {
    float o[KV_HACK_TILES][NT][4];
};

/* factor: [rows], of kv_hack_weigh(). */
template <int NT>
KV_DEVICE void kv_hack_rescale(const float *factor, kv_hack_results<NT> &x)
{
#pragma unroll
    for (int j = 0; j < KV_HACK_TILES; j++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                x.o[j][i][k] *= factor[8 * i + kv_lane() % 4 * 2 + k % 2];
}

/* Adds weights times values of a step's first so many partitions. */
template <int NT>
KV_DEVICE void kv_hack_gather(const kv_hack_steps &v, const uint8_t *step,
                              const kv_hack_rows &weights, unsigned parts,
                              kv_hack_results<NT> &x)
{
#pragma unroll
    for (int j = 0; j < KV_HACK_TILES; j++) {
        const unsigned m = kv_warp() + j * KV_WARPS;

        if (m < v.lines / 16)
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_hack_product(v, step, m, weights, i, parts, x.o[j][i]);
    }
}

/* Calls f(row, channel, x) for each of a thread's results. */
template <int NT, class F>
KV_DEVICE void kv_hack_each(const kv_hack_steps &v,
                            const kv_hack_results<NT> &x, const F &f)
{
#pragma unroll
    for (int j = 0; j < KV_HACK_TILES; j++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned c =
                    16 * (kv_warp() + j * KV_WARPS) + kv_lane() / 4 + k / 2 * 8;

                if (c < v.head_dim)
                    f(8 * i + kv_lane() % 4 * 2 + k % 2, c, x.o[j][i][k]);
            }
}

#endif
