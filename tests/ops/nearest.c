/* kernels/nearest: the same codes and distances at every level (nearest.h).
 * among() may leave other vectors undecided at another level; its decisions,
 * and the search for undecided vectors, are the same. */
#include "kernels/nearest/impl.h"
#include "lib/base/alloc.h"
#include "tests/ops/ops.h"
#include "tests/plain_nearest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 97 };

struct search {
    size_t n, groups, size; /* vectors, groups of `size` blocks */
    float *centers;
    float tile[KV_TILE * KV_NEAREST_MAX_D];
    struct kv_pair pair[PAIRS];
    uint16_t group[KV_MAX_GROUPS]; /* all */
    struct kv_centroids book, in_f32;
};

/* Few or many centers, in whole blocks or not, on a grid (ties) or near 0, with
 * vectors beyond all of them. */
static void *open_search(size_t i, struct check_size *size)
{
    static const size_t ns[] = {1, 15, 16, 17, 33, 63, 64};
    static const size_t ks[] = {1, 3, 37, 64, 100, 150, 256};
    const size_t d = i % KV_NEAREST_MAX_D + 1, at = i / KV_NEAREST_MAX_D;
    const bool timed = at == COUNT(ks);
    const size_t k = timed ? 256 : ks[at % COUNT(ks)];
    float x[KV_TILE * KV_NEAREST_MAX_D];
    const bool coarse = !timed && i % 3 == 1;
    const float shift = !timed && i % 3 == 2 ? 1e3f : 0;
    struct search *s;

    if (at > COUNT(ks))
        return NULL;
    s = kv_alloc(1, sizeof(*s));
    s->n = timed ? KV_TILE : ns[i % COUNT(ns)];
    s->size = (size_t)1 << i % 3;
    s->groups = (k + s->size * KV_BLOCK - 1) / (s->size * KV_BLOCK);
    snprintf(size->label, sizeof(size->label), "d%zu k%zu n%zu", d, k, s->n);
    size->timed = timed && (d == 2 || d == 4 || d == 8);
    s->centers = kv_alloc(k, d * sizeof(float));
    fill_normal(x, s->n * d, 1, coarse);
    fill_normal(s->centers, k * d, 2, coarse);
    for (size_t j = 0; j < s->n * d; j++)
        x[j] = (x[j] + shift) * (!timed && j / d % 7 == 3 ? 30 : 1);
    for (size_t j = 0; j < k * d; j++)
        s->centers[j] += shift;
    kv_tile_fill(x, s->n, d, s->tile);
    for (size_t j = 0; j < PAIRS; j++)
        s->pair[j] = (struct kv_pair){(uint16_t)(j % s->n),
                                      (uint16_t)(j / 3 % s->groups)};
    for (size_t g = 0; g < s->groups; g++)
        s->group[g] = (uint16_t)g;
    kv_centroids_init(&s->book, s->centers, k, d);
    s->in_f32 = s->book;
    s->in_f32.whole = NULL;
    return s;
}

static void close_search(void *in)
{
    struct search *s = in;

    kv_centroids_clear(&s->book);
    free(s->centers);
    free(s);
}

/* Without distances: by 16-bit integers, if the codebook has them. */
static size_t tile(const void *in, void *out)
{
    const struct search *s = in;
    uint16_t code[KV_TILE];

    kv_tile_nearest(&s->book, s->tile, s->n, code, NULL);
    memcpy(out, code, s->n * sizeof(*code));
    return s->n * sizeof(*code);
}

static size_t with_distances(const void *in, void *out)
{
    const struct search *s = in;
    uint16_t code[KV_TILE];
    float dist[KV_TILE];

    kv_tile_nearest(&s->in_f32, s->tile, s->n, code, dist);
    memcpy(out, dist, s->n * sizeof(*dist));
    memcpy((float *)out + s->n, code, s->n * sizeof(*code));
    return s->n * (sizeof(*dist) + sizeof(*code));
}

static size_t closer(const void *in, void *out)
{
    const struct search *s = in;
    float *dist = out;

    for (size_t i = 0; i < KV_TILE; i++)
        dist[i] = i % 2 ? INFINITY : (float)s->book.d;
    kv_tile_closer(s->tile, s->book.d, s->centers, dist);
    return KV_TILE * sizeof(*dist);
}

static size_t min(const void *in, void *out)
{
    const struct search *s = in;

    if (!s->book.block)
        return CHECK_NONE;
    kv_tile_min(&s->book, s->tile, s->size, s->pair, PAIRS, out);
    return PAIRS * sizeof(float);
}

/* The vector's nearest center is in one of the groups. */
static size_t first(const void *in, void *out)
{
    const struct search *s = in;
    float dist[PAIRS];
    uint16_t *code = out;

    if (!s->book.block)
        return CHECK_NONE;
    kv_tile_min(&s->book, s->tile, s->size, s->pair, PAIRS, dist);
    for (size_t i = 0; i < PAIRS; i++)
        code[i] =
            kv_tile_first(&s->book, s->tile, s->size, s->pair[i], dist[i]);
    return PAIRS * sizeof(*code);
}

static size_t among(const void *in, void *out)
{
    const struct search *s = in;
    float reach[KV_TILE], gap[KV_MAX_GROUPS + 4];
    uint16_t code[KV_TILE], nearest[KV_TILE];
    uint64_t sure = 0;

    if (!s->book.whole)
        return CHECK_NONE;
    for (size_t i = 0; i < s->n; i += KV_SIDE)
        sure |= kv_tile_among(&s->book, s->tile, i, s->size, s->group,
                              s->groups, code, reach, gap);
    kv_tile_nearest(&s->in_f32, s->tile, s->n, nearest, NULL);
    for (size_t i = 0; i < s->n; i++)
        ((uint16_t *)out)[i] = sure >> i & 1 ? code[i] : nearest[i];
    return s->n * sizeof(*code);
}

#define OP(name, member, run)                             \
    {                                                     \
        name, RUNS(struct kv_nearest_ops, member), 0, run \
    }
static const struct check_op ops[] = {
    OP("tile", tile, tile),
    OP("tile with distances", tile, with_distances),
    OP("closer", closer, closer),
    OP("min", min, min),
    OP("first", first, first),
    OP("among", among, among),
};

const struct check_family check_nearest = {
    "nearest",   MEMBERS(struct kv_nearest_ops),
    ops,         COUNT(ops),
    false,       open_search,
    close_search};
