/* The search of nearest.h over V_WIDTH vectors, or centers, side by side, in
 * the order and rounding of the distance s.  A lane is a vector of a tile if
 * all centers are searched, else a center of a block.  Included by avx2.c and
 * avx512.c after their kernels/simd header and
 *
 *   SEARCH_SIDE(d)   registers of vectors that are searched together, 1, 2 or
 *                    4: as many as fit beside their d dimensions */
#include "kernels/nearest/impl.h"

#include <math.h>

/* Up to FEW vectors are searched faster with the centers side by side. */
enum { FEW = 4 };

/* Searches vectors [0, p * V_WIDTH) of the tile.  d and p are constants. */
ALWAYS_INLINE void search(const float *tile, size_t d, size_t p,
                          const float *centers, size_t k, uint16_t *code,
                          float *dist)
{
    vf32 x[4][KV_NEAREST_MAX_D], best[4];
    vi32 at[4];
    int32_t lane[V_WIDTH];

    UNROLL
    for (size_t g = 0; g < p; g++) {
        best[g] = v_set1(INFINITY);
        at[g] = v_set1_i32(0);
        for (size_t j = 0; j < d; j++)
            x[g][j] = v_load(tile + j * KV_TILE + g * V_WIDTH);
    }
    for (size_t c = 0; c < k; c++) {
        vf32 s[4];

        UNROLL
        for (size_t g = 0; g < p; g++)
            s[g] = v_set1(0);
        for (size_t j = 0; j < d; j++) {
            const vf32 cj = v_set1(centers[c * d + j]);

            UNROLL
            for (size_t g = 0; g < p; g++) {
                const vf32 t = v_sub(x[g][j], cj);

                s[g] = v_fmadd(t, t, s[g]);
            }
        }
        UNROLL
        for (size_t g = 0; g < p; g++)
            v_keep_min(s[g], v_set1_i32((int32_t)c), &best[g], &at[g]);
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        v_store(dist + g * V_WIDTH, best[g]);
        v_store_i32(lane, at[g]);
        for (size_t i = 0; i < V_WIDTH; i++)
            code[g * V_WIDTH + i] = (uint16_t)lane[i];
    }
}

ALWAYS_INLINE void search_tile(const float *tile, size_t n, size_t d,
                               const float *centers, size_t k, uint16_t *code,
                               float *dist)
{
    size_t i = 0;

    if (SEARCH_SIDE(d) == 4)
        for (; i + 3 * V_WIDTH < n; i += 4 * V_WIDTH)
            search(tile + i, d, 4, centers, k, code + i, dist + i);
    if (SEARCH_SIDE(d) >= 2)
        for (; i + V_WIDTH < n; i += 2 * V_WIDTH)
            search(tile + i, d, 2, centers, k, code + i, dist + i);
    for (; i < n; i += V_WIDTH)
        search(tile + i, d, 1, centers, k, code + i, dist + i);
}

ALWAYS_INLINE void closer(const float *tile, size_t d, const float *center,
                          float *dist)
{
    for (size_t i = 0; i < KV_TILE; i += V_WIDTH) {
        vf32 s = v_set1(0);

        for (size_t j = 0; j < d; j++) {
            const vf32 t =
                v_sub(v_load(tile + j * KV_TILE + i), v_set1(center[j]));

            s = v_fmadd(t, t, s);
        }
        v_store(dist + i, v_min(s, v_load(dist + i)));
    }
}

/* ---- a block of centers -------------------------------------------------- */

/* The distances s of V_WIDTH centers and the vector at x. */
ALWAYS_INLINE vf32 distances(const float *centers, const float *x, size_t d)
{
    vf32 s = v_set1(0);

    for (size_t j = 0; j < d; j++) {
        const vf32 t =
            v_sub(v_set1(x[j * KV_TILE]), v_load(centers + j * KV_BLOCK));

        s = v_fmadd(t, t, s);
    }
    return s;
}

/* The distances s of all centers of a block. */
struct block {
    vf32 s[KV_BLOCK / V_WIDTH];
};

ALWAYS_INLINE struct block block_of(const struct kv_centroids *b, int32_t block,
                                    const float *x, size_t d)
{
    const float *centers = b->block + (size_t)block * d * KV_BLOCK;
    struct block of;

    UNROLL
    for (size_t g = 0; g < KV_BLOCK / V_WIDTH; g++)
        of.s[g] = distances(centers + g * V_WIDTH, x, d);
    return of;
}

ALWAYS_INLINE vf32 min_lanes(const struct block *of)
{
    vf32 min = of->s[0];

    UNROLL
    for (size_t g = 1; g < KV_BLOCK / V_WIDTH; g++)
        min = v_min(of->s[g], min);
    return min;
}

/* The first center of the block at this distance; any center when the distance
 * is NaN. */
