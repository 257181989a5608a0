/* The search of nearest.h over WIDTH vectors, or centers, side by side.
 * Included by nearest_avx2.c and nearest_avx512.c, which name the registers:
 *
 *   those of nearest_decide.h, and
 *   v_add v_mul v_max  as they say
 *   v_fnma(a, b, c)    c - a b, rounded once
 *   v_above(a, b)      a > b, a bit for each lane
 *   v_below(a, b)      not a >= b, a bit for each lane
 *   GROUPS(d)          registers of vectors searched together, 1, 2 or 4: as
 *                      many as fit beside their d dimensions
 *   NAME(f)            f with the level's suffix
 *
 * Small codebooks are searched as the plain C does it, a lane for each vector.
 * For larger ones the s of nearest.h, two operations a dimension, is replaced
 * by the score
 *
 *   t = h;  for j = 0 .. d-1:  t = fma(-c[j], x[j], t)      h = |c|^2 / 2
 *
 * which is |x - c|^2 / 2 less |x|^2 / 2, but for rounding.  Only the least
 * score of each block of 16 centers counts, and of these the least and the
 * second: when they are further apart than rounding can explain, the nearest
 * center is in the first block, and s decides there.  Else s is computed for
 * all centers.
 *
 * What rounding can explain.  Let u = 2^-24, g = (d + 2) u / (1 - (d + 2) u),
 * X = |x|^2, M the largest |c|^2, D = |x - c|^2 without rounding.  Then
 *
 *   |s - D| <= g D                                     d + 2 factors (1 + u)
 *   |t - (D - X) / 2| <= g (|c|^2 / 2 + |x| |c|) <= g (M + X / 2)
 *
 * If a center a with s(a) <= s(b) were left out for a b of the first block,
 * D(a) - D(b) <= g (D(a) + D(b)), and D <= 2 (X + M), so that
 *
 *   t(a) - t(b) <= g (D(a) + D(b)) / 2 + 2 g (M + X / 2) <= g (3 X + 4 M)
 *
 * The search takes (d + 4) u (4 X + 4 M), which leaves room for the rounding of
 * X, M and of the comparison, and 2^-140 for what falls below the smallest
 * normal number.  Where 4 X + 4 M is infinite or NaN nothing is left out; else
 * no t and no s overflows. */
#include "kernels/nearest/decide.h"

/* Vectors [0, p * WIDTH) of the tile.  d and p are constants. */
ALWAYS_INLINE void search(const float *tile, size_t d, size_t p,
                          const float *centers, size_t k, uint16_t *code,
                          float *dist)
{
    vf x[4][KV_NEAREST_MAX_D], best[4];
    vi at[4];
    int32_t lane[WIDTH];

    UNROLL
    for (size_t g = 0; g < p; g++) {
        best[g] = v_all(INFINITY);
        at[g] = i_all(0);
        UNROLL
        for (size_t j = 0; j < d; j++)
            x[g][j] = v_load(tile + j * KV_TILE + g * WIDTH);
    }
    for (size_t c = 0; c < k; c++) {
        const vi index = i_all((int32_t)c);
        vf s[4];

        UNROLL
        for (size_t g = 0; g < p; g++)
            s[g] = v_all(0);
        UNROLL
        for (size_t j = 0; j < d; j++) {
            const vf cj = v_all(centers[c * d + j]);

            UNROLL
            for (size_t g = 0; g < p; g++) {
                const vf t = v_sub(x[g][j], cj);

                s[g] = v_fma(t, t, s[g]);
            }
        }
        UNROLL
        for (size_t g = 0; g < p; g++)
            v_keep(s[g], index, &best[g], &at[g]);
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        v_store(dist + g * WIDTH, best[g]);
        i_store(lane, at[g]);
        for (size_t i = 0; i < WIDTH; i++)
            code[g * WIDTH + i] = (uint16_t)lane[i];
    }
}

