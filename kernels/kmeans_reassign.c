/* The nearest center of every point, given a center a that is near it.
 *
 * A center c with |c - a| >= 2 |x - a| is no nearer to x than a is, by the
 * triangle inequality.  So the points of one center, sorted by distance, need
 * to be measured only against those around it: with thousands of centers a few
 * per cent.  Squared and with room for rounding (1e-3, against 2e-6 of a
 * distance in f32), c is left out where
 *
 *   s(c, a) >= 4 (1.001 s(x, a) + 1e-30)
 *
 * and then s(x, c) > s(x, a): it can neither win nor tie.  Those that are left
 * are asked in their order, so that the lowest index still wins a tie. */
#include "kernels/kmeans_impl.h"
#include "kernels/nearest.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Points by their center: those of c are order[start[c]] .. [start[c + 1]]. */
static void sort_by_center(const struct kv_points *p, size_t k, size_t *start,
                           uint32_t *order)
{
    memset(start, 0, (k + 1) * sizeof(*start));
    for (size_t i = 0; i < p->n; i++)
        start[p->code[i] + 1]++;
    for (size_t c = 0; c < k; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < p->n; i++)
        order[start[p->code[i]]++] = (uint32_t)i;
    memmove(start + 1, start, k * sizeof(*start));
    start[0] = 0;
}

