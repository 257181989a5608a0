/* The last step of a search: s of nearest.h, for the centers that are left.
 * Included by nearest_simd.h and nearest_whole.h beside the names of registers:
 *
 *   WIDTH              lanes
 *   vf, vi             WIDTH floats, WIDTH 32-bit integers
 *   v_load v_store v_all v_sub v_fma v_min    as they say
 *   v_least_four(a, b, c, d, to)   the least lane of each, to four floats
 *   v_equal(a, b)      a == b, a bit for each lane
 *   i_all i_store
 *   v_keep(s, c, &best, &at)   where s < best: best = s, at = c */
#include "kernels/nearest/impl.h"
#include "kernels/simd/unroll.h"

#include <math.h>

/* s of WIDTH centers and the vector at x. */
ALWAYS_INLINE vf distances(const float *centers, const float *x, size_t d)
{
    vf s = v_all(0);

    UNROLL
    for (size_t j = 0; j < d; j++) {
        const vf t =
            v_sub(v_all(x[j * KV_TILE]), v_load(centers + j * KV_BLOCK));

        s = v_fma(t, t, s);
    }
    return s;
}

/* s of all centers of a block. */
struct block {
    vf s[KV_BLOCK / WIDTH];
};

ALWAYS_INLINE struct block block_of(const struct kv_centroids *b, int32_t block,
                                    const float *x, size_t d)
{
    const float *centers = b->block + (size_t)block * d * KV_BLOCK;
    struct block of;

    UNROLL
    for (size_t g = 0; g < KV_BLOCK / WIDTH; g++)
        of.s[g] = distances(centers + g * WIDTH, x, d);
    return of;
}

ALWAYS_INLINE vf least_lanes(const struct block *of)
{
    vf least = of->s[0];

    UNROLL
    for (size_t g = 1; g < KV_BLOCK / WIDTH; g++)
        least = v_min(of->s[g], least);
    return least;
}

/* The first center of the block at this distance; any when it is NaN. */
ALWAYS_INLINE uint16_t first_at(const struct block *of, int32_t block,
                                float dist)
{
    unsigned equal = 0;

    UNROLL
    for (size_t g = 0; g < KV_BLOCK / WIDTH; g++)
        equal |= v_equal(of->s[g], v_all(dist)) << g * WIDTH;
    return (uint16_t)(block * KV_BLOCK + __builtin_ctz(equal | 1u << KV_BLOCK));
}

/* The nearest center of one block for each of four vectors. */
ALWAYS_INLINE void decide_four(const struct kv_centroids *b,
                               const int32_t *block, const float *x, size_t d,
                               uint16_t *code, float *dist)
{
    struct block of[4];

    UNROLL
    for (size_t i = 0; i < 4; i++)
        of[i] = block_of(b, block[i], x + i, d);
    v_least_four(least_lanes(&of[0]), least_lanes(&of[1]), least_lanes(&of[2]),
                 least_lanes(&of[3]), dist);
    UNROLL
    for (size_t i = 0; i < 4; i++)
        code[i] = first_at(&of[i], block[i], dist[i]);
}

/* The nearest of all centers. */
ALWAYS_INLINE void decide_all(const struct kv_centroids *b, const float *x,
                              size_t d, uint16_t *code, float *dist)
{
    float s[WIDTH];
    int32_t at[WIDTH];
    vf best = v_all(INFINITY);
    vi group = i_all(0);

    for (size_t c = 0; c < b->k; c += WIDTH)
        v_keep(distances(b->block + c / KV_BLOCK * d * KV_BLOCK + c % KV_BLOCK,
                         x, d),
               i_all((int32_t)c), &best, &group);
    v_store(s, best);
    i_store(at, group);
    *code = 0;
    *dist = INFINITY;
    for (size_t i = 0; i < WIDTH; i++) {
        const size_t c = (size_t)at[i] + i;

        if (s[i] < *dist || (s[i] <= *dist && c < *code)) {
            *dist = s[i];
            *code = (uint16_t)c;
        }
    }
}

/* At most so few vectors are better off with all centers side by side. */
enum { FEW = 4 };

/* By block and sure of find_block.  Fours are whole: some beyond n are decided
 * too. */
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
