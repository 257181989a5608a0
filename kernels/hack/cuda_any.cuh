/* Products with HACK's codes in the order of cuda_layout.h, for sizes known at
 * run time.
 *
 * A block's rows, 8 NT of them, are quantized like the queries and weights of
 * lib/schemes/hack_attend.c.  Tensor cores multiply them with fragments of 16
 * lines:
 *
 *   scores of a piece    rows: queries    lines: tokens
 *   results              rows: weights    lines: channels
 *
 * Integer products are exact; eq. 4 (cuda.cuh) is evaluated in f32. */
#ifndef KV_HACK_CUDA_ANY_CUH
#define KV_HACK_CUDA_ANY_CUH

#include "kernels/hack/cuda.cuh"
#include "kernels/hack/cuda_layout.h"
#include "kernels/hack/hack.h"
#include "kernels/integers/cuda_quantizers.cuh"

/* Starts the copy of a piece to shared memory, by the whole block. */
KV_DEVICE void kv_hack_fetch(const kv_gpu_hack_side &h, uint8_t *to,
                             const uint8_t *pieces, size_t i)
{
    const unsigned bytes = (unsigned)kv_gpu_hack_piece_bytes(&h);
    const kv_place place = kv_place_of(to);

    pieces += i * bytes;
    for (unsigned at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16)
        kv_copy_async(place + at, pieces + at);
}

/* The rows that a piece is multiplied with, in shared memory. */
struct kv_hack_rows {
    uint8_t *code;          /* a byte each, [rows][apart(h)] */
    kv_hack_column *column; /* [parts][rows] */
    unsigned n;             /* rows */

    /* The distance from one row's codes to the next, chosen so that 8 rows'
     * words are in different banks.
     */
    static __host__ __device__ unsigned apart(const kv_gpu_hack_side &h)
    {
        return kv_gpu_hack_line(&h) * 32 + 16;
    }
    static __host__ __device__ size_t bytes(const kv_gpu_hack_side &h,
                                            unsigned n)
    {
        return (size_t)n * (apart(h) + h.parts * sizeof(kv_hack_column));
    }
    __device__ kv_hack_rows(uint8_t *shared, const kv_gpu_hack_side &h,
                            unsigned n)
        : code(shared),
          column(reinterpret_cast<kv_hack_column *>(shared + n * apart(h))),
          n(n)
    {
    }
};

/* The random number of value j in a part of queries or of weights; first: the
 * part's counter. */
struct kv_hack_draw {
    bool any, weights;
    uint64_t key, first;
    unsigned j;

    __device__ float operator()(void) const
    {
        return weights
                   ? kv_hack_weight_unit(kv_hack_weight_word(key, first, j), j)
                   : kv_random_unit(key, first + j * KV_HACK_NEXT_CHANNEL);
    }
};

/* The index of token t in a row of values, in the order of columns. */
KV_DEVICE unsigned kv_hack_place(unsigned t)
{
    return t / 16 * 16 + t % 8 / 2 * 4 + t % 2 * 2 + t % 16 / 8;
}

/* Makes a part of a row's codes, by a warp; x: the row's values; token: for
 * weights, the position of the row's first token.  The codes equal
 * quantize()'s in kernels/hack/hack.h. */
KV_DEVICE void kv_hack_quantize_part(const kv_gpu_hack_side &h, const float *x,
                                     unsigned part, unsigned row, uint64_t key,
                                     unsigned token, const kv_hack_rows &to)
{
    uint8_t *const code = to.code + row * kv_hack_rows::apart(h) +
                          part * kv_gpu_hack_fragments(h.part) * 32;
    const unsigned n = kv_gpu_hack_part_len(&h, part), at = part * h.part;
    const uint64_t first = h.values ? kv_hack_weight_counter(token + at, 0)
                                    : kv_hack_counter(0, at);
    float low = __builtin_huge_valf(), high = -low, sum = 0;

    x += at;
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
        const kv_hack_draw draw = {h.stochastic, h.values, key, first, j};
        const unsigned c =
            scale > 0 ? kv_hack_rounded(x[j], low, scale, h.top, draw) : 0;

        code[h.values ? kv_hack_place(j) : j] = (uint8_t)c;
        sum += (float)c;
    }
    for (unsigned mask = 1; mask < 32; mask *= 2)
        sum += kv_shuffle_xor(sum, mask);
    if (kv_lane() == 0)
        to.column[part * to.n + row] = {scale, low,
                                        fmaf(scale, sum, (float)n * low)};
}

