/* Codes of HACK on the device, for readers (cuda.cuh, cuda_any.cuh) and writers
 * (cuda_pack.c, cuda_arrange.cu).
 *
 * A piece is T tokens of a KV head, a multiple of 16, as lines of codes; inner
 * products run along lines (lib/schemes/hack.h): a line of keys is a token, its
 * codes are channels; a line of values is a channel, its codes are tokens.
 *
 *   | fragments of codes | [part][scale, minimum, sum of codes][lines] |
 *
 * A fragment a of gpu.cuh has codes of 16 lines (its rows) and of 32 values of
 * one part (its columns), zeros behind the part's last value and the last line:
 *
 *   keys    [lines / 16][fragments of a line]
 *   values  [fragments of a line][lines / 16]
 *
 * For keys, four columns 4c to 4c + 3 (16 more in a[2], a[3]) are the channels
 * in order; for values they are tokens 2c, 2c + 8, 2c + 1, 2c + 9 of 16, the
 * order of transposed weights.
 *
 * A register of a fragment is 4 codes, one in each byte, of `width` bits: 2, 4
 * or 8.  8 / width registers share a word: register i is (word >> width i) &
 * mask; a fragment of 4 registers is width / 2 words.  A lane's words stand in
 * groups of 4, in the order fragment, word:
 *
 *   [group][lane][4 words]
 *
 * Scales and minima are f16, sums u16.  Among 16 lines, lines 0 and 8 are
 * adjacent, then 1 and 9: a word belongs to rows r and r + 8. */
#ifndef KV_HACK_CUDA_LAYOUT_H
#define KV_HACK_CUDA_LAYOUT_H

#include "kernels/cuda/decode.h"
#include "kernels/hack/layout.h"
#include "lib/base/rng.h"

#include <stdbool.h>

enum { KV_HACK_ANY_PART = 256 /* maximum values of a part */ };

/* One side, passed to kernels by value. */
struct kv_gpu_hack_side {
    bool values, stochastic;
    unsigned head_dim, tokens; /* sizes of a piece */
    unsigned part, parts;      /* values of a part; parts of a line */
    unsigned lines;            /* a multiple of 16 */
    unsigned width;            /* bits of a stored code */
    float top;                 /* 2^q_bits - 1 */
    uint64_t key;              /* seed, stream and layer, mixed */
};

/* The number of values of a part; the last part of keys may have fewer. */
KV_HOST_DEVICE static inline unsigned
kv_gpu_hack_part_len(const struct kv_gpu_hack_side *h, unsigned part)
{
    const unsigned along = h->values ? h->tokens : h->head_dim;
    const unsigned left = along - part * h->part;

    return left < h->part ? left : h->part;
}

/* The number of fragments of n values; of all parts of a line. */
KV_HOST_DEVICE static inline unsigned kv_gpu_hack_fragments(unsigned n)
{
    return (n + 31) / 32;
}

KV_HOST_DEVICE static inline unsigned
kv_gpu_hack_line(const struct kv_gpu_hack_side *h)
{
    const unsigned last = h->parts - 1;

    return last * kv_gpu_hack_fragments(h->part) +
           kv_gpu_hack_fragments(kv_gpu_hack_part_len(h, last));
}

KV_HOST_DEVICE static inline unsigned
kv_gpu_hack_code_bytes(const struct kv_gpu_hack_side *h)
{
    const unsigned words =
        h->lines / 16 * kv_gpu_hack_line(h) * h->width / 2; /* a lane's bytes */

    return (words + 3) / 4 * 512;
}

KV_HOST_DEVICE static inline size_t
kv_gpu_hack_piece_bytes(const struct kv_gpu_hack_side *h)
{
    return kv_gpu_hack_code_bytes(h) + (size_t)6 * h->parts * h->lines;
}

/* The position of a value: its token in the piece, its channel and, for a code,
 * its first bit in the word.  For a range, the index of its scale among the
 * piece's halves; the minimum and the sum are `lines` and 2 * `lines` further
 * on.  none: padding. */
struct kv_gpu_hack_value {
    bool none;
    unsigned t, c, at;
};

KV_HOST_DEVICE static inline struct kv_gpu_hack_value
kv_gpu_hack_value_of(const struct kv_gpu_hack_side *h, unsigned line,
                     unsigned z, unsigned at)
{
    const struct kv_gpu_hack_value v = {
        line >= (h->values ? h->head_dim : h->tokens), h->values ? z : line,
        h->values ? line : z, at};

    return v;
}

/* Code k of word w of a piece, which has 32 / width codes. */
KV_HOST_DEVICE static inline struct kv_gpu_hack_value
kv_gpu_hack_code(const struct kv_gpu_hack_side *h, unsigned w, unsigned k)
{
    const unsigned lane = w % 128 / 4, c = lane % 4, byte = k % 4;
    const unsigned each = h->width / 2, i = w / 128 * 4 + w % 4;
    const unsigned reg = i % each * (8 / h->width) + k / 4, n = i / each;
    const unsigned blocks = h->lines / 16, line = kv_gpu_hack_line(h);
    const unsigned m = h->values ? n % blocks : n / line;
    const unsigned f = h->values ? n / blocks : n % line;
    const unsigned of_part = kv_gpu_hack_fragments(h->part), part = f / of_part;
    const unsigned in =
        h->values ? byte % 2 * 8 + c * 2 + byte / 2 : c * 4 + byte;
    const unsigned z = f % of_part * 32 + reg / 2 * 16 + in;
    struct kv_gpu_hack_value v =
        kv_gpu_hack_value_of(h, m * 16 + reg % 2 * 8 + lane / 4,
                             part * h->part + z, byte * 8 + k / 4 * h->width);

    v.none |= n >= line * blocks || z >= kv_gpu_hack_part_len(h, part);
    return v;
}

/* Range i of parts * lines: its first value. */
KV_HOST_DEVICE static inline struct kv_gpu_hack_value
kv_gpu_hack_range(const struct kv_gpu_hack_side *h, unsigned i)
{
    const unsigned line = i % h->lines, part = i / h->lines;
    const unsigned pair = line / 16 * 16 + line % 8 * 2 + line % 16 / 8;

    return kv_gpu_hack_value_of(h, line, part * h->part,
                                kv_gpu_hack_code_bytes(h) / 2 +
                                    part * 3 * h->lines + pair);
}

struct kv_gpu_side;

#ifdef __cplusplus
extern "C" {
#endif

/* Pieces of `tokens` tokens, a multiple of values' parts.  seed: for the random
 * numbers of queries and weights. */
struct kv_gpu_hack_side kv_gpu_hack_side_of(const struct kv_tile_hack *h,
                                            bool values, size_t head_dim,
                                            size_t tokens, uint64_t seed);

/* The functions of an open side (kernels/cuda/families.h). */
bool kv_gpu_hack_open(struct kv_gpu_side *side);
struct kv_gpu_hack_side kv_gpu_hack_params(const struct kv_gpu_side *side,
                                           uint64_t seed);

/* The same functions for the generic kernel, which takes any sizes; a piece is
 * a tile. */
void kv_gpu_hack_open_generic(struct kv_gpu_side *side);
struct kv_gpu_hack_side
kv_gpu_hack_params_generic(const struct kv_gpu_side *side, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