ALWAYS_INLINE uint16_t first_at(const struct block *of, int32_t block,
                                float dist)
{
    unsigned equal = 0;

    UNROLL
    for (size_t g = 0; g < KV_BLOCK / V_WIDTH; g++)
        equal |= v_eq_bits(of->s[g], v_set1(dist)) << g * V_WIDTH;
    return (uint16_t)(block * KV_BLOCK + __builtin_ctz(equal | 1u << KV_BLOCK));
}

/* The nearest center of one block for each of four vectors. */
ALWAYS_INLINE void decide_four(const struct kv_centroids *b,
                               const int32_t *block, const float *x, size_t d,
                               uint16_t *code, float *dist)
{
    struct block of[4];
    vf32 min[4];

    UNROLL
    for (size_t i = 0; i < 4; i++) {
        of[i] = block_of(b, block[i], x + i, d);
        min[i] = min_lanes(&of[i]);
    }
    v_min4(min, dist);
    UNROLL
    for (size_t i = 0; i < 4; i++)
        code[i] = first_at(&of[i], block[i], dist[i]);
}

/* The nearest of all centers. */
ALWAYS_INLINE void decide_all(const struct kv_centroids *b, const float *x,
                              size_t d, uint16_t *code, float *dist)
{
    float s[V_WIDTH];
    int32_t at[V_WIDTH];
    vf32 best = v_set1(INFINITY);
    vi32 group = v_set1_i32(0);

    for (size_t c = 0; c < b->k; c += V_WIDTH)
        v_keep_min(
            distances(b->block + c / KV_BLOCK * d * KV_BLOCK + c % KV_BLOCK, x,
                      d),
            v_set1_i32((int32_t)c), &best, &group);
    v_store(s, best);
    v_store_i32(at, group);
    *code = 0;
    *dist = INFINITY;
    for (size_t i = 0; i < V_WIDTH; i++) {
        const size_t c = (size_t)at[i] + i;

        if (s[i] < *dist || (s[i] <= *dist && c < *code)) {
            *dist = s[i];
            *code = (uint16_t)c;
        }
    }
}

/* The nearest center of each vector i < n: within block[i] if bit i of `sure`
 * is set, else among all.  Vectors are processed in fours, so some beyond n are
 * decided too. */
ALWAYS_INLINE void decide_tile(const struct kv_centroids *b, const float *tile,
                               size_t n, size_t d, const int32_t *block,
                               uint64_t sure, uint16_t *code, float *dist)
{
    for (size_t i = 0; i < n; i += 4) {
        const unsigned four = sure >> i & 15;

        if (four)
            decide_four(b, block + i, tile + i, d, code + i, dist + i);
        for (size_t j = i; four != 15 && j < i + 4 && j < n; j++)
            if (!(four >> (j - i) & 1))
                decide_all(b, tile + j, d, code + j, dist + j);
    }
}

/* ---- a group of blocks --------------------------------------------------- */

/* The smallest s of a group, lane by lane. */
ALWAYS_INLINE vf32 min_of_group(const struct kv_centroids *b, const float *tile,
                                size_t size, size_t d, struct kv_pair pair)
{
    const size_t end = kv_group_end(b, size, pair.group);
    vf32 min = v_set1(INFINITY);

    for (size_t at = pair.group * size; at < end; at++) {
        const struct block of = block_of(b, (int32_t)at, tile + pair.vector, d);

        min = v_min(min_lanes(&of), min);
    }
    return min;
}

/* min_of_group() for n pairs, four at a time; the last pair repeats to fill the
 * last four. */
ALWAYS_INLINE void min_of_groups(const struct kv_centroids *b,
                                 const float *tile, size_t size, size_t d,
                                 const struct kv_pair *pair, size_t n,
                                 float *min)
{
    for (size_t i = 0; i < n; i += 4) {
        vf32 of[4];
        float four[4];

        UNROLL
        for (size_t j = 0; j < 4; j++)
            of[j] =
                min_of_group(b, tile, size, d, pair[i + j < n ? i + j : n - 1]);
        v_min4(of, four);
        for (size_t j = 0; j < 4 && i + j < n; j++)
            min[i + j] = four[j];
    }
}

ALWAYS_INLINE uint16_t first_of_group(const struct kv_centroids *b,
                                      const float *tile, size_t size, size_t d,
                                      struct kv_pair pair, float s)
{
    const size_t end = kv_group_end(b, size, pair.group);
    size_t at = pair.group * size;

    for (; at < end; at++) {
        const struct block of = block_of(b, (int32_t)at, tile + pair.vector, d);
        const uint16_t c = first_at(&of, (int32_t)at, s);

        if (c < (at + 1) * KV_BLOCK)
            return c;
    }
    return 0;
}
