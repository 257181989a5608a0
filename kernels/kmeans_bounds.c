/* The nearest center of every point, round after round of k-means.
 *
 * The centers are put into groups of neighbors, and the points in the order of
 * their centers, so that those of a tile ask the same groups.  For each point
 * and group a bound is kept: no center of the group is nearer than that.  It is
 * the least distance when the group was last asked, less what its fastest
 * center has moved since, by the triangle inequality.  A round asks the group
 * of the center that the point had, and then the groups whose bounds are not
 * beyond what was found there: a few per cent of all distances in most rounds
 * (Yinyang k-means, Ding et al. 2015, with the centers that stay measured
 * again).
 *
 * In the first round, where no group was asked yet, the bounds are what the
 * center that the point has is away from the groups, less what the point is
 * away from it.
 *
 * Instead of lowering all bounds after each round, a group's way is added up,
 *
 *   bound = root of the least s + way then       asked where
 *   bound < (1 + 1e-3) root of the s found + 1e-15 + (1 + 1e-5) way now
 *
 * where the factors leave room for rounding: a distance in f32 is off by some
 * 2e-6 of itself, the sums by 6e-8 of theirs, and what is below 1e-15 loses
 * its precision when it is squared.  A group that is left out can neither win
 * nor tie. */
#include "kernels/kmeans_impl.h"
#include "kernels/nearest.h"
#include "kernels/prefetch.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_GROUPS = 128,
    LANES = 16,      /* bounds are compared so many at once */
    ROOM = 512,      /* pairs are asked when there are so many */
    AHEAD = 4096,    /* bounds are fetched so many bytes early */
    WORTH_POINTS = 8 /* for each center: so many repay what part() takes */
};

/* Bounds take at most so many bytes. */
static const size_t MOST_BYTES = (size_t)1 << 30;

struct kv_bounds {
    size_t k, d;
    size_t size;      /* centers of a group, the last has less: whole blocks */
    size_t n_groups;  /* at most MOST_GROUPS */
    size_t width;     /* n_groups in whole LANES */
    uint16_t *center; /* [k]: in the order of groups, rising in each */
    uint16_t *group;  /* [k]: of each center */
    float *last;      /* [k][d]: the centers as they were, in this order */
    double *way;      /* [n_groups]: of the fastest centers, added up */
    uint32_t *order;  /* [n points]: by the places of their centers at first */
    float *tile;      /* [n_tiles][d][64]: the points in this order */
    float *bound;     /* [n points][width]: too; infinite past n_groups */
    bool asked;       /* not at first, when all bounds are 0 */
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
    double most = -1;
    size_t at = 0;

