#include "kernels/nearest/nearest.h"
#include "kernels/level.h"
#include "kernels/nearest/impl.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The definition. */
float kv_tile_distance(const float *tile, size_t i, size_t d,
                       const float *center)
{
    float s = 0;

    for (size_t j = 0; j < d; j++) {
        const float t = tile[j * KV_TILE + i] - center[j];

        s = fmaf(t, t, s);
    }
    return s;
}

void kv_tile_nearest_c(const struct kv_centroids *b, const float *tile,
                       size_t n, uint16_t *code, float *dist)
{
    for (size_t i = 0; i < n; i++) {
        code[i] = 0;
        dist[i] = INFINITY;
        for (size_t c = 0; c < b->k; c++) {
            const float s =
                kv_tile_distance(tile, i, b->d, b->centers + c * b->d);

            if (s < dist[i]) {
                dist[i] = s;
                code[i] = (uint16_t)c;
            }
        }
    }
}

void kv_tile_closer_c(const float *tile, size_t d, const float *center,
                      float *dist)
{
    for (size_t i = 0; i < KV_TILE; i++) {
        const float s = kv_tile_distance(tile, i, d, center);

        if (s < dist[i])
            dist[i] = s;
    }
}

void kv_tile_least_c(const struct kv_centroids *b, const float *tile,
                     size_t size, const struct kv_pair *pair, size_t n,
                     float *least)
{
    for (size_t i = 0; i < n; i++) {
        const size_t end = kv_group_end(b, size, pair[i].group) * KV_BLOCK;

        least[i] = INFINITY;
        for (size_t c = pair[i].group * size * KV_BLOCK; c < end && c < b->k;
             c++) {
            const float s = kv_tile_distance(tile, pair[i].vector, b->d,
                                             b->centers + c * b->d);

            least[i] = s < least[i] ? s : least[i];
        }
    }
}

uint16_t kv_tile_first_c(const struct kv_centroids *b, const float *tile,
                         size_t size, struct kv_pair pair, float s)
{
    size_t c = pair.group * size * KV_BLOCK;

    while (kv_tile_distance(tile, pair.vector, b->d, b->centers + c * b->d) !=
           s)
        c++;
    return (uint16_t)c;
}

uint64_t kv_bits_below_c(const float *a, const float *b, float c, size_t n)
{
    uint64_t below = 0;

    for (size_t i = 0; i < n; i++)
        below |= (uint64_t) !(a[i] >= b[i] + c) << i;
    return below;
}

/* Writes center c where the faster levels look for it. */
static void put_center(struct kv_centroids *b, size_t c)
{
    const float *from = b->centers + c * b->d;
    float *score = b->score + c * (1 + b->d);
    float *block = b->block + c / KV_BLOCK * b->d * KV_BLOCK + c % KV_BLOCK;
    double square = 0;

    for (size_t j = 0; j < b->d; j++) {
        square += (double)from[j] * (double)from[j];
        score[1 + j] = block[j * KV_BLOCK] = from[j];
    }
    score[0] = (float)(square / 2);
    if (!((float)square <= b->most))
        b->most = isfinite((float)square) ? (float)square : INFINITY;
}

/* Writes center c in 16-bit integers; returns how far they are off, squared. */
static double put_whole(struct kv_centroids *b, size_t c)
{
    const float *from = b->centers + c * b->d;
    int32_t *to = b->whole + c / KV_BLOCK * (1 + (b->d + 1) / 2) * KV_BLOCK +
                  c % KV_BLOCK;
    double error = 0;

    for (size_t j = 0; j < b->d; j++) {
        const double scaled = (double)b->scale * (double)from[j];
        const int32_t whole = (int32_t)lrint(scaled);
        const uint32_t half = (uint32_t)(-2 * whole) & 0xffff;

        error += (scaled - whole) * (scaled - whole);
        to[0] += whole * whole;
        to[(1 + j / 2) * KV_BLOCK] |= (int32_t)(half << 16 * (j % 2));
    }
    return error;
}

/* Not where all is so small, or so large, that s may lose its precision. */
static void put_all_whole(struct kv_centroids *b)
{
    const float LEAST = 0x1p-80f, MOST = 0x1p80f; /* |c|^2 */
    const float LIMIT = 16380;                    /* rounded below 2^14 */
    const size_t n_blocks = (b->k + KV_BLOCK - 1) / KV_BLOCK;
    const size_t block = (1 + (b->d + 1) / 2) * KV_BLOCK;
    double error = 0;

    if (!(b->most > LEAST && b->most < MOST))
        return;
    b->scale = LIMIT / sqrtf(b->most);
    b->whole = kv_lines(n_blocks, block * sizeof(*b->whole));
    for (size_t c = b->k; c < n_blocks * KV_BLOCK; c++) /* never the nearest */
        b->whole[c / KV_BLOCK * block + c % KV_BLOCK] = INT32_MAX;
    for (size_t c = 0; c < b->k; c++) {
        const double one = put_whole(b, c);

        error = one > error ? one : error;
    }
    b->off = (float)sqrt(error);
}

