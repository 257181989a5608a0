/* The search of nearest.h among 64 centers or more, in 16-bit integers: two
 * dimensions an operation.
 *
 * Let X = round(S x) and C = round(S c), the scale S such that no |C| exceeds
 * 2^14.  Then
 *
 *   T = |C|^2 - 2 C X = |X - C|^2 - |X|^2
 *
 * is exact in 32 bits where |S x| <= 2^15.  Each block of 16 centers gives its
 * smallest T; the search keeps the smallest and the second smallest of these.
 * With e = |X - S x| and E the largest |C - S c|, the center a of the smallest
 * T, R = |X - C(a)|, and any other center b satisfy
 *
 *   S |x - a| <= R + (e + E)        S |x - b| >= |X - B| - (e + E)
 *
 * so that a is nearer where |X - B| exceeds R + 2 (e + E), e <= sqrt(d) / 2;
 * and s, within (d + 2) 2^-24 of |x - c|^2, is smaller for a too where |X - B|
 * exceeds (1 + 2^-14) R + 2 (e + E) + 1/8, which covers the rounding of S x,
 * root and square as well.  This gives a limit to b's T.  If the second
 * smallest block is above the limit, the nearest center is in the block of a;
 * if all other centers of this block are above it too, a is the nearest.  Else
 * s decides, in the block or among all centers.
 *
 * Included by avx2.c and avx512.c after loops.h and
 *
 *   WHOLE_SIDE(d)      registers of vectors that are searched together, 2 or 4
 *   v_root(a)          the root of a >= 2^-20, off by 2^-14 of it at most
 *   v_from_u32(a)      to floats, rounded once
 *   v_to_u32(a)        from floats
 *   v_pairs_i16(a, b)  the lower halves of a, with the lower halves of b above
 *                      them
 *   v_load_u16(p)      V_WIDTH unsigned 16-bit integers
 *   v_store_u16(p, a)  the lower halves
 *   v_add_dot_i16(&t, a, b)      t += the two products of halves of a and b
 *   v_add_dot_i16_at(&t, a, p)   the same with b in memory at p, on a cache
 *                                line */
#include "kernels/nearest/loops.h"

/* The search's state of a tile's vectors; d <= 2 * 8. */
struct found {
    _Alignas(
        64) int32_t pair[KV_NEAREST_MAX_D / 2][KV_TILE]; /* X, two a word */
    int32_t best[KV_TILE];   /* the smallest T of a block */
    int32_t second[KV_TILE]; /* the smallest T outside `block` */
    int32_t block[KV_TILE];  /* the block with the best */
    int32_t limit[KV_TILE];  /* largest T of a candidate */
    uint64_t sure;           /* no center of another block can be nearer */
};

/* Computes X for V_WIDTH vectors from `at` on. */
ALWAYS_INLINE void round_vectors(const struct kv_centroids *b,
                                 const float *tile, size_t d, size_t at,
                                 struct found *to)
{
    vi32 part[KV_NEAREST_MAX_D];

    for (size_t j = 0; j < d; j++)
        part[j] =
            v_to_i32(v_mul(v_load(tile + j * KV_TILE + at), v_set1(b->scale)));
    for (size_t j = 0; j < d; j += 2)
        v_store_i32(
            to->pair[j / 2] + at,
            v_pairs_i16(part[j], j + 1 < d ? part[j + 1] : v_set1_i32(0)));
}

/* Is |S x| within 2^15, for V_WIDTH vectors? */
ALWAYS_INLINE vmask are_within(const struct kv_centroids *b, const float *tile,
                               size_t d)
{
    const float LIMIT = 32700;
    vf32 square = v_set1(0);

    for (size_t j = 0; j < d; j++) {
        const vf32 y = v_mul(v_load(tile + j * KV_TILE), v_set1(b->scale));

        square = v_fmadd(y, y, square);
    }
    return v_le(square, v_set1(LIMIT * LIMIT));
}

/* 2 (e + E); e <= sqrt(d) / 2 plus the rounding of S x in f32. */
ALWAYS_INLINE float slack(const struct kv_centroids *b, size_t d)
{
    return sqrtf((float)d) * (1 + 0x1p-7f) + 2 * b->off + 0x1p-3f;
}

