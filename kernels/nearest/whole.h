/* The search of nearest.h among 64 centers or more, in 16-bit integers: two
 * dimensions an operation.
 *
 * Let X = round(S x) and C = round(S c), the scale S such that no |C| exceeds
 * 2^14.  Then
 *
 *   T = |C|^2 - 2 C X = |X - C|^2 - |X|^2
 *
 * is exact in 32 bits where |S x| <= 2^15.  As in nearest_simd.h, the least T
 * of each block of 16 centers counts, and of these the least and the second.
 * With e = |X - S x| and E the largest |C - S c|, the center a of the least T,
 * R = |X - C| there, and any other center b keep
 *
 *   S |x - a| <= R + (e + E)        S |x - b| >= |X - B| - (e + E)
 *
 * so that a is nearer where |X - B| exceeds R + 2 (e + E), e <= sqrt(d) / 2;
 * and s, within (d + 2) 2^-24 of |x - c|^2, says so too where |X - B| exceeds
 * (1 + 2^-14) R + 2 (e + E) + 1/8, which covers the rounding of S x, root and
 * square as well.  That is a limit to b's T.  Where the second is above it the
 * nearest center is in the block of the least, and if all others there are
 * above it, it is that of the least; else s decides, in the block or among all
 * centers.
 *
 * Included by nearest_madd.c and nearest_vnni.c, which name the registers:
 *
 *   those of nearest_decide.h, v_mul and v_max, and
 *   GROUPS(d)          registers of vectors searched together, 2 or 4
 *   vm                 a yes or no for each lane
 *   v_at_most(a, b)    a <= b
 *   v_if(m, a, b)      a where m, else b
 *   v_root(a)          the root of a >= 2^-20, off by 2^-14 of it at most
 *   v_of(a)            of unsigned integers, rounded once
 *   i_of(a)            of floats, to unsigned integers
 *   i_round(a)         of floats, to signed ones
 *   i_load i_add i_sub i_mul i_and i_min i_max   as they say; i_load: lines
 *   i_right(a, n)      shifted by n bits, zeros come in
 *   i_pairs(a, b)      the lower halves of a, those of b above them
 *   i_bits(a)          the bits of floats
 *   i_if(m, a, b)      a where m, else b
 *   i_above(a, b)      a > b, a bit for each lane
 *   i_keep(a, c, &best, &at)     where a < best: best = a, at = c
 *   i_halves(p)        WIDTH unsigned 16-bit integers
 *   i_store_halves(p, a)         the lower halves
 *   add_products(&t, a, b)       t += the products of two pairs of halves
 *   add_products_of(&t, a, p)    the same, b lies at p, on a line
 *   NAME(f)            f with the level's suffix */
#include "kernels/nearest/decide.h"

/* What is known of a tile's vectors; d <= 2 * 8. */
struct found {
    _Alignas(
        64) int32_t pair[KV_NEAREST_MAX_D / 2][KV_TILE]; /* X, two a word */
    int32_t best[KV_TILE];   /* the least T of a block */
    int32_t second[KV_TILE]; /* that of another block */
    int32_t block[KV_TILE];  /* which has the best */
    int32_t limit[KV_TILE];  /* T of what may be nearest */
    uint64_t sure;           /* no center of another block can be nearer */
};

/* X of WIDTH vectors from `at` on. */
ALWAYS_INLINE void round_vectors(const struct kv_centroids *b,
                                 const float *tile, size_t d, size_t at,
                                 struct found *to)
{
    vi part[KV_NEAREST_MAX_D];

    UNROLL
    for (size_t j = 0; j < d; j++)
        part[j] =
            i_round(v_mul(v_load(tile + j * KV_TILE + at), v_all(b->scale)));
    UNROLL
    for (size_t j = 0; j < d; j += 2)
        i_store(to->pair[j / 2] + at,
                i_pairs(part[j], j + 1 < d ? part[j + 1] : i_all(0)));
}

/* Is |S x| within 2^15, for WIDTH vectors? */
ALWAYS_INLINE vm are_within(const struct kv_centroids *b, const float *tile,
                            size_t d)
{
    const float MOST = 32700;
    vf square = v_all(0);

    UNROLL
    for (size_t j = 0; j < d; j++) {
        const vf y = v_mul(v_load(tile + j * KV_TILE), v_all(b->scale));

        square = v_fma(y, y, square);
    }
    return v_at_most(square, v_all(MOST * MOST));
}

/* 2 (e + E); e <= sqrt(d) / 2, but for the rounding of S x in f32. */
ALWAYS_INLINE float slack(const struct kv_centroids *b, size_t d)
{
    return sqrtf((float)d) * (1 + 0x1p-7f) + 2 * b->off + 0x1p-3f;
}

