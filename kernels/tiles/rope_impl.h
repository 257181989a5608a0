/* The loops of tiles_rope.h for one instruction set; for tiles_rope*.c alone.
 */
#ifndef KV_TILES_ROPE_IMPL_H
#define KV_TILES_ROPE_IMPL_H

#include "kernels/tiles/rope.h"

enum { KV_ROPE_DIGITS = 4 };

/* Cosines and sines [n_rot] of angles that are sums of KV_ROPE_DIGITS angles;
 * each digit: [2][n_rot], their cosines and sines. */
typedef void kv_tiles_first_fn(const double *const digit[KV_ROPE_DIGITS],
                               size_t n_rot, float *cosine, float *sine);

kv_tiles_first_fn kv_tiles_first_c, kv_tiles_first_avx2, kv_tiles_first_avx512;

/* cosine, sine: [n_rot], of the first token's angles; within: [n_rot][2][32],
 * of the angles from the first token on.  x: [head_dim][32], half =
 * head_dim / 2. */
typedef void kv_tiles_turn_fn(const float *cosine, const float *sine,
                              const float *within, size_t n_rot, size_t half,
                              float *x);

kv_tiles_turn_fn kv_tiles_turn_c, kv_tiles_turn_avx2, kv_tiles_turn_avx512;

#endif