/* Short copies, for which a call would cost more. */
static inline void copy(const float *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* order: 0 .. n - 1, by s, roughly: in BUCKETS steps up to the largest. */
static void sort_by_distance(const float *s, size_t n, uint32_t *order)
{
    enum { BUCKETS = 32 };
    size_t start[BUCKETS + 1] = {0};
    float most = 0, by;

    for (size_t i = 0; i < n; i++)
        most = s[i] > most ? s[i] : most;
    by = most > 0 ? (BUCKETS - 1) / most : 0;
    by = isfinite(by) ? by : 0;
    for (size_t i = 0; i < n; i++)
        start[(size_t)(s[i] * by) + 1]++;
    for (size_t i = 0; i < BUCKETS; i++)
        start[i + 1] += start[i];
    for (size_t i = 0; i < n; i++)
        order[start[(size_t)(s[i] * by)]++] = (uint32_t)i;
}

/* What one thread works with. */
struct room {
    float *value, *s;        /* of one center's points: [][d], distances */
    uint32_t *order;         /* of these points */
    float *tile;             /* [d][64] */
    float *apart;            /* [whole tiles of k]: of the centers from it */
    uint16_t *around, *some; /* [k]: centers */
    float *book;             /* [k][d] */
};

static struct room new_room(size_t k, size_t d, size_t most)
{
    const size_t whole = (k + KV_TILE - 1) / KV_TILE * KV_TILE;

    return (struct room){
        .value = kv_alloc(most, d * sizeof(float)),
        .s = kv_alloc(most + KV_TILE, sizeof(float)),
        .order = kv_alloc(most, sizeof(uint32_t)),
        .tile = kv_alloc(KV_TILE, d * sizeof(float)),
        .apart = kv_alloc(whole, sizeof(float)),
        .around = kv_alloc(k, sizeof(uint16_t)),
        .some = kv_alloc(k, sizeof(uint16_t)),
        .book = kv_alloc(k, d * sizeof(float)),
    };
}

static void free_room(struct room *r)
{
    free(r->value);
    free(r->s);
    free(r->order);
    free(r->tile);
    free(r->apart);
    free(r->around);
    free(r->some);
    free(r->book);
}

static float reach(float s)
{
    return 4 * (1.001f * s + 1e-30f);
}

/* Those of the k centers that are within the reach of one; apart: [k], of all.
 */
static size_t select_around(const float *tile, size_t k, size_t d,
                            const float *center, float within, float *apart,
                            uint16_t *to)
{
    size_t m = 0;

    for (size_t i = 0; i < k; i += KV_TILE) {
        const uint64_t all =
            k - i < KV_TILE ? ((uint64_t)1 << (k - i)) - 1 : UINT64_MAX;
        uint64_t near =
            all & kv_tile_within(tile + i * d, d, center, within, apart + i);

        for (; near; near &= near - 1)
            to[m++] = (uint16_t)(i + (size_t)__builtin_ctzll(near));
    }
    return m;
}

/* Those of n centers. */
static size_t select_some(const float *s, float within, const uint16_t *from,
                          size_t n, uint16_t *to)
{
    size_t m = 0;

    for (size_t i = 0; i < n; i++) {
        to[m] = from[i];
        m += s[from[i]] < within;
    }
    return m;
}

/* The reach of those of the n points. */
static float reach_of(const float *s, const uint32_t *order, size_t n)
{
    float most = 0;

    for (size_t i = 0; i < n; i++)
        most = s[order[i]] > most ? s[order[i]] : most;
    return reach(most);
}

/* Asks for the nearest of n_some centers (r->some), for n <= 64 points. */
static void decide(struct kv_points *p, const float *centers, size_t n_some,
                   const uint32_t *index, const uint32_t *order, size_t n,
                   struct room *r)
{
    const size_t d = p->d;
    uint16_t code[KV_TILE];
    float s[KV_TILE];

    for (size_t i = 0; i < n_some; i++)
        copy(centers + r->some[i] * d, d, r->book + i * d);
    /* A search without tables: they would cost more than they save here. */
    const struct kv_codebook book = {
        .k = n_some, .d = d, .centers = r->book};

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            r->tile[j * KV_TILE + i] = r->value[order[i] * d + j];
    kv_tile_nearest(&book, r->tile, n, code, s);
    for (size_t i = 0; i < n; i++) {
        p->code[index[order[i]]] = r->some[code[i]];
        p->dist[index[order[i]]] = s[i];
    }
}

/* The points by their centers. */
struct sorted {
    size_t *start;   /* [k + 1]: points of each center in order */
    uint32_t *order; /* [n] */
    float *tile;     /* [whole tiles of k][d][64]: all centers */
    size_t most;     /* points of one center */
};

static struct sorted new_sorted(const struct kv_points *p, const float *centers,
                                size_t k)
{
    const size_t d = p->d, n_tiles = (k + KV_TILE - 1) / KV_TILE;
    struct sorted s = {0};

    assert(p->n <= UINT32_MAX);
    s.start = kv_alloc(k + 1, sizeof(*s.start));
    s.order = kv_alloc(p->n, sizeof(*s.order));
    s.tile = kv_alloc(n_tiles, KV_TILE * d * sizeof(*s.tile));
    sort_by_center(p, k, s.start, s.order);
    for (size_t c = 0; c < k; c++) {
        const size_t n = s.start[c + 1] - s.start[c];

        s.most = n > s.most ? n : s.most;
    }
    for (size_t c = 0; c < k; c += KV_TILE)
        kv_tile_fill(centers + c * d, k - c < KV_TILE ? k - c : KV_TILE, d,
                     s.tile + c * d);
    return s;
}

static void free_sorted(const struct sorted *s)
{
    free(s->start);
    free(s->order);
    free(s->tile);
}

/* Sorts the points of center c, and finds the centers around them all: returns
 * how many. */
static size_t look_around(const struct kv_points *p, const float *centers,
                          size_t k, const struct sorted *by, size_t c,
                          struct room *r)
{
    const uint32_t *index = by->order + by->start[c];
    const size_t n = by->start[c + 1] - by->start[c], d = p->d;

    for (size_t i = 0; i < n; i++)
        copy(p->x + index[i] * d, d, r->value + i * d);
    for (size_t i = 0; i < n; i += KV_TILE) {
        kv_tile_fill(r->value + i * d, n - i < KV_TILE ? n - i : KV_TILE, d,
                     r->tile);
        kv_tile_within(r->tile, d, centers + c * d, 0, r->s + i);
    }
    sort_by_distance(r->s, n, r->order);
    return select_around(by->tile, k, d, centers + c * d,
                         reach_of(r->s, r->order, n), r->apart, r->around);
}

static void reassign_points(struct kv_points *p, const float *centers, size_t k,
                            const struct sorted *by, size_t c, struct room *r)
{
    const size_t n = by->start[c + 1] - by->start[c];
    const size_t pieces = (n + KV_TILE - 1) / KV_TILE;
    const size_t n_around = look_around(p, centers, k, by, c, r);

    for (size_t piece = 0; piece < pieces; piece++) {
        const size_t i = n * piece / pieces;
        const size_t m = n * (piece + 1) / pieces - i;
        const size_t n_some =
            select_some(r->apart, reach_of(r->s, r->order + i, m), r->around,
                        n_around, r->some);

        decide(p, centers, n_some, by->order + by->start[c], r->order + i, m,
               r);
    }
}

double kv_points_share(const struct kv_points *p, const float *centers,
                       size_t k)
{
    enum { EVERY = 32 };
    const struct sorted by = new_sorted(p, centers, k);
    struct room r = new_room(k, p->d, by.most);
    size_t asked = 0, n = 0;

    for (size_t c = 0; c < k; c += EVERY) {
        const size_t of_c = by.start[c + 1] - by.start[c];

        if (of_c)
            asked += of_c * look_around(p, centers, k, &by, c, &r);
        n += of_c;
    }
    free_room(&r);
    free_sorted(&by);
    return n ? (double)asked / (double)n / (double)k : 1;
}

void kv_points_reassign(struct kv_points *p, const float *centers, size_t k)
{
    const struct sorted by = new_sorted(p, centers, k);

#pragma omp parallel
    {
        struct room r = new_room(k, p->d, by.most);

#pragma omp for schedule(dynamic, 8)
        for (size_t c = 0; c < k; c++)
            if (by.start[c + 1] > by.start[c])
                reassign_points(p, centers, k, &by, c, &r);
        free_room(&r);
    }
    free_sorted(&by);
}
