/* The versions of the search behind nearest.h: a table for each level; for
 * kernels/nearest alone. */
#ifndef KV_NEAREST_IMPL_H
#define KV_NEAREST_IMPL_H

#include "kernels/nearest/nearest.h"

/* As the functions of nearest.h; `tile` never gets a NULL dist in plain C. */
struct kv_nearest_ops {
    void (*tile)(const struct kv_centroids *b, const float *tile, size_t n,
                 uint16_t *code, float *dist);
    void (*closer)(const float *tile, size_t d, const float *center,
                   float *dist);
    void (*min)(const struct kv_centroids *b, const float *tile, size_t size,
                const struct kv_pair *pair, size_t n, float *min);
    uint16_t (*first)(const struct kv_centroids *b, const float *tile,
                      size_t size, struct kv_pair pair, float s);
    uint64_t (*among)(const struct kv_centroids *b, const float *tile,
                      size_t first, size_t size, const uint16_t *group,
                      size_t n, uint16_t *code, float *reach, float *gap);
};

extern const struct kv_nearest_ops kv_nearest_c;
extern const struct kv_nearest_ops kv_nearest_avx2; /* x86-64 only */
extern const struct kv_nearest_ops kv_nearest_vnni; /* x86-64 only */

/* The end of a group's blocks (exclusive). */
static inline size_t kv_group_end(const struct kv_centroids *b, size_t size,
                                  size_t group)
{
    const size_t end = (group + 1) * size;
    const size_t all = (b->k + KV_BLOCK - 1) / KV_BLOCK;

    return end < all ? end : all;
}

/* X(label, name, d) for a switch over dimensions: common ones are constants;
 * all others share a loop. */
#define KV_EVERY_D(X, other_d) \
    X(case 1, 1, 1)            \
    X(case 2, 2, 2)            \
    X(case 4, 4, 4)            \
    X(case 8, 8, 8)            \
    X(default, other, other_d)
_Static_assert(KV_NEAREST_MAX_D <= 16 && KV_TILE == 64, "the unrolling");

#endif
