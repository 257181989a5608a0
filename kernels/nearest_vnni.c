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
 * centers. */
#include "kernels/nearest_avx512.h"
#include "kernels/nearest_decide.h"

/* Registers of vectors searched together, of 32. */
#define GROUPS(d) ((d) <= 8 ? 4 : 2)

/* t += two products of 16-bit integers.  As an instruction by name: gcc 12
 * copies the sums before and after the intrinsic. */
ALWAYS_INLINE void add_products(vi *t, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*t) : "v"(a), "v"(b));
}

/* What a register of vectors is searched with; d <= 2 * 8. */
struct whole {
    vi pair[KV_VQ_MAX_D / 2]; /* X, two dimensions a lane */
    vi square;                /* |X|^2, as a 32-bit unsigned */
    __mmask16 within;         /* where x is not beyond 2^15 */
};

/* What is known of a tile's vectors after the search of blocks. */
struct found {
    _Alignas(64) int32_t pair[KV_VQ_MAX_D / 2][KV_TILE]; /* X, two a word */
    int32_t limit[KV_TILE]; /* T of what may be nearest */
    int32_t block[KV_TILE];
    uint64_t sure; /* no center of another block can be nearer */
};

ALWAYS_INLINE vi pair_up(vi low, vi high)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low,
                                   _mm512_slli_epi32(high, 16));
}

ALWAYS_INLINE void round_tile(const struct kv_codebook *b, const float *tile,
                              size_t d, struct whole *to)
{
    const float MOST = 32700;
    const vf scale = v_all(b->scale);
    vf square = v_all(0);
    vi part[KV_VQ_MAX_D];

    UNROLL
    for (size_t j = 0; j < d; j++) {
        const vf y = v_mul(v_load(tile + j * KV_TILE), scale);

        part[j] = _mm512_cvtps_epi32(y);
        square = v_fma(y, y, square);
    }
    to->square = i_all(0);
    UNROLL
    for (size_t j = 0; j < d; j += 2) {
        to->pair[j / 2] = pair_up(part[j], j + 1 < d ? part[j + 1] : i_all(0));
        add_products(&to->square, to->pair[j / 2], to->pair[j / 2]);
    }
    to->within = _mm512_cmp_ps_mask(square, v_all(MOST * MOST), _CMP_LE_OQ);
}

/* The T above which no center can be nearer than that of T = t; slack: 2 (e +
 * E). The root's error is below 2^-14 of it. */
ALWAYS_INLINE vi limit_of(vi t, const struct whole *x, float slack)
{
    const vf square = _mm512_max_ps(
        _mm512_cvtepu32_ps(_mm512_add_epi32(t, x->square)), v_all(1));
    const vf near = v_mul(square, _mm512_rsqrt14_ps(square));
    const vf reach = v_fma(near, v_all(1 + 0x1p-13f), v_all(slack));
    const vi over = _mm512_cvtps_epu32(v_mul(reach, reach));

    return _mm512_mask_sub_epi32(i_all(INT32_MAX), x->within, over, x->square);
}

/* T of a center, whose |C|^2 is at `whole`, and of p registers of vectors. */
ALWAYS_INLINE void scores(const int32_t *whole, size_t pairs,
                          const struct whole *x, size_t p, vi *t)
{
    UNROLL
    for (size_t g = 0; g < p; g++)
        t[g] = i_all(whole[0]);
    UNROLL
    for (size_t j = 0; j < pairs; j++) {
        const vi cj = i_all(whole[(1 + j) * KV_BLOCK]);

        UNROLL
        for (size_t g = 0; g < p; g++)
            add_products(&t[g], cj, x[g].pair[j]);
    }
}

/* Vectors [at, at + p * WIDTH) of the tile; d and p are constants. */
ALWAYS_INLINE void find_block(const struct kv_codebook *b, const float *tile,
                              size_t d, size_t at, size_t p, struct found *to)
{
    const size_t pairs = (d + 1) / 2;
    /* e <= sqrt(d) / 2, but for the rounding of S x in f32 */
    const float slack = sqrtf((float)d) * (1 + 0x1p-7f) + 2 * b->off + 0x1p-3f;
    struct whole x[4];
    vi best[4], second[4], block[4];

    UNROLL
    for (size_t g = 0; g < p; g++) {
        round_tile(b, tile + at + g * WIDTH, d, &x[g]);
        best[g] = second[g] = i_all(INT32_MAX);
        block[g] = i_all(0);
    }
    for (size_t c = 0; c < b->k; c += KV_BLOCK) {
        const size_t n = b->k - c < KV_BLOCK ? b->k - c : KV_BLOCK;
        const int32_t *whole = b->whole + c * (1 + pairs);
        const vi index = i_all((int32_t)(c / KV_BLOCK));
        vi least[4], t[4];

        scores(whole, pairs, x, p, least);
        for (size_t i = 1; i < n; i++) {
            scores(whole + i, pairs, x, p, t);
            UNROLL
            for (size_t g = 0; g < p; g++)
                least[g] = _mm512_min_epi32(t[g], least[g]);
        }
        UNROLL
        for (size_t g = 0; g < p; g++) {
            const __mmask16 less = _mm512_cmplt_epi32_mask(least[g], best[g]);

            second[g] = _mm512_min_epi32(_mm512_max_epi32(best[g], least[g]),
                                         second[g]);
            best[g] = _mm512_min_epi32(best[g], least[g]);
            block[g] = _mm512_mask_mov_epi32(block[g], less, index);
        }
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        const size_t i = at + g * WIDTH;
        const vi limit = limit_of(best[g], &x[g], slack);

        to->sure |=
            (uint64_t)kv_lanes_bits(_mm512_cmpgt_epi32_mask(second[g], limit))
            << i;
        i_store(to->block + i, block[g]);
        i_store(to->limit + i, limit);
        UNROLL
        for (size_t j = 0; j < pairs; j++)
            i_store(to->pair[j] + i, x[g].pair[j]);
    }
}