/* |X|^2 of WIDTH vectors from `at` on, as 32-bit unsigned. */
ALWAYS_INLINE vi own_square(const struct found *in, size_t d, size_t at)
{
    vi own = i_all(0);

    UNROLL
    for (size_t j = 0; j < (d + 1) / 2; j++) {
        const vi pair = i_load(in->pair[j] + at);

        add_products(&own, pair, pair);
    }
    return own;
}

/* The T above which no center can be nearer than that of the best; of WIDTH
 * vectors from `at` on. */
ALWAYS_INLINE void set_limit(const struct kv_centroids *b, const float *tile,
                             size_t d, size_t at, struct found *to)
{
    const vi own = own_square(to, d, at);
    const vf square = v_max(v_of(i_add(i_load(to->best + at), own)), v_all(1));
    const vf reach =
        v_fma(v_root(square), v_all(1 + 0x1p-13f), v_all(slack(b, d)));
    const vi limit =
        i_if(are_within(b, tile + at, d), i_sub(i_of(v_mul(reach, reach)), own),
             i_all(INT32_MAX));

    i_store(to->limit + at, limit);
    to->sure |= (uint64_t)i_above(i_load(to->second + at), limit) << at;
}

/* T of a center, whose |C|^2 is at `whole`, and of p registers of vectors. */
ALWAYS_INLINE void scores(const int32_t *whole, size_t pairs,
                          vi x[4][KV_NEAREST_MAX_D / 2], size_t p, vi *t)
{
    UNROLL
    for (size_t g = 0; g < p; g++)
        t[g] = i_all(whole[0]);
    UNROLL
    for (size_t j = 0; j < pairs; j++) {
        const vi cj = i_all(whole[(1 + j) * KV_BLOCK]);

        UNROLL
        for (size_t g = 0; g < p; g++)
            add_products(&t[g], cj, x[g][j]);
    }
}

/* Of p registers of vectors. */
struct ahead {
    vi best[4], second[4], block[4]; /* as in struct found */
};

/* The vectors [at, at + p * WIDTH) of the tile, of which nothing is found. */
ALWAYS_INLINE void start(const struct found *in, size_t pairs, size_t at,
                         size_t p, vi x[4][KV_NEAREST_MAX_D / 2],
                         struct ahead *now)
{
    UNROLL
    for (size_t g = 0; g < p; g++) {
        UNROLL
        for (size_t j = 0; j < pairs; j++)
            x[g][j] = i_load(in->pair[j] + at + g * WIDTH);
        now->best[g] = now->second[g] = i_all(INT32_MAX);
        now->block[g] = i_all(0);
    }
}

/* The least T of a block. */
ALWAYS_INLINE void ask_block(const struct kv_centroids *b, size_t block,
                             size_t pairs, vi x[4][KV_NEAREST_MAX_D / 2],
                             size_t p, struct ahead *now, vi *least)
{
    const int32_t *whole = b->whole + block * KV_BLOCK * (1 + pairs);
    const vi index = i_all((int32_t)block);
    vi t[4];

    scores(whole, pairs, x, p, least);
    for (size_t i = 1; i < KV_BLOCK; i++) {
        scores(whole + i, pairs, x, p, t);
        UNROLL
        for (size_t g = 0; g < p; g++)
            least[g] = i_min(t[g], least[g]);
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        now->second[g] = i_min(i_max(now->best[g], least[g]), now->second[g]);
        i_keep(least[g], index, &now->best[g], &now->block[g]);
    }
}

ALWAYS_INLINE void keep_found(const struct ahead *now, size_t at, size_t p,
                              struct found *to)
{
    UNROLL
    for (size_t g = 0; g < p; g++) {
        i_store(to->best + at + g * WIDTH, now->best[g]);
        i_store(to->second + at + g * WIDTH, now->second[g]);
        i_store(to->block + at + g * WIDTH, now->block[g]);
    }
}

/* best, second and block of the vectors [at, at + p * WIDTH) of the tile; d and
 * p are constants. */
ALWAYS_INLINE void find_block(const struct kv_centroids *b, size_t d, size_t at,
                              size_t p, struct found *to)
{
    const size_t pairs = (d + 1) / 2;
    const size_t n_blocks = (b->k + KV_BLOCK - 1) / KV_BLOCK;
    vi x[4][KV_NEAREST_MAX_D / 2], least[4];
    struct ahead now;

    start(to, pairs, at, p, x, &now);
    for (size_t block = 0; block < n_blocks; block++)
        ask_block(b, block, pairs, x, p, &now, least);
    keep_found(&now, at, p, to);
}