/* |X|^2 for V_WIDTH vectors from `at` on, as 32-bit unsigned. */
ALWAYS_INLINE vi32 own_square(const struct found *in, size_t d, size_t at)
{
    vi32 own = v_set1_i32(0);

    for (size_t j = 0; j < (d + 1) / 2; j++) {
        const vi32 pair = v_load_i32(in->pair[j] + at);

        v_add_dot_i16(&own, pair, pair);
    }
    return own;
}

/* Sets the limit for V_WIDTH vectors from `at` on: a center whose T is above it
 * is not nearer than the best center. */
ALWAYS_INLINE void set_limit(const struct kv_centroids *b, const float *tile,
                             size_t d, size_t at, struct found *to)
{
    const vi32 own = own_square(to, d, at);
    const vf32 square =
        v_max(v_from_u32(v_add_i32(v_load_i32(to->best + at), own)), v_set1(1));
    const vf32 reach =
        v_fmadd(v_root(square), v_set1(1 + 0x1p-13f), v_set1(slack(b, d)));
    const vi32 limit = v_select_i32(
        are_within(b, tile + at, d),
        v_sub_i32(v_to_u32(v_mul(reach, reach)), own), v_set1_i32(INT32_MAX));

    v_store_i32(to->limit + at, limit);
    to->sure |= (uint64_t)v_gt_bits_i32(v_load_i32(to->second + at), limit)
                << at;
}

/* T for one center and p registers of vectors; its |C|^2 is at `whole`. */
ALWAYS_INLINE void scores(const int32_t *whole, size_t pairs,
                          vi32 x[4][KV_NEAREST_MAX_D / 2], size_t p, vi32 *t)
{
    UNROLL
    for (size_t g = 0; g < p; g++)
        t[g] = v_set1_i32(whole[0]);
    for (size_t j = 0; j < pairs; j++) {
        const vi32 cj = v_set1_i32(whole[(1 + j) * KV_BLOCK]);

        UNROLL
        for (size_t g = 0; g < p; g++)
            v_add_dot_i16(&t[g], cj, x[g][j]);
    }
}

/* The search's state for p registers of vectors. */
struct ahead {
    vi32 best[4], second[4], block[4]; /* as in struct found */
};

/* Loads X of the vectors [at, at + p * V_WIDTH) of the tile; sets the state
 * before any search. */
ALWAYS_INLINE void start(const struct found *in, size_t pairs, size_t at,
                         size_t p, vi32 x[4][KV_NEAREST_MAX_D / 2],
                         struct ahead *now)
{
    UNROLL
    for (size_t g = 0; g < p; g++) {
        for (size_t j = 0; j < pairs; j++)
            x[g][j] = v_load_i32(in->pair[j] + at + g * V_WIDTH);
        now->best[g] = now->second[g] = v_set1_i32(INT32_MAX);
        now->block[g] = v_set1_i32(0);
    }
}

/* Finds the smallest T of a block. */
ALWAYS_INLINE void ask_block(const struct kv_centroids *b, size_t block,
                             size_t pairs, vi32 x[4][KV_NEAREST_MAX_D / 2],
                             size_t p, struct ahead *now, vi32 *min)
{
    const int32_t *whole = b->whole + block * KV_BLOCK * (1 + pairs);
    const vi32 index = v_set1_i32((int32_t)block);
    vi32 t[4];

    scores(whole, pairs, x, p, min);
    for (size_t i = 1; i < KV_BLOCK; i++) {
        scores(whole + i, pairs, x, p, t);
        UNROLL
        for (size_t g = 0; g < p; g++)
            min[g] = v_min_i32(t[g], min[g]);
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        now->second[g] =
            v_min_i32(v_max_i32(now->best[g], min[g]), now->second[g]);
        v_keep_min_i32(min[g], index, &now->best[g], &now->block[g]);
    }
}

ALWAYS_INLINE void keep_found(const struct ahead *now, size_t at, size_t p,
                              struct found *to)
{
    UNROLL
    for (size_t g = 0; g < p; g++) {
        v_store_i32(to->best + at + g * V_WIDTH, now->best[g]);
        v_store_i32(to->second + at + g * V_WIDTH, now->second[g]);
        v_store_i32(to->block + at + g * V_WIDTH, now->block[g]);
    }
}

/* Finds best, second and block of the vectors [at, at + p * V_WIDTH) of the
 * tile; d and p are constants. */
