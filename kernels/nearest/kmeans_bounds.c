/* The nearest center of every point, round after round of k-means.
 *
 * The centers are put into groups of neighbors, and the points are sorted by
 * their centers.  Sixteen consecutive points, a side, are near each other and
 * search groups together (kv_tile_among).  reach(point) >= the distance to its
 * nearest center.  For each side and group a bound is kept: bound <=
 * distance(point, center) - reach(point) for all points of the side and centers
 * of the group.  It was measured when the group was last searched.  Since then,
 * by the triangle inequality, it has shrunk by the movement of the group's
 * fastest center and by the growth of the points' reach.  A round measures the
 * reach again, by the points' previous centers; searches the groups whose
 * bounds are not above 0, few in most rounds; and gets a new reach from these
 * groups (Yinyang k-means, Ding et al. 2015, with one bound for several points,
 * and with all distances to the searched groups).
 *
 * Instead of lowering all bounds after each round, we add up the movement of
 * each group and the growth of each side's reach (the maximum over its points):
 *
 *   bound = gap + way then + grown then       searched where
 *   bound < (1 + 1e-6) (way now + grown now)
 *
 * where the factors leave room for the rounding of the sums.  Distances in f32
 * have a relative error of about 1e-6: reach gets 4e-6 more, and 1e-15, below
 * which squares lose their precision.  A skipped group can neither win nor
 * tie. */
#include "kernels/nearest/kmeans_bounds.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct kv_bounds {
    size_t k, d;
    size_t size;      /* blocks of a group, the last has less */
    size_t n_groups;  /* at most KV_MAX_GROUPS */
    uint16_t *center; /* [k]: in the order of groups, rising in each */
    uint16_t *place;  /* [k]: index of each center in this order */
    float *last;      /* [k][d]: the last centers, in this order */
    double *way;      /* [n_groups]: movement of the fastest centers, added
                       * up */
    uint32_t *order;  /* [n points]: sorted by the places of their first
                       * centers */
    float *tile;      /* [n_tiles][d][64]: the points in this order; the last
                       * point repeats to the end of the tile */
    float *reach;     /* [n_tiles][64]: from kv_tile_among(), in this order */
    double *grown;    /* [sides]: never below 0, as no reach is */
    float *bound;     /* [sides][n_groups] */
};

struct place {
    float at;
    uint16_t center;
};

static int by_place(const void *a, const void *b)
{
    const struct place *p = a, *q = b;

    if (p->at != q->at)
        return p->at < q->at ? -1 : 1;
    return (p->center > q->center) - (p->center < q->center);
}

/* The dimension in which n centers vary most. */
static size_t widest(const float *centers, size_t d, const uint16_t *center,
                     size_t n)
{
    double max = -1;
    size_t at = 0;

    for (size_t j = 0; j < d; j++) {
        double sum = 0, square = 0;

        for (size_t i = 0; i < n; i++) {
            const double x = (double)centers[center[i] * d + j];

            sum += x;
            square += x * x;
        }
        square -= sum * sum / (double)n;
        if (square > max) {
            max = square;
            at = j;
        }
    }
    return at;
}

/* Orders n centers so that each `size` of them are neighbors: halves of whole
 * groups along the widest dimension, and so on. */
static void bisect(const float *centers, size_t d, size_t size,
                   uint16_t *center, size_t n, struct place *scratch)
{
    const size_t groups = (n + size - 1) / size, half = groups / 2 * size;
    const bool whole = groups < 2;
    const size_t j = whole ? 0 : widest(centers, d, center, n);

    for (size_t i = 0; i < n; i++)
        scratch[i] =
            (struct place){whole ? 0 : centers[center[i] * d + j], center[i]};
    qsort(scratch, n, sizeof(*scratch), by_place);
    for (size_t i = 0; i < n; i++)
        center[i] = scratch[i].center;
    if (whole)
        return;
    bisect(centers, d, size, center, half, scratch);
    bisect(centers, d, size, center + half, n - half, scratch);
}

/* Chooses the smallest size with at most KV_MAX_GROUPS groups. */
static void choose_size(struct kv_bounds *b)
{
    b->size = 1;
    while (b->k > KV_MAX_GROUPS * b->size * KV_BLOCK)
        b->size *= 2;
    b->n_groups = (b->k + b->size * KV_BLOCK - 1) / (b->size * KV_BLOCK);
}

/* Writes from [k][d] in the order of groups. */
static void put_in_order(const struct kv_bounds *b, const float *from,
                         float *to)
{
    for (size_t c = 0; c < b->k; c++)
        memcpy(to + c * b->d, from + b->center[c] * b->d, b->d * sizeof(*to));
}