/* Loads fragment n of a piece. */
KV_DEVICE void kv_hack_fragment(const kv_gpu_hack_side &h, const uint8_t *piece,
                                unsigned n, uint32_t *a)
{
    uint32_t word[4];

    if (h.width == 2) {
        kv_hack_words<1>(piece, (int)n, word);
        kv_hack_codes<2>(word, a);
    } else if (h.width == 4) {
        kv_hack_words<2>(piece, (int)n * 2, word);
        kv_hack_codes<4>(word, a);
    } else {
        kv_hack_words<4>(piece, (int)n * 4, word);
        kv_hack_codes<8>(word, a);
    }
}

/* Adds eq. 4 to x for rows from 8 i on and lines from 16 m on of a piece, over
 * its first `parts` parts; x: fragment c of gpu.cuh, whose rows are the
 * lines. */
KV_DEVICE void kv_hack_product(const kv_gpu_hack_side &h, const uint8_t *piece,
                               unsigned m, const kv_hack_rows &rows, unsigned i,
                               unsigned parts, float *x)
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
    const unsigned n = h.values ? m : m * kv_gpu_hack_line(&h);
    const unsigned next = h.values ? h.lines / 16 : 1;
    const uint8_t *row = rows.code + (8 * i + r) * rows.apart(h) + 4 * c;
    const uint32_t *range =
        reinterpret_cast<const uint32_t *>(piece + kv_gpu_hack_code_bytes(&h)) +
        m * 8 + r;
    const kv_hack_column *column = rows.column + 8 * i + 2 * c;
    unsigned f = 0; // the fragment of the line

    for (unsigned part = 0; part < parts; part++) {
        const unsigned end =
            f + kv_gpu_hack_fragments(kv_gpu_hack_part_len(&h, part));
        const uint32_t its[3] = {range[0], range[h.lines / 2], range[h.lines]};
        int product[4] = {};

        for (; f < end; f++) {
            const uint32_t b[2] = {kv_load4(row + f * 32),
                                   kv_load4(row + f * 32 + 16)};
            uint32_t a[4];

            kv_hack_fragment(h, piece, n + f * next, a);
            kv_mma_u8u8(product, a, b);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x[j] = kv_hack_combine<0>(column[j], its, product[j], x[j]);
            x[j + 2] =
                kv_hack_combine<1>(column[j], its, product[j + 2], x[j + 2]);
        }
        range += 3 * h.lines / 2;
        column += rows.n;
    }
}

/* The distance between rows of scores; the rows of a fragment's columns are in
 * different banks. */
static __host__ __device__ unsigned kv_hack_scores_apart(unsigned tokens)
{
    return tokens + 4;
}

/* Computes s [rows][kv_hack_scores_apart()], the scores of a piece's tokens, by
 * the whole block. */
KV_DEVICE void kv_hack_scores(const kv_gpu_hack_side &k, const uint8_t *piece,
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

        kv_hack_product(k, piece, m, queries, i, k.parts, x);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            s[(row + j % 2) * apart + t + j / 2 * 8] = x[j] * scale;
    }
}

/* A warp turns a row's scores of n tokens into weights, relative to the row's
 * largest score so far; sees(t): whether the row sees token t.  Returns the
 * factor for earlier weights. */
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

/* Results, fragments c whose rows are channels.  A warp has the fragments of
 * channels 16 m, for m = its number and its number + 8. */
enum { KV_HACK_TILES = 2 };

template <int NT> struct kv_hack_results {
    float o[KV_HACK_TILES][NT][4];
};

/* Multiplies the results by factor [rows], which kv_hack_weigh() returned. */
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

/* Adds weights times values of a piece's first `parts` parts. */
template <int NT>
KV_DEVICE void kv_hack_gather(const kv_gpu_hack_side &v, const uint8_t *piece,
                              const kv_hack_rows &weights, unsigned parts,
                              kv_hack_results<NT> &x)
{
#pragma unroll
    for (int j = 0; j < KV_HACK_TILES; j++) {
        const unsigned m = kv_warp() + j * KV_WARPS;

        if (m < v.lines / 16)
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_hack_product(v, piece, m, weights, i, parts, x.o[j][i]);
    }
}

/* Calls f(row, channel, x) for each of a thread's results. */
template <int NT, class F>
KV_DEVICE void kv_hack_each(const kv_gpu_hack_side &v,
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
