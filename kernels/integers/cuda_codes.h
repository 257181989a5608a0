/* How integers in groups lie on the device, for those who read tiles
 * (grouped.cuh) and who write them (grouped_pack.c).
 *
 * A tile of 128 tokens is 128 / T steps of T = 128 / bits tokens:
 *
 *   | unit f32 | 1 / unit f32 | 0 | 0 | [heads] |    folded sides: of the tile
 *   | codes, 16 bytes a channel | [heads] |          of a step
 *
 * Codes of a step are a matrix, of tokens x channels (keys) or channels x
 * tokens (values).  A pair is a row's columns 8 p + 2 c and + 1, what lane c of
 * four has of fragment a of gpu.cuh.  A word is 16 / bits pairs p of a row in
 * turn: pair j's codes stand at bits j * bits of its two halves.  Rows r and
 * r + 8 of 16 are side by side, and lane 4 r + c reads four words at a time:
 *
 *   [word / 4][lane][word % 4], word: [row / 16][p * bits / 16][row / 8 % 2]
 *
 * A field among a half's low 10 bits, masked where it stands, is the subnormal
 * half code * 2^(e - 24), e being where: exact, and products take it.  Fields
 * above are shifted down first.  2^-e goes into what meets the pair.
 *
 *   folded     a group is of one column: its step goes into what meets it
 *              (keys in groups of tokens, values in groups of channels).
 *              steps: step * unit * 2^-e; unit is a power of two that makes the
 *              tile's largest step at least 2^14 and less than 2^15, and is
 *              stored times 2^-24, a code's.  A vector over columns:
 *              [p / 4][c][p % 4] words, or [c][p] where p < 4
 *   unfolded   a group is of one row: its step multiplies the sum (keys in
 *              groups of channels).  A vector over rows:
 *              [row % 8][row / 16][row / 8 % 2] halves
 *
 * Heads are, group by group, | steps | lows | rests |: vectors of halves over a
 * group's columns or rows.  Lows are what code 0 stands for; rests what halves
 * leave of them where they are products, of zeros and steps.  One zero for all
 * (KV_OFFSET_SAME) makes lows a multiple of the steps: then there are but
 * steps, unless groups are of tokens, whose heads are few. */
#ifndef KV_INTEGERS_CUDA_CODES_H
#define KV_INTEGERS_CUDA_CODES_H

#include "kernels/tiles/tiles.h"

/* What kernels are given of a side, by value. */
struct kv_gpu_integers_side {
    unsigned shift;    /* a group is 2^shift tokens (folded keys) or channels */
    unsigned n_groups; /* whose heads lie in one place */
    unsigned heads;    /* bytes of the heads of one */
    unsigned lows;     /* where its lows begin in these; 0: there are none, */
    float zero;        /* they are -zero * step */
    unsigned rests;    /* where rests begin; 0: there are none */
    int in_head;       /* heads are the tile's: groups outlast a step */
    unsigned head_bytes, step_bytes;
};

/* Where the field of pair j of a word stands once it is shifted down, and by
 * how many bits that is. */
#define KV_FIELDS_LOW(bits) ((bits) == 8 ? 1 : 10 / (bits))
#define KV_FIELD_AT(bits, j) ((j) % KV_FIELDS_LOW(bits) * (bits))
#define KV_FIELD_SHIFT(bits, j) ((j) * (bits)-KV_FIELD_AT(bits, j))

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the device has this side; fills in g. */
int kv_gpu_integers_of(const struct kv_store *s, struct kv_gpu_integers_side *g);

#ifdef __cplusplus
}
#endif

#endif
