/* The versions of the search behind nearest.h; for nearest*.c alone. */
#ifndef KV_NEAREST_IMPL_H
#define KV_NEAREST_IMPL_H

#include "kernels/nearest.h"

enum { KV_BLOCK = 16 }; /* centers of a block of struct kv_codebook */

typedef void kv_nearest_fn(const struct kv_codebook *b, const float *tile,
                           size_t n, uint16_t *code, float *dist);
typedef void kv_closer_fn(const float *tile, size_t d, const float *center,
                          float *dist);

kv_nearest_fn kv_tile_nearest_c, kv_tile_nearest_avx2, kv_tile_nearest_avx512;
kv_closer_fn kv_tile_closer_c, kv_tile_closer_avx2, kv_tile_closer_avx512;

#endif
