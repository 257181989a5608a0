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

static void nearest_c(const struct kv_centroids *b, const float *tile, size_t n,
                      uint16_t *code, float *dist)
{
    for (size_t i = 0; i < n; i++) {
        float min = INFINITY;

        code[i] = 0;
        for (size_t c = 0; c < b->k; c++) {
            const float s =
                kv_tile_distance(tile, i, b->d, b->centers + c * b->d);

            if (s < min) {
                min = s;
                code[i] = (uint16_t)c;
            }
        }
        if (dist)
            dist[i] = min;
    }
}

static void closer_c(const float *tile, size_t d, const float *center,
                     float *dist)
{
    for (size_t i = 0; i < KV_TILE; i++) {
        const float s = kv_tile_distance(tile, i, d, center);

        if (s < dist[i])
            dist[i] = s;
    }
}

static void min_c(const struct kv_centroids *b, const float *tile, size_t size,
                  const struct kv_pair *pair, size_t n, float *min)
{
    for (size_t i = 0; i < n; i++) {
        const size_t end = kv_group_end(b, size, pair[i].group) * KV_BLOCK;

        min[i] = INFINITY;
        for (size_t c = pair[i].group * size * KV_BLOCK; c < end && c < b->k;
             c++) {
            const float s = kv_tile_distance(tile, pair[i].vector, b->d,
                                             b->centers + c * b->d);

            min[i] = s < min[i] ? s : min[i];
        }
    }
}

static uint16_t first_c(const struct kv_centroids *b, const float *tile,
                        size_t size, struct kv_pair pair, float s)
{
    size_t c = pair.group * size * KV_BLOCK;

    while (kv_tile_distance(tile, pair.vector, b->d, b->centers + c * b->d) !=
           s)
        c++;
    return (uint16_t)c;
}

/* ---- some groups, in 16-bit integers (proof: search_i16.h) --------------- */

/* Computes X of vector i of a tile; false if it exceeds 16 bits. */
static bool round_vector(const struct kv_centroids *b, const float *tile,
                         size_t i, int32_t *x)
{
    const float LIMIT = 32700;
    float square = 0;

    for (size_t j = 0; j < b->d; j++) {
        const float y = b->scale * tile[j * KV_TILE + i];

        square += y * y;
    }
    if (!(square <= LIMIT * LIMIT))
        return false;
    for (size_t j = 0; j < b->d; j++)
        x[j] = (int32_t)lrintf(b->scale * tile[j * KV_TILE + i]);
    return true;
}

/* |X - C|^2 */
static int64_t apart(const struct kv_centroids *b, size_t c, const int32_t *x)
{
    const int32_t *whole = b->whole +
                           c / KV_BLOCK * (1 + (b->d + 1) / 2) * KV_BLOCK +
                           c % KV_BLOCK;
    int64_t square = whole[0];

    for (size_t j = 0; j < b->d; j++) {
        const uint32_t pair = (uint32_t)whole[(1 + j / 2) * KV_BLOCK];

        square += x[j] * (x[j] + (int16_t)(pair >> 16 * (j % 2)));
    }
    return square;
}

/* The smallest |X - C|^2 of a group. */
static int64_t min_apart(const struct kv_centroids *b, size_t size,
                         size_t group, const int32_t *x)
{
    const size_t end = kv_group_end(b, size, group) * KV_BLOCK;
    int64_t min = INT64_MAX;

    for (size_t c = group * size * KV_BLOCK; c < end && c < b->k; c++) {
        const int64_t one = apart(b, c, x);

        min = one < min ? one : min;
    }
    return min;
}

/* The centers within the limit: how many, and one of them. */
static size_t within(const struct kv_centroids *b, size_t size, size_t group,
                     const int32_t *x, double limit, uint16_t *code)
{
    const size_t end = kv_group_end(b, size, group) * KV_BLOCK;
    size_t n = 0;

    for (size_t c = group * size * KV_BLOCK; c < end && c < b->k; c++)
        if ((double)apart(b, c, x) <= limit) {
            *code = (uint16_t)c;
            n++;
        }
    return n;
}

/* Searches the groups for one vector, which takes part in all gaps; returns
 * whether its code is sure. */