void kv_centroids_init(struct kv_centroids *b, const float *centers, size_t k,
                       size_t d)
{
    enum { WORTH_K = 64, WORTH_D = 2 };
    const size_t n_blocks = (k + KV_BLOCK - 1) / KV_BLOCK;

    *b = (struct kv_centroids){.k = k, .d = d, .centers = centers};
    if (k < WORTH_K || d < WORTH_D)
        return;
    b->score = kv_alloc(k, (1 + d) * sizeof(*b->score));
    b->block = kv_alloc(n_blocks, KV_BLOCK * d * sizeof(*b->block));
    for (size_t c = 0; c < k; c++)
        put_center(b, c);
    for (size_t c = k; c < n_blocks * KV_BLOCK; c++) /* never the nearest */
        for (size_t j = 0; j < d; j++)
            b->block[(c / KV_BLOCK * d + j) * KV_BLOCK + c % KV_BLOCK] =
                INFINITY;
    put_all_whole(b);
}

void kv_centroids_clear(struct kv_centroids *b)
{
    free(b->score);
    free(b->block);
    free(b->whole);
}

static inline void fill(const float *x, size_t n, size_t d, float *tile)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            tile[j * KV_TILE + i] = x[i * d + j];
}

void kv_tile_fill(const float *x, size_t n, size_t d, float *tile)
{
    if (n < KV_TILE)
        memset(tile, 0, KV_TILE * d * sizeof(*tile));
    switch (d) { /* a constant: the inner loop unrolls */
    case 2:
        fill(x, n, 2, tile);
        break;
    case 4:
        fill(x, n, 4, tile);
        break;
    case 8:
        fill(x, n, 8, tile);
        break;
    default:
        fill(x, n, d, tile);
    }
}

/* AVX-512 without VNNI is as fast in f32. */
static bool searches_whole(void)
{
    return kv_level_vnni() || kv_level_get() == KV_LEVEL_AVX2;
}

void kv_tile_nearest(const struct kv_centroids *b, const float *tile, size_t n,
                     uint16_t *code, float *dist)
{
    kv_nearest_fn *fn = kv_tile_nearest_c;
    float unused[KV_TILE];

#ifdef __x86_64__
    if (b->whole && searches_whole()) {
        fn = kv_level_vnni() ? kv_tile_whole_vnni : kv_tile_whole_avx2;
        fn(b, tile, n, code, dist);
        return;
    }
    if (kv_level_get() == KV_LEVEL_AVX2)
        fn = kv_tile_nearest_avx2;
    else if (kv_level_get() == KV_LEVEL_AVX512)
        fn = kv_tile_nearest_avx512;
#endif
    fn(b, tile, n, code, dist ? dist : unused);
}

void kv_tile_closer(const float *tile, size_t d, const float *center,
                    float *dist)
{
    kv_closer_fn *fn = kv_tile_closer_c;

#ifdef __x86_64__
    if (kv_level_get() == KV_LEVEL_AVX2)
        fn = kv_tile_closer_avx2;
    else if (kv_level_get() == KV_LEVEL_AVX512)
        fn = kv_tile_closer_avx512;
#endif
    fn(tile, d, center, dist);
}

void kv_tile_least(const struct kv_centroids *b, const float *tile, size_t size,
                   const struct kv_pair *pair, size_t n, float *least)
{
    kv_least_fn *fn = kv_tile_least_c;

#ifdef __x86_64__
    if (kv_level_get() == KV_LEVEL_AVX2)
        fn = kv_tile_least_avx2;
    else if (kv_level_get() == KV_LEVEL_AVX512)
        fn = kv_tile_least_avx512;
#endif
    fn(b, tile, size, pair, n, least);
}

uint16_t kv_tile_first(const struct kv_centroids *b, const float *tile,
                       size_t size, struct kv_pair pair, float s)
{
    kv_first_fn *fn = kv_tile_first_c;

#ifdef __x86_64__
    if (kv_level_get() == KV_LEVEL_AVX2)
        fn = kv_tile_first_avx2;
    else if (kv_level_get() == KV_LEVEL_AVX512)
        fn = kv_tile_first_avx512;
#endif
    return fn(b, tile, size, pair, s);
}

uint64_t kv_bits_below(const float *a, const float *b, float c, size_t n)
{
    kv_below_fn *fn = kv_bits_below_c;

#ifdef __x86_64__
    if (kv_level_get() == KV_LEVEL_AVX2)
        fn = kv_bits_below_avx2;
    else if (kv_level_get() == KV_LEVEL_AVX512)
        fn = kv_bits_below_avx512;
#endif
    return fn(a, b, c, n);
}

void kv_nearest(const struct kv_centroids *b, const float *x, size_t n,
                uint16_t *code)
{
    float tile[KV_NEAREST_MAX_D * KV_TILE];
    uint16_t got[KV_TILE];

    for (size_t i = 0; i < n; i += KV_TILE) {
        const size_t m = n - i < KV_TILE ? n - i : KV_TILE;

        kv_tile_fill(x + i * b->d, m, b->d, tile);
        kv_tile_nearest(b, tile, m, got, NULL);
        memcpy(code + i, got, m * sizeof(*code));
    }
}