ALWAYS_INLINE void search_tile(const float *tile, size_t n, size_t d,
                               const float *centers, size_t k, uint16_t *code,
                               float *dist)
{
    size_t i = 0;

    if (GROUPS(d) == 4)
        for (; i + 3 * WIDTH < n; i += 4 * WIDTH)
            search(tile + i, d, 4, centers, k, code + i, dist + i);
    if (GROUPS(d) >= 2)
        for (; i + WIDTH < n; i += 2 * WIDTH)
            search(tile + i, d, 2, centers, k, code + i, dist + i);
    for (; i < n; i += WIDTH)
        search(tile + i, d, 1, centers, k, code + i, dist + i);
}

/* The least score of any center in each block of 16: which block has the least
 * for each of the vectors [first, first + p * WIDTH) of the tile, and whether
 * no center of another block can be nearer.  d and p are constants. */
ALWAYS_INLINE void find_block(const struct kv_centroids *b, const float *tile,
                              size_t d, size_t first, size_t p, int32_t *block,
                              uint64_t *sure)
{
    vf x[4][KV_NEAREST_MAX_D], best[4], second[4];
    vi at[4];

    UNROLL
    for (size_t g = 0; g < p; g++) {
        best[g] = second[g] = v_all(INFINITY);
        at[g] = i_all(0);
        UNROLL
        for (size_t j = 0; j < d; j++)
            x[g][j] = v_load(tile + j * KV_TILE + first + g * WIDTH);
    }
    for (size_t c = 0; c < b->k; c += KV_BLOCK) {
        const size_t end = c + KV_BLOCK < b->k ? c + KV_BLOCK : b->k;
        const float *score = b->score + c * (1 + d);
        vf least[4];

        UNROLL
        for (size_t g = 0; g < p; g++)
            least[g] = v_all(INFINITY);
        for (size_t i = c; i < end; i++, score += 1 + d) {
            vf t[4];

            UNROLL
            for (size_t g = 0; g < p; g++)
                t[g] = v_all(score[0]);
            UNROLL
            for (size_t j = 0; j < d; j++) {
                const vf cj = v_all(score[1 + j]);

                UNROLL
                for (size_t g = 0; g < p; g++)
                    t[g] = v_fnma(cj, x[g][j], t[g]);
            }
            UNROLL
            for (size_t g = 0; g < p; g++)
                least[g] = v_min(t[g], least[g]);
        }
        UNROLL
        for (size_t g = 0; g < p; g++) {
            second[g] = v_min(v_max(best[g], least[g]), second[g]);
            v_keep(least[g], i_all((int32_t)(c / KV_BLOCK)), &best[g], &at[g]);
        }
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        vf square = v_all(b->most), bound;

        UNROLL
        for (size_t j = 0; j < d; j++)
            square = v_fma(x[g][j], x[g][j], square);
        bound = v_fma(v_mul(square, v_all(4)), v_all((float)(d + 4) * 0x1p-24f),
                      v_all(0x1p-140f));
        *sure |= (uint64_t)v_above(second[g], v_add(best[g], bound))
                 << (first + g * WIDTH);
        i_store(block + first + g * WIDTH, at[g]);
    }
}

ALWAYS_INLINE void find_blocks(const struct kv_centroids *b, const float *tile,
                               size_t n, size_t d, int32_t *block,
                               uint64_t *sure)
{
    size_t i = 0;

    if (GROUPS(d) == 4)
        for (; n > FEW && i + 3 * WIDTH < n; i += 4 * WIDTH)
            find_block(b, tile, d, i, 4, block, sure);
    if (GROUPS(d) >= 2)
        for (; n > FEW && i + WIDTH < n; i += 2 * WIDTH)
            find_block(b, tile, d, i, 2, block, sure);
    for (; n > FEW && i < n; i += WIDTH)
        find_block(b, tile, d, i, 1, block, sure);
}

/* s of WIDTH vectors of a tile and the center. */
ALWAYS_INLINE vf from_center(const float *tile, size_t d, const float *center)
{
    vf s = v_all(0);

    UNROLL
    for (size_t j = 0; j < d; j++) {
        const vf t = v_sub(v_load(tile + j * KV_TILE), v_all(center[j]));

        s = v_fma(t, t, s);
    }
    return s;
}