ALWAYS_INLINE void find_block(const struct kv_centroids *b, size_t d, size_t at,
                              size_t p, struct found *to)
{
    const size_t pairs = (d + 1) / 2;
    const size_t n_blocks = (b->k + KV_BLOCK - 1) / KV_BLOCK;
    vi32 x[4][KV_NEAREST_MAX_D / 2], min[4];
    struct ahead now;

    start(to, pairs, at, p, x, &now);
    for (size_t block = 0; block < n_blocks; block++)
        ask_block(b, block, pairs, x, p, &now, min);
    keep_found(&now, at, p, to);
}

ALWAYS_INLINE void find_blocks(const struct kv_centroids *b, const float *tile,
                               size_t n, size_t d, struct found *to)
{
    size_t i = 0;

    to->sure = 0;
    if (n <= FEW)
        return;
    for (size_t at = 0; at < n; at += V_WIDTH)
        round_vectors(b, tile, d, at, to);
    if (WHOLE_SIDE(d) == 4)
        for (; i + 3 * V_WIDTH < n; i += 4 * V_WIDTH)
            find_block(b, d, i, 4, to);
    for (; i + V_WIDTH < n; i += 2 * V_WIDTH)
        find_block(b, d, i, 2, to);
    for (; i < n; i += V_WIDTH)
        find_block(b, d, i, 1, to);
    for (size_t at = 0; at < n; at += V_WIDTH)
        set_limit(b, tile, d, at, to);
}

/* A bit for each center of vector i's block that may be the nearest. */
ALWAYS_INLINE unsigned candidates(const struct kv_centroids *b, size_t d,
                                  const struct found *in, size_t i)
{
    const size_t pairs = (d + 1) / 2;
    const int32_t *whole =
        b->whole + (size_t)in->block[i] * (1 + pairs) * KV_BLOCK;
    unsigned beyond = 0;

    UNROLL
    for (size_t g = 0; g < KV_BLOCK; g += V_WIDTH) {
        vi32 t = v_load_i32(whole + g);

        for (size_t j = 0; j < pairs; j++)
            v_add_dot_i16_at(&t, v_set1_i32(in->pair[j][i]),
                             whole + (1 + j) * KV_BLOCK + g);
        beyond |= v_gt_bits_i32(t, v_set1_i32(in->limit[i])) << g;
    }
    return ~beyond;
}

/* The position of the single bit of each lane: the exponent of this power of
 * two as a float. */
ALWAYS_INLINE vi32 place_of(vi32 power)
{
    return v_sub_i32(v_shr_i32(v_bits_i32(v_from_u32(power)), 23),
                     v_set1_i32(127));
}

/* Finds codes by T for the vectors [at, end), whose blocks are known; sets a
 * vector's bit if no other code is possible.  Vectors are processed V_WIDTH at
 * a time, so some beyond the end get a bit too. */
ALWAYS_INLINE uint64_t decide_whole(const struct kv_centroids *b, size_t at,
                                    size_t end, size_t d,
                                    const struct found *in, uint16_t *code)
{
    uint16_t left[KV_TILE];
    uint64_t several = 0;

    end = (end + V_WIDTH - 1) / V_WIDTH * V_WIDTH;
    for (size_t i = at; i < end; i += 4) {
        UNROLL
        for (size_t j = i; j < i + 4; j++)
            left[j] = (uint16_t)candidates(b, d, in, j);
    }
    for (size_t i = at; i < end; i += V_WIDTH) {
        const vi32 of = v_load_u16(left + i);
        const vi32 others =
            v_and(of, v_sub_i32(of, v_set1_i32(1))); /* not the lowest */
        const vi32 first =
            v_mul_i32(v_load_i32(in->block + i), v_set1_i32(KV_BLOCK));

        several |= (uint64_t)v_gt_bits_i32(others, v_set1_i32(0)) << i;
        v_store_u16(code + i,
                    v_add_i32(first, place_of(v_sub_i32(of, others))));
    }
    return in->sure & ~several;
}

/* Like decide_tile(), but without s where T decides. */
ALWAYS_INLINE void decide_codes(const struct kv_centroids *b, const float *tile,
                                size_t n, size_t d, const struct found *in,
                                uint16_t *code)
{
    const uint64_t sure = n > FEW ? decide_whole(b, 0, n, d, in, code) : 0;
    uint64_t left = ~sure & ~(uint64_t)0 >> (KV_TILE - n);
    float dist;

    for (; left; left &= left - 1) {
        const size_t i = (size_t)__builtin_ctzll(left);

        decide_all(b, tile + i, d, code + i, &dist);
    }
}