ALWAYS_INLINE void find_blocks(const struct kv_codebook *b, const float *tile,
                               size_t n, size_t d, struct found *to)
{
    size_t i = 0;

    to->sure = 0;
    if (GROUPS(d) == 4)
        for (; n > FEW && i + 3 * WIDTH < n; i += 4 * WIDTH)
            find_block(b, tile, d, i, 4, to);
    for (; n > FEW && i + WIDTH < n; i += 2 * WIDTH)
        find_block(b, tile, d, i, 2, to);
    for (; n > FEW && i < n; i += WIDTH)
        find_block(b, tile, d, i, 1, to);
}

/* The same as add_products, b where it lies. */
ALWAYS_INLINE void add_products_of(vi *t, vi a, const int32_t *b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*t) : "v"(a), "m"(*(const vi *)b));
}

/* The centers of its block that may be the nearest to vector i. */
ALWAYS_INLINE __mmask16 candidates(const struct kv_codebook *b, size_t d,
                                   const struct found *in, size_t i)
{
    const size_t pairs = (d + 1) / 2;
    const int32_t *whole =
        b->whole + (size_t)in->block[i] * (1 + pairs) * KV_BLOCK;
    vi t = _mm512_load_si512(whole);

    UNROLL
    for (size_t j = 0; j < pairs; j++)
        add_products_of(&t, i_all(in->pair[j][i]), whole + (1 + j) * KV_BLOCK);
    return _mm512_cmple_epi32_mask(t, i_all(in->limit[i]));
}

/* The lowest of the lower 16 bits that is set, of each lane: of a power of two
 * as a float it is the exponent. */
ALWAYS_INLINE vi lowest_bits(vi x)
{
    const vi low = _mm512_andnot_si512(_mm512_sub_epi32(x, i_all(1)), x);
    const vi power = _mm512_castps_si512(_mm512_cvtepi32_ps(low));

    return _mm512_sub_epi32(_mm512_srli_epi32(power, 23), i_all(127));
}

/* The codes of vectors whose blocks are found, by T; a bit for each that it is
 * no other.  WIDTHs are whole: some beyond n get one too. */
ALWAYS_INLINE uint64_t decide_whole(const struct kv_codebook *b, size_t n,
                                    size_t d, const struct found *in,
                                    uint16_t *code)
{
    const size_t end = (n + WIDTH - 1) / WIDTH * WIDTH;
    __mmask16 left[KV_TILE];
    uint64_t several = 0;

    for (size_t i = 0; i < end; i += 4) {
        UNROLL
        for (size_t j = i; j < i + 4; j++)
            left[j] = candidates(b, d, in, j);
    }
    for (size_t i = 0; i < end; i += WIDTH) {
        const vi of = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const __m256i *)(left + i)));
        const vi first = _mm512_mullo_epi32(_mm512_load_si512(in->block + i),
                                            i_all(KV_BLOCK));

        several |= (uint64_t)kv_lanes_bits(_mm512_test_epi32_mask(
                       of, _mm512_sub_epi32(of, i_all(1))))
                   << i;
        _mm256_storeu_si256(
            (__m256i *)(code + i),
            _mm512_cvtepi32_epi16(_mm512_add_epi32(first, lowest_bits(of))));
    }
    return in->sure & ~several;
}

/* Like decide_tile, by T where that will do. */
ALWAYS_INLINE void decide_codes(const struct kv_codebook *b, const float *tile,
                                size_t n, size_t d, const struct found *in,
                                uint16_t *code)
{
    const uint64_t sure = n > FEW ? decide_whole(b, n, d, in, code) : 0;
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
        const struct kv_codebook *b, const float *tile, size_t n,    \
        struct found *to)                                            \
    {                                                                \
        find_blocks(b, tile, n, D, to);                              \
    }                                                                \
    static __attribute__((noinline)) void decide_tile_##D(           \
        const struct kv_codebook *b, const float *tile, size_t n,    \
        const struct found *in, uint16_t *code, float *dist)         \
    {                                                                \
        decide_tile(b, tile, n, D, in->block, in->sure, code, dist); \
    }                                                                \
    static __attribute__((noinline)) void decide_codes_##D(          \
        const struct kv_codebook *b, const float *tile, size_t n,    \
        const struct found *in, uint16_t *code)                      \
    {                                                                \
        decide_codes(b, tile, n, D, in, code);                       \
    }
KV_EVERY_D(DEFINE)
#undef DEFINE

void kv_tile_nearest_vnni(const struct kv_codebook *b, const float *tile,
                          size_t n, uint16_t *code, float *dist)
{
    struct found found;

    if (!b->whole) {
        kv_tile_nearest_avx512(b, tile, n, code, dist);
        return;
    }
    switch (b->d) {
#define CASE(D)                                          \
    case D:                                              \
        find_blocks_##D(b, tile, n, &found);             \
        decide_tile_##D(b, tile, n, &found, code, dist); \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}

void kv_tile_codes_vnni(const struct kv_codebook *b, const float *tile,
                        size_t n, uint16_t *code)
{
    struct found found;

    switch (b->d) {
#define CASE(D)                                     \
    case D:                                         \
        find_blocks_##D(b, tile, n, &found);        \
        decide_codes_##D(b, tile, n, &found, code); \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}