static bool among(const struct kv_centroids *b, size_t size,
                  const uint16_t *group, size_t n, const int32_t *x,
                  uint16_t *code, float *reach, float *gap)
{
    const float half = sqrtf((float)b->d) / 2 + b->off + 0x1p-3f; /* e + E */
    double far[KV_MAX_GROUPS], nearest = INFINITY;
    size_t candidates = 0;

    for (size_t g = 0; g < n; g++) {
        far[g] = sqrt((double)min_apart(b, size, group[g], x));
        nearest = far[g] < nearest ? far[g] : nearest;
    }

    const double max = nearest * (1 + 0x1p-13) + 2 * (double)half;

    for (size_t g = 0; g < n; g++) {
        const float by = (float)(far[g] * (1 - 0x1p-13) - max) / b->scale;

        gap[g] = by < gap[g] ? by : gap[g];
        if (far[g] <= max)
            candidates += within(b, size, group[g], x, max * max, code);
    }
    *reach = (float)(max - (double)half) / b->scale;
    return candidates == 1;
}

static uint64_t among_c(const struct kv_centroids *b, const float *tile,
                        size_t first, size_t size, const uint16_t *group,
                        size_t n, uint16_t *code, float *reach, float *gap)
{
    int32_t x[KV_NEAREST_MAX_D];
    uint64_t sure = 0;

    for (size_t g = 0; g < (n + 3) / 4 * 4; g++)
        gap[g] = INFINITY;
    for (size_t i = first; i < first + KV_SIDE; i++) {
        code[i] = 0;
        reach[i] = NAN;
        if (round_vector(b, tile, i, x) &&
            among(b, size, group, n, x, code + i, reach + i, gap))
            sure |= (uint64_t)1 << i;
    }
    return sure;
}

const struct kv_nearest_ops kv_nearest_c = {
    nearest_c, closer_c, min_c, first_c, among_c,
};

/* ---- codebooks ------------------------------------------------------------
 */

/* Writes center c in the layout of the faster levels. */
static void put_center(struct kv_centroids *b, size_t c)
{
    const float *from = b->centers + c * b->d;
    float *block = b->block + c / KV_BLOCK * b->d * KV_BLOCK + c % KV_BLOCK;
    double square = 0;

    for (size_t j = 0; j < b->d; j++) {
        square += (double)from[j] * (double)from[j];
        block[j * KV_BLOCK] = from[j];
    }
    if (!((float)square <= b->max))
        b->max = isfinite((float)square) ? (float)square : INFINITY;
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

/* Writes all centers in 16-bit integers, unless all values are so small, or so
 * large, that s may lose its precision. */
static void put_all_whole(struct kv_centroids *b)
{
    const float MIN = 0x1p-80f, MAX = 0x1p80f; /* |c|^2 */
    const float LIMIT = 16380;                 /* rounded below 2^14 */
    const size_t n_blocks = (b->k + KV_BLOCK - 1) / KV_BLOCK;
    const size_t block = (1 + (b->d + 1) / 2) * KV_BLOCK;
    double error = 0;

    if (!(b->max > MIN && b->max < MAX))
        return;
    b->scale = LIMIT / sqrtf(b->max);
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
    free(b->block);
    free(b->whole);
}

/* ---- which version runs ---------------------------------------------------
 */

static const struct kv_nearest_ops *ops(void)
{
#ifdef __x86_64__
    if (kv_level_vnni())
        return &kv_nearest_vnni;
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return &kv_nearest_avx2;
#endif
    return &kv_nearest_c;
}

void kv_tile_nearest(const struct kv_centroids *b, const float *tile, size_t n,
                     uint16_t *code, float *dist)
{
    ops()->tile(b, tile, n, code, dist);
}

void kv_tile_closer(const float *tile, size_t d, const float *center,
                    float *dist)
{
    ops()->closer(tile, d, center, dist);
}

void kv_tile_min(const struct kv_centroids *b, const float *tile, size_t size,
                 const struct kv_pair *pair, size_t n, float *min)
{
    ops()->min(b, tile, size, pair, n, min);
}

uint16_t kv_tile_first(const struct kv_centroids *b, const float *tile,
                       size_t size, struct kv_pair pair, float s)
{
    return ops()->first(b, tile, size, pair, s);
}

uint64_t kv_tile_among(const struct kv_centroids *b, const float *tile,
                       size_t first, size_t size, const uint16_t *group,
                       size_t n, uint16_t *code, float *reach, float *gap)
{
    return ops()->among(b, tile, first, size, group, n, code, reach, gap);
}

/* ---- tiles ----------------------------------------------------------------
 */

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