/* ---- some groups of blocks -----------------------------------------------
 *
 * Let R be the smallest |X - C| among the centers of all groups searched, and r
 * the smallest in one group.  Then the nearest center is within R + (e + E) of
 * S x, and the group's centers are further than r - (e + E).  Roots have a
 * relative error of 2^-14; all other f32 arithmetic is off by less than an
 * eighth. */
_Static_assert(KV_SIDE <= 2 * V_WIDTH, "tile_among() takes two registers");

/* e + E, and an eighth. */
ALWAYS_INLINE float off(const struct kv_centroids *b, size_t d)
{
    return slack(b, d) / 2 + 0x1p-3f;
}

/* The smallest T of each group, for KV_SIDE vectors from `at` on. */
ALWAYS_INLINE void find_among(const struct kv_centroids *b, size_t d, size_t at,
                              size_t size, const uint16_t *group, size_t n,
                              struct found *to, int32_t *min)
{
    enum { P = KV_SIDE / V_WIDTH };
    const size_t pairs = (d + 1) / 2;
    vi32 x[4][KV_NEAREST_MAX_D / 2], one[4], of[4];
    struct ahead now;

    start(to, pairs, at, P, x, &now);
    for (size_t i = 0; i < n; i++) {
        const size_t end = kv_group_end(b, size, group[i]);

        ask_block(b, group[i] * size, pairs, x, P, &now, of);
        for (size_t block = group[i] * size + 1; block < end; block++) {
            ask_block(b, block, pairs, x, P, &now, one);
            UNROLL
            for (size_t g = 0; g < P; g++)
                of[g] = v_min_i32(one[g], of[g]);
        }
        UNROLL
        for (size_t g = 0; g < P; g++)
            v_store_i32(min + i * KV_SIDE + g * V_WIDTH, of[g]);
    }
    for (size_t i = n * KV_SIDE; i % (4 * KV_SIDE); i += V_WIDTH)
        v_store_i32(min + i, v_set1_i32(INT32_MAX));
    keep_found(&now, at, P, to);
}

/* Distances of four groups with smallest T min, for one of V_WIDTH vectors,
 * plus `more`. */
ALWAYS_INLINE void gaps_of_four(const int32_t *min, vi32 own, vf32 more,
                                float *gap)
{
    vf32 far[4];

    UNROLL
    for (size_t g = 0; g < 4; g++) {
        const vf32 square =
            v_max(v_from_u32(v_add_i32(v_load_i32(min + g * KV_SIDE), own)),
                  v_set1(0x1p-20f));

        far[g] = v_fmadd(v_root(square), v_set1(1 - 0x1p-13f), more);
    }
    v_min4(far, gap);
}

/* S times reach, for V_WIDTH vectors from `at` on. */
ALWAYS_INLINE vf32 reach_of(const struct kv_centroids *b, const float *tile,
                            size_t d, size_t at, const struct found *in,
                            vi32 own)
{
    const vf32 square =
        v_max(v_from_u32(v_add_i32(v_load_i32(in->best + at), own)), v_set1(1));
    const vf32 reach =
        v_fmadd(v_root(square), v_set1(1 + 0x1p-13f), v_set1(off(b, d)));

    return v_select(are_within(b, tile + at, d), reach, v_set1(NAN));
}

ALWAYS_INLINE uint64_t tile_among(const struct kv_centroids *b,
                                  const float *tile, size_t d, size_t at,
                                  size_t size, const uint16_t *group, size_t n,
                                  uint16_t *code, float *reach, float *gap)
{
    enum { P = KV_SIDE / V_WIDTH };
    _Alignas(64) int32_t min[(KV_MAX_GROUPS + 3) * KV_SIDE];
    const float unit = 1 / b->scale;
    struct found found;
    vi32 own[P];
    vf32 less[P];

    found.sure = 0;
    for (size_t i = at; i < at + KV_SIDE; i += V_WIDTH)
        round_vectors(b, tile, d, i, &found);
    find_among(b, d, at, size, group, n, &found, min);
    UNROLL
    for (size_t g = 0; g < P; g++) {
        const size_t i = at + g * V_WIDTH;
        vf32 of;

        set_limit(b, tile, d, i, &found);
        own[g] = own_square(&found, d, i);
        of = reach_of(b, tile, d, i, &found, own[g]);
        v_store(reach + i, v_mul(of, v_set1(unit)));
        less[g] = v_sub(v_set1(-off(b, d)), of);
    }
    for (size_t i = 0; i < n; i += 4) {
        float four[P][4];

        UNROLL
        for (size_t g = 0; g < P; g++)
            gaps_of_four(min + i * KV_SIDE + g * V_WIDTH, own[g], less[g],
                         four[g]);
        for (size_t j = 0; j < 4; j++)
            gap[i + j] = unit * (four[0][j] < four[P - 1][j] ? four[0][j]
                                                             : four[P - 1][j]);
    }
    return decide_whole(b, at, at + KV_SIDE, d, &found, code);
}