/* The point that is the i-th in order, or the last. */
static size_t point(const struct kv_bounds *b, const struct kv_points *p,
                    size_t i)
{
    return b->order[i < p->n ? i : p->n - 1];
}

/* Sorts points by center, neighboring centers in sequence. */
static void order_points(struct kv_bounds *b, const struct kv_points *p)
{
    size_t *start = kv_alloc(b->k + 1, sizeof(*start));
    float *x = kv_alloc(KV_TILE, b->d * sizeof(*x));

    for (size_t i = 0; i < p->n; i++)
        start[b->place[p->code[i]] + 1]++;
    for (size_t c = 0; c < b->k; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < p->n; i++)
        b->order[start[b->place[p->code[i]]]++] = (uint32_t)i;
    for (size_t i = 0; i < p->n; i += KV_TILE) {
        for (size_t j = 0; j < KV_TILE; j++)
            memcpy(x + j * b->d, p->x + point(b, p, i + j) * b->d,
                   b->d * sizeof(*x));
        kv_tile_fill(x, KV_TILE, b->d, b->tile + i * b->d);
    }
    free(x);
    free(start);
}

struct kv_bounds *kv_bounds_new(const struct kv_points *p, const float *centers,
                                size_t k)
{
    const size_t sides = p->n_tiles * (KV_TILE / KV_SIDE);
    struct kv_bounds *b = kv_alloc(1, sizeof(*b));
    struct place *scratch = kv_alloc(k, sizeof(*scratch));

    assert(p->n <= KV_BOUNDS_MAX_POINTS);
    b->k = k;
    b->d = p->d;
    choose_size(b);
    b->center = kv_alloc(k, sizeof(*b->center));
    b->place = kv_alloc(k, sizeof(*b->place));
    b->last = kv_alloc(k, b->d * sizeof(*b->last));
    b->way = kv_alloc(b->n_groups, sizeof(*b->way));
    b->order = kv_alloc(p->n, sizeof(*b->order));
    b->tile = kv_alloc(p->n_tiles, KV_TILE * b->d * sizeof(*b->tile));
    b->reach = kv_alloc(p->n_tiles, KV_TILE * sizeof(*b->reach));
    b->grown = kv_alloc(sides, sizeof(*b->grown));
    b->bound = kv_alloc(sides, b->n_groups * sizeof(*b->bound));
    for (size_t c = 0; c < k; c++)
        b->center[c] = (uint16_t)c;
    bisect(centers, b->d, b->size * KV_BLOCK, b->center, k, scratch);
    for (size_t c = 0; c < k; c++)
        b->place[b->center[c]] = (uint16_t)c;
    put_in_order(b, centers, b->last);
    order_points(b, p);
    for (size_t i = 0; i < sides * b->n_groups; i++)
        b->bound[i] = -INFINITY;
    free(scratch);
    return b;
}

void kv_bounds_free(struct kv_bounds *b)
{
    if (!b)
        return;
    free(b->center);
    free(b->place);
    free(b->last);
    free(b->way);
    free(b->order);
    free(b->tile);
    free(b->reach);
    free(b->grown);
    free(b->bound);
    free(b);
}

/* The centers move to `now`, in the order of groups. */
static void move(struct kv_bounds *b, const float *now)
{
    const size_t size = b->size * KV_BLOCK;

    for (size_t g = 0; g < b->n_groups; g++) {
        const size_t end = (g + 1) * size < b->k ? (g + 1) * size : b->k;
        double max = 0;

        for (size_t c = g * size; c < end; c++) {
            double square = 0;

            for (size_t j = c * b->d; j < (c + 1) * b->d; j++) {
                const double by = (double)now[j] - (double)b->last[j];

                square += by * by;
            }
            max = square > max ? square : max;
        }
        b->way[g] += sqrt(max);
    }
    memcpy(b->last, now, b->k * b->d * sizeof(*now));
}

/* Shared by all sides of a round. */
struct round {
    struct kv_bounds *b;
    struct kv_centroids book;   /* centers ordered by group */
    float limit[KV_MAX_GROUPS]; /* the movement of each group, rounded up */
};

/* Sixteen points of a tile, and the groups that they search. */
struct side {
    const float *tile;
    size_t first;
    float *reach;   /* [64] of the tile */
    uint16_t *code; /* [64] of the tile: the places of their centers */
    uint16_t group[KV_MAX_GROUPS];
    size_t n;
};

/* How far a point of a tile is from a center, at most. */
static float away(const float *x, const float *center, size_t d)
{
    float s = 0;

    for (size_t j = 0; j < d; j++) {
        const float t = x[j * KV_TILE] - center[j];

        s += t * t;
    }
    return sqrtf(s) * (1 + 4e-6f) + 1e-15f;
}

