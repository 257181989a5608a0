/* The loop of tiles_rope.h for one instruction set; for tiles_rope*.c alone. */
#ifndef KV_TILES_ROPE_IMPL_H
#define KV_TILES_ROPE_IMPL_H

#include "kernels/tiles_rope.h"

enum { KV_ROPE_DIGITS = 4, KV_ROPE_MOST = 256 /* pairs */ };

/* The first token's angles are sums of KV_ROPE_DIGITS angles; each digit:
 * [2][n_rot], their cosines and sines.  within: [n_rot][2][32], of the angles
 * from the first token on.  x: [head_dim][32], half = head_dim / 2. */
typedef void kv_tiles_turn_fn(const double *const digit[KV_ROPE_DIGITS],
                              const float *within, size_t n_rot, size_t half,
                              float *x);

kv_tiles_turn_fn kv_tiles_turn_c, kv_tiles_turn_avx2, kv_tiles_turn_avx512;

#endif