    for (size_t j = 0; j < d; j++) {
        double sum = 0, square = 0;

        for (size_t i = 0; i < n; i++) {
            const double x = (double)centers[center[i] * d + j];

            sum += x;
            square += x * x;
        }
        square -= sum * sum / (double)n;
        if (square > most) {
            most = square;
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

static size_t whole_lanes(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

static void set_size(struct kv_bounds *b, size_t size)
{
    b->size = size;
    b->n_groups = (b->k + size - 1) / size;
    b->width = whole_lanes(b->n_groups);
}

/* As small as the number of groups and the room for bounds allow. */
static void choose_size(struct kv_bounds *b, size_t n)
{
    assert(n <= KV_BOUNDS_MOST_POINTS);
    set_size(b, KV_BLOCK);
    while (b->n_groups > MOST_GROUPS ||
           n * b->width > MOST_BYTES / sizeof(float))
        set_size(b, 2 * b->size);
}

/* from [k][d] in the order of groups. */
static void put_in_order(const struct kv_bounds *b, const float *from,
                         float *to)
{
    for (size_t c = 0; c < b->k; c++)
        memcpy(to + c * b->d, from + b->center[c] * b->d, b->d * sizeof(*to));
}

/* Points of neighboring centers side by side. */
static void order_points(struct kv_bounds *b, const struct kv_points *p)
{
    size_t *start = kv_alloc(b->k + 1, sizeof(*start));
    uint16_t *at = kv_alloc(b->k, sizeof(*at));
    float *x = kv_alloc(KV_TILE, b->d * sizeof(*x));

    for (size_t c = 0; c < b->k; c++)
        at[b->center[c]] = (uint16_t)c;
    for (size_t i = 0; i < p->n; i++)
        start[at[p->code[i]] + 1]++;
    for (size_t c = 0; c < b->k; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < p->n; i++)
        b->order[start[at[p->code[i]]]++] = (uint32_t)i;
    for (size_t i = 0; i < p->n; i += KV_TILE) {
        const size_t m = p->n - i < KV_TILE ? p->n - i : KV_TILE;

        for (size_t j = 0; j < m; j++)
            memcpy(x + j * b->d, p->x + b->order[i + j] * b->d,
                   b->d * sizeof(*x));
        kv_tile_fill(x, m, b->d, b->tile + i * b->d);
    }
    free(x);
    free(at);
    free(start);
}

struct kv_bounds *kv_bounds_new(const struct kv_points *p, const float *centers,
                                size_t k)
{
    struct kv_bounds *b = kv_alloc(1, sizeof(*b));
    struct place *scratch = kv_alloc(k, sizeof(*scratch));

    b->k = k;
    b->d = p->d;
    choose_size(b, p->n);
    b->center = kv_alloc(k, sizeof(*b->center));
    b->group = kv_alloc(k, sizeof(*b->group));
    b->last = kv_alloc(k, b->d * sizeof(*b->last));
    b->way = kv_alloc(b->n_groups, sizeof(*b->way));
    b->order = kv_alloc(p->n, sizeof(*b->order));
    b->tile = kv_alloc(p->n_tiles, KV_TILE * b->d * sizeof(*b->tile));
    b->bound = kv_alloc(p->n, b->width * sizeof(*b->bound));
    for (size_t c = 0; c < k; c++)
        b->center[c] = (uint16_t)c;
    bisect(centers, b->d, b->size, b->center, k, scratch);
    for (size_t c = 0; c < k; c++)
        b->group[b->center[c]] = (uint16_t)(c / b->size);
    put_in_order(b, centers, b->last);
    order_points(b, p);
    for (size_t i = 0; i < p->n; i++)
        for (size_t g = b->n_groups; g < b->width; g++)
            b->bound[i * b->width + g] = INFINITY;
    free(scratch);
    return b;
}

void kv_bounds_free(struct kv_bounds *b)
{
    if (!b)
        return;
    free(b->center);
    free(b->group);
    free(b->last);
    free(b->way);
    free(b->order);
    free(b->tile);
    free(b->bound);
    free(b);
}

/* The centers move to `now`, in the order of groups. */
static void move(struct kv_bounds *b, const float *now)
{
    for (size_t g = 0; g < b->n_groups; g++) {
        const size_t end = (g + 1) * b->size < b->k ? (g + 1) * b->size : b->k;
        double most = 0;

        for (size_t c = g * b->size; c < end; c++) {
            double square = 0;

            for (size_t j = c * b->d; j < (c + 1) * b->d; j++) {
                const double by = (double)now[j] - (double)b->last[j];

                square += by * by;
            }
            most = square > most ? square : most;
        }
        b->way[g] += sqrt(most);
    }
    memcpy(b->last, now, b->k * b->d * sizeof(*now));
}

/* What all tiles of a round share. */
struct round {
    const struct kv_bounds *b;
    struct kv_codebook book;  /* in the order of groups */
    float moved[MOST_GROUPS]; /* the way of each group */
    float limit[MOST_GROUPS]; /* and with room for rounding */
    float *apart;    /* [k][n_groups]: how far each center, in the order of
                      * groups, is at least from each group; NULL where bounds
                      * are known, or not worth it */
    uint16_t *place; /* [k]: of each center in that order; too */
};

/* A tile's points, and what is asked of them. */
struct asked {
    const float *tile;
    float *bound; /* [points][width] */
    float dist[KV_TILE];
    uint16_t code[KV_TILE];
    size_t n;
    struct kv_pair pair[ROOM + MOST_GROUPS];
    float least[ROOM + MOST_GROUPS];
};

static void add(struct asked *a, size_t i, size_t g)
{
    a->pair[a->n++] = (struct kv_pair){(uint16_t)i, (uint16_t)g};
}

/* The center of this s in the group, for the point, if it is nearer. */
static void take(const struct round *r, struct asked *a, struct kv_pair pair,
                 float s)
{
    const uint16_t c = r->b->center[kv_tile_first(
        &r->book, a->tile, r->b->size / KV_BLOCK, pair, s)];

    if (s < a->dist[pair.vector] || c < a->code[pair.vector])
        a->code[pair.vector] = c;
    a->dist[pair.vector] = s;
}

/* How far s is at least: it may have overflowed. */
static float root_of(float s)
{
    return sqrtf(s <= FLT_MAX ? s : FLT_MAX);
}

/* Asks the pairs there are. */
static void ask(const struct round *r, struct asked *a)
{
    kv_tile_least(&r->book, a->tile, r->b->size / KV_BLOCK, a->pair, a->n,
                  a->least);
    for (size_t p = 0; p < a->n; p++) {
        const struct kv_pair pair = a->pair[p];
        const float s = a->least[p];

        a->bound[pair.vector * r->b->width + pair.group] =
            root_of(s) + r->moved[pair.group];
        if (s <= a->dist[pair.vector])
            take(r, a, pair, s);
    }
    a->n = 0;
}

/* In the first round: how near a group can be to a point by the center that it
 * has, without asking. */
static void guess(const struct round *r, struct asked *a, size_t i)
{
    const struct kv_bounds *b = r->b;
    const float *apart = r->apart + r->place[a->code[i]] * b->n_groups;
    const float own = sqrtf(a->dist[i]) * (1 + 1e-5f);
    float *bound = a->bound + i * b->width;

    for (size_t g = 0; g < b->n_groups; g++) {
        const float by = apart[g] - own + r->moved[g];

        bound[g] = by > bound[g] ? by : bound[g];
    }
}

static void assign_tile(const struct round *r, struct asked *a, size_t n)
{
    const struct kv_bounds *b = r->b;
    uint16_t own[KV_TILE];

    for (size_t i = 0; i < n; i++) {
        own[i] = b->group[a->code[i]];
        a->dist[i] = INFINITY;
        add(a, i, own[i]);
    }
    ask(r, a);
    for (size_t i = 0; i < n; i++) {
        const float reach = 1.001f * sqrtf(a->dist[i]) + 1e-15f;

        kv_prefetch_near(a->bound + i * b->width, AHEAD,
                         b->width * sizeof(*a->bound));
        if (r->apart)
            guess(r, a, i);
        for (size_t g = 0; g < b->width; g += 64) {
            const size_t m = b->width - g < 64 ? b->width - g : 64;
            uint64_t open = kv_bits_below(a->bound + i * b->width + g,
                                          r->limit + g, reach, m);

            if (own[i] / 64 == g / 64)
                open &= ~((uint64_t)1 << own[i] % 64);
            for (; open; open &= open - 1)
                add(a, i, g + (size_t)__builtin_ctzll(open));
        }
        if (a->n >= ROOM)
            ask(r, a);
    }
    ask(r, a);
}

static void assign_tiles(const struct round *r, struct kv_points *p)
{
    const struct kv_bounds *b = r->b;

#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < p->n_tiles; t++) {
        const size_t first = t * KV_TILE;
        const size_t n = p->n - first < KV_TILE ? p->n - first : KV_TILE;
        struct asked a;

        a.tile = b->tile + first * b->d;
        a.bound = b->bound + first * b->width;
        a.n = 0;
        for (size_t i = 0; i < n; i++)
            a.code[i] = p->code[b->order[first + i]];
        assign_tile(r, &a, n);
        for (size_t i = 0; i < n; i++) {
            p->code[b->order[first + i]] = a.code[i];
            p->dist[b->order[first + i]] = a.dist[i];
        }
    }
}

/* A tile's centers, which are points here. */
static void part_tile(const struct round *r, size_t first, float *x,
                      struct asked *a)
{
    const struct kv_bounds *b = r->b;
    const size_t n = b->k - first < KV_TILE ? b->k - first : KV_TILE;

    kv_tile_fill(r->book.centers + first * b->d, n, b->d, x);
    for (size_t i = 0; i < n; i++) {
        float *apart = r->apart + (first + i) * b->n_groups;

        a->n = 0;
        for (size_t g = 0; g < b->n_groups; g++)
            add(a, i, g);
        kv_tile_least(&r->book, x, b->size / KV_BLOCK, a->pair, a->n, apart);
        for (size_t g = 0; g < b->n_groups; g++)
            apart[g] = root_of(apart[g]) * (1 - 1e-5f);
    }
}

/* Sets apart and place. */
static void part(struct round *r)
{
    const struct kv_bounds *b = r->b;

    r->apart = kv_alloc(b->k, b->n_groups * sizeof(*r->apart));
    r->place = kv_alloc(b->k, sizeof(*r->place));
    for (size_t c = 0; c < b->k; c++)
        r->place[b->center[c]] = (uint16_t)c;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < b->k; first += KV_TILE) {
        float x[KV_VQ_MAX_D * KV_TILE];
        struct asked a;

        part_tile(r, first, x, &a);
    }
}

void kv_bounds_assign(struct kv_bounds *b, struct kv_points *p,
                      const float *centers)
{
    float *now = kv_alloc(b->k, b->d * sizeof(*now));
    struct round r = {.b = b};

    put_in_order(b, centers, now);
    move(b, now);
    for (size_t g = 0; g < b->n_groups; g++) {
        r.moved[g] = (float)b->way[g];
        r.limit[g] = (float)(b->way[g] * (1 + 1e-5));
    }
    kv_codebook_init(&r.book, now, b->k, b->d);
    assert(r.book.block);
    if (!b->asked && p->n >= WORTH_POINTS * b->k)
        part(&r);
    assign_tiles(&r, p);
    b->asked = true;
    free(r.apart);
    free(r.place);
    kv_codebook_clear(&r.book);
    free(now);
}
