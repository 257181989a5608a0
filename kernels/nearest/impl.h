/* The versions of the search behind nearest.h; for nearest*.c alone. */
#ifndef KV_NEAREST_IMPL_H
#define KV_NEAREST_IMPL_H

#include "kernels/nearest/nearest.h"

typedef void kv_nearest_fn(const struct kv_centroids *b, const float *tile,
                           size_t n, uint16_t *code, float *dist);
typedef void kv_closer_fn(const float *tile, size_t d, const float *center,
                          float *dist);
typedef void kv_least_fn(const struct kv_centroids *b, const float *tile,
                         size_t size, const struct kv_pair *pair, size_t n,
                         float *least);
typedef uint16_t kv_first_fn(const struct kv_centroids *b, const float *tile,
                             size_t size, struct kv_pair pair, float s);
typedef uint64_t kv_among_fn(const struct kv_centroids *b, const float *tile,
                             size_t first, size_t size, const uint16_t *group,
                             size_t n, uint16_t *code, float *reach,
                             float *gap);
typedef uint64_t kv_below_fn(const float *a, const float *b, float c, size_t n);

/* The blocks of a group end before this one. */
static inline size_t kv_group_end(const struct kv_centroids *b, size_t size,
                                  size_t group)
{
    const size_t end = (group + 1) * size;
    const size_t all = (b->k + KV_BLOCK - 1) / KV_BLOCK;

    return end < all ? end : all;
}

/* X(d) for every dimension that a level has a search of its own for. */
#define KV_EVERY_D(X) \
    X(1)              \
    X(2)              \
    X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
_Static_assert(KV_NEAREST_MAX_D == 16 && KV_TILE == 64,
               "KV_EVERY_D, the unrolling");

kv_nearest_fn kv_tile_nearest_c, kv_tile_nearest_avx2, kv_tile_nearest_avx512;

/* For a codebook with `whole`; dist may be NULL. */
kv_nearest_fn kv_tile_whole_avx2, kv_tile_whole_vnni;

kv_closer_fn kv_tile_closer_c, kv_tile_closer_avx2, kv_tile_closer_avx512;
kv_least_fn kv_tile_least_c, kv_tile_least_avx2, kv_tile_least_avx512;
kv_first_fn kv_tile_first_c, kv_tile_first_avx2, kv_tile_first_avx512;
kv_among_fn kv_tile_among_c, kv_tile_among_avx2, kv_tile_among_vnni;
kv_below_fn kv_bits_below_c, kv_bits_below_avx2, kv_bits_below_avx512;

#endif
