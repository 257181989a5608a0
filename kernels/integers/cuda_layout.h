/* Integers on the device: the order of their codes and scales, for readers
 * (cuda.cuh, cuda_int8.cuh) and writers (cuda_pack.c, cuda_append.cu).
 *
 * A tile of 128 tokens is 128 / T pieces of T tokens; path exact has T = 128 /
 * bits; path int8, which takes codes of 8 bits alone, has T = 32:
 *
 *   | unit f32 | 1 / unit f32 | 0 | 0 |    of the tile: folded, path exact
 *   | [heads] |                            of the tile, or
 *   | codes [T][head_dim] | [heads] |      of a piece
 *
 * Heads are, group by group, | scales | lows | rests |: vectors of halves, over
 * the channels for a group of tokens, over the piece's tokens for a group of
 * channels.  Lows are the values of code 0.  If lows are products of zeros and
 * scales, rests are the difference between lows and their halves.  One zero for
 * all groups (KV_OFFSET_SAME) makes lows a multiple of the scales: then only
 * scales are stored, except for groups of tokens on path exact, which have few
 * heads.  The tile holds the heads if groups of tokens are longer than a piece.
 *
 * Path exact.  Codes of a piece are a matrix, of tokens x channels (keys) or
 * channels x tokens (values).  A pair is a row's columns 8 p + 2 c and + 1,
 * lane c's part of fragment a of gpu.cuh.  A word is 16 / bits pairs p of a row
 * in order: pair j's codes stand at bits j * bits of its two halves.  Rows r
 * and r + 8 of 16 are side by side, and lane 4 r + c reads four words at a
 * time:
 *
 *   [word / 4][lane][word % 4], word: [row / 16][p * bits / 16][row / 8 % 2]
 *
 * A field among a half's low 10 bits, masked in place, is the subnormal half
 * code * 2^(e - 24), where e is its first bit; this is exact, and products
 * accept it.  Higher fields are first shifted down.  The factor of the pair
 * includes 2^-e.
 *
 *   folded     a group is one column: its scale multiplies the factor (keys in
 *              groups of tokens, values in groups of channels).  scales: scale
 *              * unit * 2^-e; unit is a power of two that makes the tile's
 *              largest scale at least 2^14 and less than 2^15, and is stored
 *              times 2^-24, a code's.  A vector over columns:
 *              [p / 4][c][p % 4] words, or [c][p] where p < 4
 *   unfolded   a group is one row: its scale multiplies the sum (keys in
 *              groups of channels).  A vector over rows:
 *              [row % 8][row / 16][row / 8 % 2] halves
 *
 * Path int8.  A code is a signed byte: the code minus 128, or minus the zero if
 * all groups share one.  Codes are fragments a of gpu.cuh, 16 bytes of a lane
 * each:
 *
 *   keys    [token / 16][channel / 32][lane][16]: a lane's columns 4c .. and
 *           4c + 16 .. are the 8 channels from 8c on
 *   values  [channel / 16][lane][16]: columns 4c .. 4c + 3 are tokens 2c,
 *           2c + 8, 2c + 1, 2c + 9, columns 16 + 4c .. those 16 later
 *
 * A vector over channels is in channel order; a vector over tokens is ordered
 * like path exact's vectors over rows. */
#ifndef KV_INTEGERS_CUDA_LAYOUT_H
#define KV_INTEGERS_CUDA_LAYOUT_H

#include "kernels/cuda/decode.h"
#include "kernels/tiles/tiles.h"
#include "lib/base/rng.h"

#include <stdbool.h>
#include <string.h>

enum { KV_INT8_TOKENS = 32, KV_INT8_MIDDLE = 128, KV_UNIT_BYTES = 16 };

/* One side, passed to kernels by value. */
struct kv_gpu_integers_side {
    unsigned shift;    /* a group is 2^shift tokens (folded keys) or channels */
    unsigned n_groups; /* groups whose heads are stored together */
    unsigned heads;    /* bytes of one group's heads */
    unsigned lows;     /* where its lows begin in the heads; 0: no lows */
    float zero;        /* lows are not stored: low = -zero * scale */
    unsigned rests;    /* where its rests begin; 0: no rests */
    int in_head;       /* heads belong to the tile */
    unsigned head_bytes, piece_bytes; /* bytes of the tile, of a piece */

    /* for writers */
    bool int8, values, folded, of_tokens;
    unsigned bits, head_dim, tokens; /* sizes of a piece */
    int subtract;                    /* int8: bias of a byte */
};

/* The position of pair j's field in a word after it is shifted down, and the
 * number of bits of that shift. */
#define KV_FIELDS_LOW(bits) ((bits) == 8 ? 1 : 10 / (bits))
#define KV_FIELD_AT(bits, j) ((j) % KV_FIELDS_LOW(bits) * (bits))
#define KV_FIELD_SHIFT(bits, j) ((j) * (bits)-KV_FIELD_AT(bits, j))

