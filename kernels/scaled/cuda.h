/* The layout of codes with scales on the device, for the kernels (cuda.cuh) and
 * the packing of their tiles (cuda_pack.c).
 *
 * A tile of 128 tokens is 128 / T steps:
 *
 *   | unit f32 | 1 / unit f32 | 0 | 0 |    of the tile, where there are scales
 *   | codes | scales |                     of a step
 *
 * Codes of a step are a matrix, of tokens x channels (keys) or channels x
 * tokens (values).  A pair is a word of fragment a of gpu.cuh: a row's codes in
 * two neighbouring columns, the first one low.  In a step a lane reads a string
 * of pairs without gaps,
 *
 *   keys    [T / 16][head_dim / 16][4 words of the fragment]
 *   values  [head_dim / 16][T / 16][4 words]
 *
 * and a step is the lanes' strings in pieces of 16 (8) bytes:
 * [pieces][lane][16].  Codes of 8 bits are halves already, of another
 * exponent: two pairs are a word, the first one's codes in the low bytes of its
 * halves, the second one's in the high bytes.
 *
 * Scales are halves of scale * unit: unit is a power of two that makes the
 * tile's largest at least 2^14 and less than 2^15, 2^60 at most.  A scale that
 * the scheme stores in a byte has 3 bits of mantissa or none; here it is a byte
 * too, bits 7 to 14 of the half.  A group's are a vector over the step's
 * tokens:
 *
 *   keys    [token % 8][token / 16][token / 8 % 2]
 *   values  [token / 2 % 4][token / 8][token % 2] */
#ifndef KV_SCALED_CUDA_H
#define KV_SCALED_CUDA_H

#include "kernels/cuda/families.h"

/* Bits of a code; channels that are guaranteed to share a scale; bytes of a
 * scale. */
/* clang-format off */
#define KV_SCALED_SIDES(X, D)                            \
    X(D, 2, 32, 2) X(D, 3, 32, 2)                        \
    X(D, 4, 32, 2) X(D, 4, 32, 1) X(D, 4, 16, 1)         \
    X(D, 8, 32, 0) X(D, 8, 32, 1) X(D, 8, 32, 2)
#define KV_SCALED_KERNELS(X) \
    KV_SCALED_SIDES(X, 64) KV_SCALED_SIDES(X, 128) KV_SCALED_SIDES(X, 256)
/* clang-format on */

/* Tokens of a step, chosen so that a lane's codes are whole pieces. */
#define KV_SCALED_STEP(bits) ((bits) == 3 ? 32 : 128 / (bits))

/* One side, passed to kernels by value. */
struct kv_gpu_scaled {
    const uint8_t *table; /* up to 4 bits: halves of all pairs of codes */
    float times;          /* the factor of all values */
    unsigned shift;       /* a group is 2^shift channels */
    unsigned step_bytes;
    /* 8 bits: shift and mask that turn exponent and mantissa into a half. */
    unsigned right, mask;
};

/* The sizes of a side that select its kernel in the list. */
struct kv_gpu_scaled_kind {
    unsigned bits, per, scale;
};

/* The layout of a step's codes. */
struct kv_gpu_bitstream {
    bool values;
    size_t bits, head_dim, tokens; /* sizes of a step */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Puts the code of token t of the step and channel c into a step of zeros. */
void kv_gpu_put_code(const struct kv_gpu_bitstream *s, size_t t, size_t c,
                     unsigned code, uint8_t *to);
/* The index of token t's scale in keys' vector for a step of n tokens. */
size_t kv_gpu_key_scale(size_t t, size_t n);
/* The factor in [1, 2) that brings n numbers closest to halves. */
float kv_gpu_half_factor(const float *x, size_t n);
/* Writes to [n][n], all pairs of a table's n entries as halves, the first one
 * low.  Returns the factor that multiplies them. */
float kv_gpu_pair_table(const float *table, size_t n, uint32_t *to);
/* A power of two that makes `max` at least 2^14 and less than 2^15; 2^60 at
 * most. */
float kv_gpu_unit(float max);

bool kv_gpu_scaled_open(struct kv_gpu_side *side);
struct kv_gpu_scaled_kind kv_gpu_scaled_kind_of(const struct kv_store *s);
struct kv_gpu_scaled kv_gpu_scaled_of(const struct kv_gpu_side *side);

#ifdef __cplusplus
}
#endif

#endif