/* ---- the level's table --------------------------------------------------- */

/* Separate functions, so that each has all registers. */
#define DEFINE(L, N, D)                                                      \
    static __attribute__((noinline)) void find_blocks_##N(                   \
        const struct kv_centroids *b, const float *tile, size_t n,           \
        struct found *to)                                                    \
    {                                                                        \
        find_blocks(b, tile, n, D, to);                                      \
    }                                                                        \
    static __attribute__((noinline)) void decide_tile_##N(                   \
        const struct kv_centroids *b, const float *tile, size_t n,           \
        const struct found *in, uint16_t *code, float *dist)                 \
    {                                                                        \
        decide_tile(b, tile, n, D, in->block, in->sure, code, dist);         \
    }                                                                        \
    static __attribute__((noinline)) void decide_codes_##N(                  \
        const struct kv_centroids *b, const float *tile, size_t n,           \
        const struct found *in, uint16_t *code)                              \
    {                                                                        \
        decide_codes(b, tile, n, D, in, code);                               \
    }                                                                        \
    static __attribute__((noinline))                                         \
    uint64_t among_##N(const struct kv_centroids *b, const float *tile,      \
                       size_t at, size_t size, const uint16_t *group,        \
                       size_t n, uint16_t *code, float *reach, float *gap)   \
    {                                                                        \
        return tile_among(b, tile, D, at, size, group, n, code, reach, gap); \
    }
KV_EVERY_D(DEFINE, b->d)
#undef DEFINE

static void tile_nearest(const struct kv_centroids *b, const float *tile,
                         size_t n, uint16_t *code, float *dist)
{
    struct found found;
    float unused[KV_TILE];

    switch (b->d) {
#define CASE(L, N, D)                                                          \
    L:                                                                         \
    if (!b->whole) {                                                           \
        search_tile(tile, n, D, b->centers, b->k, code, dist ? dist : unused); \
        break;                                                                 \
    }                                                                          \
    find_blocks_##N(b, tile, n, &found);                                       \
    if (dist)                                                                  \
        decide_tile_##N(b, tile, n, &found, code, dist);                       \
    else                                                                       \
        decide_codes_##N(b, tile, n, &found, code);                            \
    break;
        KV_EVERY_D(CASE, b->d)
#undef CASE
    }
}

static void tile_closer(const float *tile, size_t d, const float *center,
                        float *dist)
{
    switch (d) {
#define CASE(L, N, D)              \
    L:                             \
    closer(tile, D, center, dist); \
    break;
        KV_EVERY_D(CASE, d)
#undef CASE
    }
}

static void tile_min(const struct kv_centroids *b, const float *tile,
                     size_t size, const struct kv_pair *pair, size_t n,
                     float *min)
{
    switch (b->d) {
#define CASE(L, N, D)                              \
    L:                                             \
    min_of_groups(b, tile, size, D, pair, n, min); \
    break;
        KV_EVERY_D(CASE, b->d)
#undef CASE
    }
}

static uint16_t tile_first(const struct kv_centroids *b, const float *tile,
                           size_t size, struct kv_pair pair, float s)
{
    switch (b->d) {
#define CASE(L, N, D) \
    L:                \
    return first_of_group(b, tile, size, D, pair, s);
        KV_EVERY_D(CASE, b->d)
#undef CASE
    }
}

static uint64_t among(const struct kv_centroids *b, const float *tile,
                      size_t first, size_t size, const uint16_t *group,
                      size_t n, uint16_t *code, float *reach, float *gap)
{
    switch (b->d) {
#define CASE(L, N, D) \
    L:                \
    return among_##N(b, tile, first, size, group, n, code, reach, gap);
        KV_EVERY_D(CASE, b->d)
#undef CASE
    }
}

const struct kv_nearest_ops NAME(kv_nearest) = {
    tile_nearest, tile_closer, tile_min, tile_first, among,
};