KV_HOST_DEVICE static inline unsigned
kv_gpu_integers_code_bytes(const struct kv_gpu_integers_side *g)
{
    return g->tokens * g->head_dim * g->bits / 8;
}

/* Code k of word w of a piece: its token, channel and first bit in the word,
 * which has 32 / bits codes. */
struct kv_gpu_integers_code {
    unsigned t, c, bit;
};

KV_HOST_DEVICE static inline struct kv_gpu_integers_code
kv_gpu_integers_code(const struct kv_gpu_integers_side *g, unsigned w,
                     unsigned k)
{
    const unsigned r = w % 128 / 16, c = w / 4 % 4, block = w / 128;

    if (g->int8) {
        const unsigned parts = g->head_dim / 32, half = w % 4 / 2;
        const unsigned row = w % 2 * 8 + r;

        if (g->values)
            return (struct kv_gpu_integers_code){
                half * 16 + 2 * c + k % 2 * 8 + k / 2, block * 16 + row, 8 * k};
        return (struct kv_gpu_integers_code){
            block / parts * 16 + row, block % parts * 32 + c * 8 + half * 4 + k,
            8 * k};
    }

    const unsigned pairs = 16 / g->bits, i = block * 4 + w % 4;
    const unsigned words = (g->values ? g->tokens : g->head_dim) / 8 / pairs;
    const unsigned row = i / 2 / words * 16 + i % 2 * 8 + r;
    const unsigned column = (i / 2 % words * pairs + k / 2) * 8 + c * 2 + k % 2;

    return (struct kv_gpu_integers_code){g->values ? column : row,
                                         g->values ? row : column,
                                         k % 2 * 16 + k / 2 * g->bits};
}

/* The index of row i's half in a vector over n rows; of column i's half in a
 * vector of pairs. */
KV_HOST_DEVICE static inline unsigned kv_place_of_row(unsigned i, unsigned n)
{
    return (i % 8 * (n / 16) + i / 16) * 2 + i / 8 % 2;
}

KV_HOST_DEVICE static inline unsigned kv_place_of_column(unsigned i, unsigned n)
{
    const unsigned pair = i / 8, c = i % 8 / 2;
    const unsigned wide = n / 8 < 4 ? n / 8 : 4; /* words side by side */

    return (pair / wide * 4 * wide + c * wide + pair % wide) * 2 + i % 2;
}

/* Head i of a tile: a token and a channel of its group, the index of its scale,
 * and the power of two by which the scale is divided. */
struct kv_gpu_integers_head {
    unsigned t, c, at, exponent;
};

KV_HOST_DEVICE static inline unsigned
kv_gpu_integers_heads(const struct kv_gpu_integers_side *g)
{
    return (g->in_head ? 1 : KV_GPU_TILE / g->tokens) * g->n_groups *
           (g->of_tokens ? g->head_dim : g->tokens);
}

KV_HOST_DEVICE static inline struct kv_gpu_integers_head
kv_gpu_integers_head(const struct kv_gpu_integers_side *g, unsigned i)
{
    const unsigned n = g->of_tokens ? g->head_dim : g->tokens, at = i % n;
    const unsigned group = i / n % g->n_groups, piece = i / n / g->n_groups;
    const unsigned first = piece * g->tokens, in_group = group << g->shift;
    const bool pairs = g->folded && !g->int8;
    const unsigned place = pairs                     ? kv_place_of_column(at, n)
                           : g->int8 && g->of_tokens ? at
                                                     : kv_place_of_row(at, n);
    const unsigned heads = g->in_head ? (pairs ? KV_UNIT_BYTES : 0)
                                      : g->head_bytes + piece * g->piece_bytes +
                                            kv_gpu_integers_code_bytes(g);

    return (struct kv_gpu_integers_head){
        first + (g->of_tokens ? in_group : at), g->of_tokens ? at : in_group,
        heads + group * g->heads + place * 2,
        pairs ? KV_FIELD_AT(g->bits, at / 8 % (16 / g->bits)) : 0};
}

/* The power of two that makes the largest scale 2^14 or more. */
KV_HOST_DEVICE static inline float kv_gpu_integers_unit(float max)
{
    uint32_t bits;
    float unit;

    memcpy(&bits, &max, sizeof(bits));
    bits = (127 + 15 + 126 - (max > 0 ? bits >> 23 : 126)) << 23;
    memcpy(&unit, &bits, sizeof(unit));
    return unit;
}

#ifdef __cplusplus
extern "C" {
#endif

struct kv_gpu_side;

/* Whether the device has this side on this path; fills in g. */
bool kv_gpu_integers_of(const struct kv_store *s, enum kv_path path,
                        struct kv_gpu_integers_side *g);

/* The open() of both paths' families (kernels/cuda/families.h). */
bool kv_gpu_integers_open(struct kv_gpu_side *side);
bool kv_gpu_integers_int8_open(struct kv_gpu_side *side);

#ifdef __cplusplus
}
#endif

#endif
