/* The layout of kvquant's codes (kernels/levels/levels.h) on the device, for
 * the kernels (cuda.cuh) and the packing of tiles (cuda_pack.c).
 *
 * A tile of 64 tokens is 2 steps of 32, codes as in scaled.h:
 *
 *   keys    | angles | ends | rest | 0 | pairs | places |  of the tile
 *           | codes |                                      of a step
 *   values  | unit f32 | 1 / unit f32 | rest | 0 | ends | outliers |
 *           | codes | scales f16 [32] | offsets f16 [32] |
 *
 * A token's channels i and i + head_dim / 2 are a pair, which RoPE turns.
 * Angles are the first token's, f32 [head_dim / 2] in [-pi, pi].
 *
 * An outlier's code is the nearest one; the tile stores more = outlier -
 * dequantized code in a list.  In keys' lists it is already rotated:
 *
 *   pairs   u32 [CAPACITY + PAD]: addends of channel i (low) and of its
 *           partner, halves
 *   places  u16 [CAPACITY + PAD]: KV_LEVELS_TOKEN(token) | the offset of the
 *           queries' pair, in bytes from row 0's first
 *
 * in the order of tokens.  An outlier of values is
 *
 *   u32 [CAPACITY + PAD]: KV_LEVELS_CHANNEL(channel) | token / 2 % 16 << 5 |
 *           KV_LEVELS_EVEN, of an even token | step |
 *           more * by * unit, half << 16
 *
 * in the order of steps, then of channels / 16.  8 zeros or more end a list.
 * Ends, u16, are where outliers of 16 tokens (keys, [4]) or of 16 channels
 * (values, [2][head_dim / 16]) end.
 *
 * Outliers beyond the tile's capacity are stored after all tiles of the KV
 * head, in lists of the same layout, padded with zeros to a multiple of 8:
 * rest, u32, is their offset from the first tile in units of 16 bytes.
 *
 * scales * unit, more * by * unit (by: the factor of the table's values): unit
 * is the power of two, at most 2^60, that brings the tile's largest of these
 * into [2^14, 2^15).  Scales and offsets are
 * [token % 8][token / 16][token / 8 % 2].
 *
 * The table of a KV head's keys:
 *
 *   | all pairs of codes as halves | ranges | turns | shares |
 *
 *   ranges  [head_dim / 16][4][4]: of channels 8 g + 2 c and + 1, and of their
 *           partners, two halves a word: | half | offset | half | offset |,
 *           times the factor that rounds a pair's to halves best
 *   turns   [4][head_dim / 16][lane][4]: of the same channels, for tokens
 *           16 m + r and 16 m + r + 8 from a tile's first on:
 *           | cosines | sines | cosines | sines |
 *   shares  f32 [head_dim / 2]: 1 / this factor: queries' pairs are multiplied
 *           and outliers' pairs divided by it
 *
 * and the table of values: | all pairs of codes | their factor, f32 |. */
#ifndef KV_LEVELS_CUDA_CODES_H
#define KV_LEVELS_CUDA_CODES_H

#include "kernels/scaled/cuda.h"

/* Head dimension, bits of both sides. */
/* (128, 4) takes 176 KB of shared memory, too much for compute capability
 * 8.0. */
#define KV_LEVELS_KERNELS(X) \
    X(64, 2) X(64, 3) X(64, 4) X(128, 2) X(128, 3) X(128, 4)

/* CAPACITY: the maximum number of outliers stored in a tile, 1.5 % of 128
 * channels, which leaves shared memory for two blocks.  PAD: the zeros after
 * them. */
enum {
    KV_LEVELS_TILE = 64,
    KV_LEVELS_STEP = 32,
    KV_LEVELS_CAPACITY = 120,
    KV_LEVELS_PAD = 8
};

/* The bits of a tile's token in a key's `places` entry; the other bits hold the
 * offset.  An AND with one of the masks extracts either. */
#define KV_LEVELS_TOKEN(t) ((t) % 8 | (t) / 8 << 12)
enum { KV_LEVELS_TOKENS = 0x7007, KV_LEVELS_PLACE = 0x0ff8 };

/* The fields of a value's outlier: channel and step; pair of tokens, times 32;
 * the shift of an even token's half. */
#define KV_LEVELS_CHANNEL(c) ((c) << 9)
enum { KV_LEVELS_ROWS = 0xfe01, KV_LEVELS_TWO = 0x1e0, KV_LEVELS_EVEN = 16 };

/* One side, passed to kernels by value. */
struct kv_gpu_levels_params {
    struct kv_gpu_scaled scaled;
    size_t apart;      /* bytes from one KV head's table to the next's */
    unsigned capacity; /* a multiple of 8 */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Returns false for ranges beyond 2^13, whose rotated values would overflow
 * halves. */
bool kv_gpu_levels_open(struct kv_gpu_side *side);
unsigned kv_gpu_levels_bits(const struct kv_store *s);
struct kv_gpu_levels_params kv_gpu_levels_of(const struct kv_gpu_side *side);

#ifdef __cplusplus
}
#endif

#endif