/* How much more `to` is than `from`, for one point at most; NaN: not known. */
static double rise(const float *from, const float *to)
{
    double max = -INFINITY;

    for (size_t i = 0; i < KV_SIDE; i++) {
        const double by = (double)to[i] - (double)from[i];

        if (isnan(by))
            return NAN;
        max = by > max ? by : max;
    }
    return max;
}

/* The groups of the points' own centers are always chosen: their bounds are not
 * above 0. */
static void choose_groups(const struct round *r, const float *bound,
                          double grown, struct side *s)
{
    const float margin = (float)(grown * (1 + 1e-6));
    int32_t open[KV_MAX_GROUPS];
    size_t n = 0;

    for (size_t g = 0; g < r->b->n_groups; g++)
        open[g] = !(bound[g] >= r->limit[g] + margin); /* a NaN is open */
    for (size_t g = 0; g < r->b->n_groups; g++) {
        s->group[n] = (uint16_t)g;
        n += (size_t)open[g];
    }
    s->n = n;
}

/* The nearest center of these groups to point i, by s; on ties the first of
 * all. */
static uint16_t decide(const struct round *r, const struct side *s, size_t i)
{
    const struct kv_bounds *b = r->b;
    struct kv_pair pair[KV_MAX_GROUPS];
    float min[KV_MAX_GROUPS], dist = INFINITY;
    uint16_t center = UINT16_MAX;

    for (size_t g = 0; g < s->n; g++)
        pair[g] = (struct kv_pair){(uint16_t)i, s->group[g]};
    kv_tile_min(&r->book, s->tile, b->size, pair, s->n, min);
    for (size_t g = 0; g < s->n; g++)
        dist = min[g] < dist ? min[g] : dist;
    for (size_t g = 0; g < s->n; g++) {
        uint16_t c;

        if (min[g] > dist)
            continue;
        c = b->center[kv_tile_first(&r->book, s->tile, b->size, pair[g], dist)];
        center = c < center ? c : center;
    }
    return b->place[center];
}

static void assign_side(const struct round *r, size_t at, struct side *s)
{
    struct kv_bounds *b = r->b;
    float *bound = b->bound + at * b->n_groups, *reach = s->reach + s->first;
    float now[KV_SIDE], gap[KV_MAX_GROUPS];
    uint64_t sure;

    for (size_t i = 0; i < KV_SIDE; i++)
        now[i] = away(s->tile + s->first + i,
                      b->last + s->code[s->first + i] * b->d, b->d);
    b->grown[at] += rise(reach, now);
    choose_groups(r, bound, b->grown[at], s);
    sure = kv_tile_among(&r->book, s->tile, s->first, b->size, s->group, s->n,
                         s->code, s->reach, gap);
    b->grown[at] += rise(now, reach); /* gaps are counted from the new reach */
    for (size_t g = 0; g < s->n; g++)
        bound[s->group[g]] =
            (float)((double)gap[g] + b->way[s->group[g]] + b->grown[at]);
    for (size_t i = s->first; i < s->first + KV_SIDE; i++)
        if (!(sure >> i & 1))
            s->code[i] = decide(r, s, i);
}

/* Assigns the n points from `first` on, a tile. */
static void assign_tile(const struct round *r, struct kv_points *p,
                        size_t first, size_t n)
{
    const struct kv_bounds *b = r->b;
    uint16_t code[KV_TILE];
    struct side s = {.tile = b->tile + first * b->d,
                     .reach = b->reach + first,
                     .code = code};

    for (size_t i = 0; i < KV_TILE; i++)
        code[i] = b->place[p->code[point(b, p, first + i)]];
    for (; s.first < n; s.first += KV_SIDE)
        assign_side(r, (first + s.first) / KV_SIDE, &s);
    for (size_t i = 0; i < n; i++)
        p->code[b->order[first + i]] = b->center[code[i]];
}

static void ask_some(const struct round *r, struct kv_points *p)
{
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < p->n_tiles; t++) {
        const size_t first = t * KV_TILE;

        assign_tile(r, p, first,
                    p->n - first < KV_TILE ? p->n - first : KV_TILE);
    }
}

bool kv_bounds_assign(struct kv_bounds *b, struct kv_points *p,
                      const float *centers)
{
    float *now = kv_alloc(b->k, b->d * sizeof(*now));
    struct round r = {.b = b};
    bool known;

    put_in_order(b, centers, now);
    move(b, now);
    for (size_t g = 0; g < b->n_groups; g++)
        r.limit[g] = (float)(b->way[g] * (1 + 1e-6));
    kv_centroids_init(&r.book, now, b->k, b->d);
    known = r.book.whole != NULL;
    if (known)
        ask_some(&r, p);
    kv_centroids_clear(&r.book);
    free(now);
    return known;
}
