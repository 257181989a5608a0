/* RoPE (kernels/rope.h: pair i turns by position * inv_freq[i]) for keys that
 * are stored before it: a family's expand() applies it to the dequantized keys.
 */
#ifndef KV_TILES_ROPE_H
#define KV_TILES_ROPE_H

#include "kernels/rope.h"
#include "kernels/tiles/tiles.h"

struct kv_tiles_rope;

/* inv_freq: [pairs.n], copied.  Holds tables of about 4 KiB per pair; read only
 * afterwards, so threads share it. */
struct kv_tiles_rope *kv_tiles_rope_new(size_t head_dim,
                                        struct kv_rope_pairs pairs,
                                        const float *inv_freq);
void kv_tiles_rope_free(struct kv_tiles_rope *r); /* NULL is fine */

/* x: [head_dim][32], keys of positions [first, first + 32), in place.  The
 * first position's angle is as exact as in lib/rope_table.h (in double); the
 * following cosines and sines are sums of two products of floats, with an error
 * of at most 2e-7.  The same bits at every level. */
void kv_tiles_rope_rotate(const struct kv_tiles_rope *r, size_t first,
                          float *x);

/* The same angles for other implementations of RoPE.  Pair i <
 * kv_tiles_rope_pairs() of the key at first + t turns by two angles:
 * (cosine[i], sine[i]) and (within[i][0][t], within[i][1][t]).  cosine, sine:
 * [KV_ROPE_MAX]; within: [pairs][2][32]. */
enum { KV_ROPE_MAX = 256 /* pairs */ };
size_t kv_tiles_rope_pairs(const struct kv_tiles_rope *r);
/* Whether all pairs are channels i and i + head_dim / 2, so that RoPE turns a
 * whole head or nothing. */
bool kv_tiles_rope_halves(const struct kv_tiles_rope *r);
const float *kv_tiles_rope_within(const struct kv_tiles_rope *r);
void kv_tiles_rope_first(const struct kv_tiles_rope *r, size_t first,
                         float *cosine, float *sine);

/* to: [head_dim / 2][2], cosine and sine of each pair's angle at a position; 1
 * and 0 for pairs without RoPE. */
void kv_tiles_rope_angles(const struct kv_tiles_rope *r, size_t position,
                          float *to);

#endif