ALWAYS_INLINE void find_blocks(const struct kv_centroids *b, const float *tile,
                               size_t n, size_t d, struct found *to)
{
    size_t i = 0;

    to->sure = 0;
    if (n <= FEW)
        return;
    for (size_t at = 0; at < n; at += WIDTH)
        round_vectors(b, tile, d, at, to);
    if (GROUPS(d) == 4)
        for (; i + 3 * WIDTH < n; i += 4 * WIDTH)
            find_block(b, d, i, 4, to);
    for (; i + WIDTH < n; i += 2 * WIDTH)
        find_block(b, d, i, 2, to);
    for (; i < n; i += WIDTH)
        find_block(b, d, i, 1, to);
    for (size_t at = 0; at < n; at += WIDTH)
        set_limit(b, tile, d, at, to);
}

/* The centers of its block that may be the nearest to vector i, bit by bit. */
ALWAYS_INLINE unsigned candidates(const struct kv_centroids *b, size_t d,
                                  const struct found *in, size_t i)
{
    const size_t pairs = (d + 1) / 2;
    const int32_t *whole =
        b->whole + (size_t)in->block[i] * (1 + pairs) * KV_BLOCK;
    unsigned beyond = 0;

    UNROLL
    for (size_t g = 0; g < KV_BLOCK; g += WIDTH) {
        vi t = i_load(whole + g);

        UNROLL
        for (size_t j = 0; j < pairs; j++)
            add_products_of(&t, i_all(in->pair[j][i]),
                            whole + (1 + j) * KV_BLOCK + g);
        beyond |= i_above(t, i_all(in->limit[i])) << g;
    }
    return ~beyond;
}

/* Which bit of each lane is the only one: of a power of two as a float it is
 * the exponent. */
ALWAYS_INLINE vi place_of(vi power)
{
    return i_sub(i_right(i_bits(v_of(power)), 23), i_all(127));
}

/* The codes of the vectors [at, end) whose blocks are found, by T; a bit for
 * each that it is no other.  WIDTHs are whole: some beyond the end get one too.
 */
ALWAYS_INLINE uint64_t decide_whole(const struct kv_centroids *b, size_t at,
                                    size_t end, size_t d,
                                    const struct found *in, uint16_t *code)
{
    uint16_t left[KV_TILE];
    uint64_t several = 0;

    end = (end + WIDTH - 1) / WIDTH * WIDTH;
    for (size_t i = at; i < end; i += 4) {
        UNROLL
        for (size_t j = i; j < i + 4; j++)
            left[j] = (uint16_t)candidates(b, d, in, j);
    }
    for (size_t i = at; i < end; i += WIDTH) {
        const vi of = i_halves(left + i);
        const vi others = i_and(of, i_sub(of, i_all(1))); /* not the lowest */
        const vi first = i_mul(i_load(in->block + i), i_all(KV_BLOCK));

        several |= (uint64_t)i_above(others, i_all(0)) << i;
        i_store_halves(code + i, i_add(first, place_of(i_sub(of, others))));
    }
    return in->sure & ~several;
}

/* Like decide_tile, by T where that will do. */
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

/* Functions of their own, for registers of their own. */
#define DEFINE(D)                                                    \
    static __attribute__((noinline)) void find_blocks_##D(           \
        const struct kv_centroids *b, const float *tile, size_t n,   \
        struct found *to)                                            \
    {                                                                \
        find_blocks(b, tile, n, D, to);                              \
    }                                                                \
    static __attribute__((noinline)) void decide_tile_##D(           \
        const struct kv_centroids *b, const float *tile, size_t n,   \
        const struct found *in, uint16_t *code, float *dist)         \
    {                                                                \
        decide_tile(b, tile, n, D, in->block, in->sure, code, dist); \
    }                                                                \
    static __attribute__((noinline)) void decide_codes_##D(          \
        const struct kv_centroids *b, const float *tile, size_t n,   \
        const struct found *in, uint16_t *code)                      \
    {                                                                \
        decide_codes(b, tile, n, D, in, code);                       \
    }
KV_EVERY_D(DEFINE)
#undef DEFINE

void NAME(kv_tile_whole)(const struct kv_centroids *b, const float *tile,
                         size_t n, uint16_t *code, float *dist)
{
    struct found found;

    switch (b->d) {
#define CASE(D)                                              \
    case D:                                                  \
        find_blocks_##D(b, tile, n, &found);                 \
        if (dist)                                            \
            decide_tile_##D(b, tile, n, &found, code, dist); \
        else                                                 \
            decide_codes_##D(b, tile, n, &found, code);      \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}