ALWAYS_INLINE void closer(const float *tile, size_t d, const float *center,
                          float *dist)
{
    for (size_t i = 0; i < KV_TILE; i += WIDTH)
        v_store(dist + i,
                v_min(from_center(tile + i, d, center), v_load(dist + i)));
}

/* The least s of a group, lane by lane. */
ALWAYS_INLINE vf least_of_group(const struct kv_centroids *b, const float *tile,
                                size_t size, size_t d, struct kv_pair pair)
{
    const size_t end = kv_group_end(b, size, pair.group);
    vf least = v_all(INFINITY);

    for (size_t at = pair.group * size; at < end; at++) {
        const struct block of = block_of(b, (int32_t)at, tile + pair.vector, d);

        least = v_min(least_lanes(&of), least);
    }
    return least;
}

/* By fours; the last repeats to fill its own. */
ALWAYS_INLINE void least_of_groups(const struct kv_centroids *b,
                                   const float *tile, size_t size, size_t d,
                                   const struct kv_pair *pair, size_t n,
                                   float *least)
{
    for (size_t i = 0; i < n; i += 4) {
        vf of[4];
        float four[4];

        UNROLL
        for (size_t j = 0; j < 4; j++)
            of[j] = least_of_group(b, tile, size, d,
                                   pair[i + j < n ? i + j : n - 1]);
        v_least_four(of[0], of[1], of[2], of[3], four);
        for (size_t j = 0; j < 4 && i + j < n; j++)
            least[i + j] = four[j];
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

/* Functions of their own, for registers of their own. */
#define DEFINE(D)                                                  \
    static __attribute__((noinline)) void find_blocks_##D(         \
        const struct kv_centroids *b, const float *tile, size_t n, \
        int32_t *block, uint64_t *sure)                            \
    {                                                              \
        find_blocks(b, tile, n, D, block, sure);                   \
    }                                                              \
    static __attribute__((noinline)) void search_blocks_##D(       \
        const struct kv_centroids *b, const float *tile, size_t n, \
        uint16_t *code, float *dist)                               \
    {                                                              \
        int32_t block[KV_TILE];                                    \
        uint64_t sure = 0;                                         \
                                                                   \
        find_blocks_##D(b, tile, n, block, &sure);                 \
        decide_tile(b, tile, n, D, block, sure, code, dist);       \
    }
KV_EVERY_D(DEFINE)
#undef DEFINE

void NAME(kv_tile_nearest)(const struct kv_centroids *b, const float *tile,
                           size_t n, uint16_t *code, float *dist)
{
    switch (b->d) {
#define CASE(D)                                                    \
    case D:                                                        \
        if (b->score)                                              \
            search_blocks_##D(b, tile, n, code, dist);             \
        else                                                       \
            search_tile(tile, n, D, b->centers, b->k, code, dist); \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}

void NAME(kv_tile_closer)(const float *tile, size_t d, const float *center,
                          float *dist)
{
    switch (d) {
#define CASE(D)                        \
    case D:                            \
        closer(tile, D, center, dist); \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}

void NAME(kv_tile_least)(const struct kv_centroids *b, const float *tile,
                         size_t size, const struct kv_pair *pair, size_t n,
                         float *least)
{
    switch (b->d) {
#define CASE(D)                                            \
    case D:                                                \
        least_of_groups(b, tile, size, D, pair, n, least); \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}

uint16_t NAME(kv_tile_first)(const struct kv_centroids *b, const float *tile,
                             size_t size, struct kv_pair pair, float s)
{
    switch (b->d) {
#define CASE(D) \
    case D:     \
        return first_of_group(b, tile, size, D, pair, s);
        KV_EVERY_D(CASE)
#undef CASE
    }
    return 0;
}

uint64_t NAME(kv_bits_below)(const float *a, const float *b, float c, size_t n)
{
    uint64_t below = 0;

    for (size_t i = 0; i < n; i += WIDTH)
        below |=
            (uint64_t)v_below(v_load(a + i), v_add(v_load(b + i), v_all(c)))
            << i;
    return below;
}
