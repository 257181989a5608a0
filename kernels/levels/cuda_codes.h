/* How kvquant's codes (kernels/levels/levels.h) lie on the device, for the
 * kernels (cuda.cuh) and for who packs their tiles (cuda_pack.c).
 *
 * A tile of 64 tokens is 2 steps of 32, codes as in scaled.h:
 *
 *   keys    | angles | ends | rest | 0 | pairs | places |  of the tile
 *           | codes |                                      of a step
 *   values  | unit f32 | 1 / unit f32 | rest | 0 | ends | outliers |
 *           | codes | scales f16 [32] | offsets f16 [32] |
 *
 * A token's channels i and i + head_dim / 2 are a pair, which RoPE turns.
 * Angles are those of the tile's first token, f32 [head_dim / 2] in [-pi, pi].
 *
 * Outliers have the code that is nearest to them; apart is what they are more
 * than it stands for.  Keys' are turned already:
 *
 *   pairs   u32 [room + 8]: what it adds to channel i (low) and to its partner,
 *           halves
 *   places  u16 [room + 8]: KV_LEVELS_TOKEN(token) | where queries have the
 * pair, in bytes from row 0's first
 *
 * in the order of tokens.  Values' are
 *
 *   u32 [room + 8]: KV_LEVELS_CHANNEL(channel) | token / 2 % 16 << 5 |
 *           KV_LEVELS_EVEN, of an even token | step | more * by * unit, half <<
 * 16
 *
 * in the order of steps, then of channels / 16.  8 zeros or more end a list.
 * Ends, u16, are where outliers of 16 tokens (keys, [4]) or of 16 channels
 * (values, [2][head_dim / 16]) end.
 *
 * Outliers that there is no room for are behind all tiles of the KV head, in
 * lists like these, which zeros make a multiple of 8: rest, u32, says where, in
 * 16 bytes from the first tile.
 *
 * scales * unit, more * by * unit (by: what the table's values were
 * multiplied by): unit is the power of two that makes the largest
 * of the tile's at least 2^14 and less than 2^15, 2^60 at most.  Scales and
 * offsets are [token % 8][token / 16][token / 8 % 2].
 *
 * The table of a KV head's keys:
 *
 *   | all pairs of codes as halves | ranges | turns | shares |
 *
 *   ranges  [head_dim / 16][4][4]: of channels 8 g + 2 c and + 1, and of their
 *           partners, two halves a word: | half | offset | half | offset |,
 *           times what brings those of a pair of channels closest to halves
 *   turns   [4][head_dim / 16][lane][4]: of the same channels, for tokens
 *           16 m + r and 16 m + r + 8 from a tile's first on:
 *           | cosines | sines | cosines | sines |
 *   shares  f32 [head_dim / 2]: what the queries' pairs are to be multiplied by
 *           for that; outliers' pairs are divided by it
 *
 * and of values | all pairs of codes | what these were multiplied by, f32 |. */
#ifndef KV_LEVELS_CUDA_CODES_H
#define KV_LEVELS_CUDA_CODES_H

#include "kernels/scaled/cuda.h"

/* Head dimension, bits of both sides. */
/* (128, 4) takes 176 KB of shared memory: not on compute capability 8.0. */
#define KV_LEVELS_KERNELS(X) \
    X(64, 2) X(64, 3) X(64, 4) X(128, 2) X(128, 3) X(128, 4)

/* ROOM: outliers of a tile at most that come with it, 1.5 % of 128 channels:
 * so many leave shared memory for two blocks.  PAD: zeros behind them. */
enum {
    KV_LEVELS_TILE = 64,
    KV_LEVELS_STEP = 32,
    KV_LEVELS_CAPACITY = 120,
    KV_LEVELS_PAD = 8
};

/* A token of a tile in a key's place, the rest of which is in the bits between:
 * both are there for an AND. */
#define KV_LEVELS_TOKEN(t) ((t) % 8 | (t) / 8 << 12)
enum { KV_LEVELS_TOKENS = 0x7007, KV_LEVELS_PLACE = 0x0ff8 };

/* The same of a value's outlier: channel and step; pair of tokens, times 32;
 * what it is to be shifted by. */
#define KV_LEVELS_CHANNEL(c) ((c) << 9)
enum { KV_LEVELS_ROWS = 0xfe01, KV_LEVELS_TWO = 0x1e0, KV_LEVELS_EVEN = 16 };

/* What kernels are given of a side, by value. */
struct kv_gpu_levels_params {
    struct kv_gpu_scaled scaled;
    size_t apart;      /* bytes from one KV head's table to the next's */
    unsigned capacity; /* a multiple of 8 */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Not for ranges beyond 2^13, which halves have no room to turn. */
bool kv_gpu_levels_open(struct kv_gpu_side *side);
unsigned kv_gpu_levels_bits(const struct kv_store *s);
struct kv_gpu_levels_params kv_gpu_levels_of(const struct kv_gpu_side *side);

#ifdef __cplusplus
}
#endif

#endif
