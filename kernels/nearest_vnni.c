/* The search of nearest.h among 64 centers or more, in 16-bit integers: two
 * dimensions an operation.
 *
 * Let X = round(S x) and C = round(S c), the scale S such that no |C| exceeds
 * 2^14.  Then
 *
 *   T = |C|^2 - 2 C X = |X - C|^2 - |X|^2
 *
 * is exact in 32 bits where |S x| <= 2^15.  As in nearest_simd.h, the least T
 * of each block of 16 centers counts, and of these the least and the second;
 * let R1 and R2 be the |X - C| of these two.  With e = |X - S x| and E the
 * largest |C - S c|, any center b of the other blocks and the center a of the
 * first that has R1 keep
 *
 *   S |x - b| >= R2 - (e + E)        S |x - a| <= R1 + (e + E)
 *
 * so that a is nearer where R2 - R1 > 2 (e + E); and s, within (d + 2) 2^-24 of
 * |x - c|^2, says so too where R2 - R1 exceeds this by 2^-18 R2, which covers
 * the rounding of both roots as well.  Then the nearest center is in the first
 * block, and s decides there.  Else s is computed for all centers. */
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
    vf slack;                 /* 2 (e + E), infinite where x is beyond 2^15 */
};

ALWAYS_INLINE vi pair_up(vi low, vi high)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low,
                                   _mm512_slli_epi32(high, 16));
}

ALWAYS_INLINE void round_tile(const struct kv_codebook *b, const float *tile,
                              size_t d, struct whole *to)
{
    const float MOST = 32700, ROOM = 0x1p-8f; /* of float's own rounding */
    const vf scale = v_all(b->scale);
    vf error = v_all(0), square = v_all(0);
    vi part[KV_VQ_MAX_D];

    UNROLL
    for (size_t j = 0; j < d; j++) {
        const vf x = v_load(tile + j * KV_TILE);
        const vf y = _mm512_mul_ps(x, scale);
        vf rest;

        part[j] = _mm512_cvtps_epi32(y);
        rest = _mm512_fmsub_ps(x, scale, _mm512_cvtepi32_ps(part[j]));
        error = v_fma(rest, rest, error);
        square = v_fma(y, y, square);
    }
    to->square = i_all(0);
    UNROLL
    for (size_t j = 0; j < d; j += 2) {
        to->pair[j / 2] = pair_up(part[j], j + 1 < d ? part[j + 1] : i_all(0));
        add_products(&to->square, to->pair[j / 2], to->pair[j / 2]);
    }
    to->slack = _mm512_mask_mov_ps(
        v_all(INFINITY),
        _mm512_cmp_ps_mask(square, v_all(MOST * MOST), _CMP_LE_OQ),
        v_fma(v_all(2), _mm512_sqrt_ps(error), v_all(2 * b->off + ROOM)));
}

/* |X - C|, where T = t. */
ALWAYS_INLINE vf root(vi t, vi square)
{
    return _mm512_sqrt_ps(_mm512_cvtepu32_ps(_mm512_add_epi32(t, square)));
}

/* The least T of any center in each block of 16: which block has the least for
 * each of the vectors [0, p * WIDTH) of the tile, and whether no center of
 * another block can be nearer.  d and p are constants. */
ALWAYS_INLINE void find_block(const struct kv_codebook *b, const float *tile,
                              size_t d, size_t p, int32_t *block,
                              unsigned *sure)
{
    const size_t pairs = (d + 1) / 2;
    struct whole x[4];
    vi best[4], second[4], at[4];

    UNROLL
    for (size_t g = 0; g < p; g++) {
        round_tile(b, tile + g * WIDTH, d, &x[g]);
        best[g] = second[g] = i_all(INT32_MAX);
        at[g] = i_all(0);
    }
    for (size_t c = 0; c < b->k; c += KV_BLOCK) {
        const size_t end = c + KV_BLOCK < b->k ? c + KV_BLOCK : b->k;
        const int32_t *whole = b->whole + c * (1 + pairs);
        const vi index = i_all((int32_t)(c / KV_BLOCK));
        vi least[4];

        UNROLL
        for (size_t g = 0; g < p; g++)
            least[g] = i_all(INT32_MAX);
        for (size_t i = c; i < end; i++, whole += 1 + pairs) {
            vi t[4];

            UNROLL
            for (size_t g = 0; g < p; g++)
                t[g] = i_all(whole[0]);
            UNROLL
            for (size_t j = 0; j < pairs; j++) {
                const vi cj = i_all(whole[1 + j]);

                UNROLL
                for (size_t g = 0; g < p; g++)
                    add_products(&t[g], cj, x[g].pair[j]);
            }
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
            at[g] = _mm512_mask_mov_epi32(at[g], less, index);
        }
    }
    UNROLL
    for (size_t g = 0; g < p; g++) {
        const vf near = root(best[g], x[g].square);
        const vf next = root(second[g], x[g].square);
        const vf bound = v_fma(next, v_all(0x1p-18f), x[g].slack);

        sure[g] =
            (unsigned)_mm512_cmp_ps_mask(v_sub(next, near), bound, _CMP_GT_OQ);
        i_store(block + g * WIDTH, at[g]);
    }
}

ALWAYS_INLINE void find_blocks(const struct kv_codebook *b, const float *tile,
                               size_t n, size_t d, int32_t *block,
                               unsigned *sure)
{
    size_t i = 0;

    if (GROUPS(d) == 4)
        for (; n > FEW && i + 3 * WIDTH < n; i += 4 * WIDTH)
            find_block(b, tile + i, d, 4, block + i, sure + i / WIDTH);
    for (; n > FEW && i + WIDTH < n; i += 2 * WIDTH)
        find_block(b, tile + i, d, 2, block + i, sure + i / WIDTH);
    for (; n > FEW && i < n; i += WIDTH)
        find_block(b, tile + i, d, 1, block + i, sure + i / WIDTH);
}

/* Functions of their own, for registers of their own. */
#define DEFINE(D)                                                   \
    static __attribute__((noinline)) void find_blocks_##D(          \
        const struct kv_codebook *b, const float *tile, size_t n,   \
        int32_t *block, unsigned *sure)                             \
    {                                                               \
        find_blocks(b, tile, n, D, block, sure);                    \
    }                                                               \
    static __attribute__((noinline)) void decide_tile_##D(          \
        const struct kv_codebook *b, const float *tile, size_t n,   \
        const int32_t *block, const unsigned *sure, uint16_t *code, \
        float *dist)                                                \
    {                                                               \
        decide_tile(b, tile, n, D, block, sure, code, dist);        \
    }
KV_EVERY_D(DEFINE)
#undef DEFINE

void kv_tile_nearest_vnni(const struct kv_codebook *b, const float *tile,
                          size_t n, uint16_t *code, float *dist)
{
    int32_t block[KV_TILE];
    unsigned sure[KV_TILE / WIDTH] = {0};

    if (!b->whole) {
        kv_tile_nearest_avx512(b, tile, n, code, dist);
        return;
    }
    switch (b->d) {
#define CASE(D)                                               \
    case D:                                                   \
        find_blocks_##D(b, tile, n, block, sure);             \
        decide_tile_##D(b, tile, n, block, sure, code, dist); \
        break;
        KV_EVERY_D(CASE)
#undef CASE
    }
}
