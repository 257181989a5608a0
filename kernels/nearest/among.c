/* The search of some groups of centers, in 16-bit integers (nearest_whole.h and
 * nearest_among_loops.h have the arithmetic and why it suffices): the plain
 * one, and which one runs. */
#include "kernels/level.h"
#include "kernels/nearest/impl.h"

#include <math.h>
#include <stdbool.h>

/* X of vector i of a tile; false where it is beyond 16 bits. */
static bool round_vector(const struct kv_centroids *b, const float *tile,
                         size_t i, int32_t *x)
{
    const float MOST = 32700;
    float square = 0;

    for (size_t j = 0; j < b->d; j++) {
        const float y = b->scale * tile[j * KV_TILE + i];

        square += y * y;
    }
    if (!(square <= MOST * MOST))
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

/* The least of a group. */
static int64_t least_apart(const struct kv_centroids *b, size_t size,
                           size_t group, const int32_t *x)
{
    const size_t end = kv_group_end(b, size, group) * KV_BLOCK;
    int64_t least = INT64_MAX;

    for (size_t c = group * size * KV_BLOCK; c < end && c < b->k; c++) {
        const int64_t one = apart(b, c, x);

        least = one < least ? one : least;
    }
    return least;
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

/* One vector; takes part in all gaps.  Is its code sure? */
static bool among(const struct kv_centroids *b, size_t size,
                  const uint16_t *group, size_t n, const int32_t *x,
                  uint16_t *code, float *reach, float *gap)
{
    const float half = sqrtf((float)b->d) / 2 + b->off + 0x1p-3f; /* e + E */
    double far[KV_MOST_GROUPS], nearest = INFINITY;
    size_t candidates = 0;

    for (size_t g = 0; g < n; g++) {
        far[g] = sqrt((double)least_apart(b, size, group[g], x));
        nearest = far[g] < nearest ? far[g] : nearest;
    }

    const double most = nearest * (1 + 0x1p-13) + 2 * (double)half;

    for (size_t g = 0; g < n; g++) {
        const float by = (float)(far[g] * (1 - 0x1p-13) - most) / b->scale;

        gap[g] = by < gap[g] ? by : gap[g];
        if (far[g] <= most)
            candidates += within(b, size, group[g], x, most * most, code);
    }
    *reach = (float)(most - (double)half) / b->scale;
    return candidates == 1;
}

uint64_t kv_tile_among_c(const struct kv_centroids *b, const float *tile,
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

uint64_t kv_tile_among(const struct kv_centroids *b, const float *tile,
                       size_t first, size_t size, const uint16_t *group,
                       size_t n, uint16_t *code, float *reach, float *gap)
{
    kv_among_fn *fn = kv_tile_among_c;

#ifdef __x86_64__
    if (kv_level_vnni())
        fn = kv_tile_among_vnni;
    else if (kv_level_get() != KV_LEVEL_C)
        fn = kv_tile_among_avx2;
#endif
    return fn(b, tile, first, size, group, n, code, reach, gap);
}
