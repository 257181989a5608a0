#include "kernels/nearest/kmeans.h"
#include "kernels/cuda/runtime.h"
#include "kernels/nearest/cuda.h"
#include "kernels/nearest/kmeans_bounds.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORTH_THREADS = 1 << 19, /* tiles x centers x values: about 1 ms */
    WORTH_DEVICE = 1 << 16,  /* the same product, longer than the transfer
                              * takes */
    MAX_PARTS = 16           /* parts of the points in a round's sums */
};

static int check(const float *x, size_t n, size_t d, const float *weight,
                 size_t k, struct kv_err *e)
{
    size_t usable = 0;

    if (d < 1 || d > KV_NEAREST_MAX_D || k < 1 || k > KV_NEAREST_MAX_K)
        return kv_fail(e,
                       "k-means takes 1 to %d dimensions and 1 to %d "
                       "centers, not %zu and %zu",
                       KV_NEAREST_MAX_D, KV_NEAREST_MAX_K, d, k);
    for (size_t i = 0; i < n * d; i++)
        if (!(fabsf(x[i]) <= 1e18f))
            return kv_fail(e, "k-means: point %zu holds %g, beyond 1e18", i / d,
                           (double)x[i]);
    for (size_t i = 0; weight && i < n; i++)
        if (!(weight[i] >= 0 && weight[i] < INFINITY))
            return kv_fail(e,
                           "k-means: point %zu has weight %g, not a finite "
                           "number >= 0",
                           i, (double)weight[i]);
    for (size_t i = 0; i < n; i++)
        usable += !weight || weight[i] > 0;
    if (usable < k)
        return kv_fail(e, "k-means: %zu points are too few for %zu centers",
                       usable, k);
    return 0;
}

static size_t tile_points(const struct kv_points *p, size_t t)
{
    const size_t rest = p->n - t * KV_TILE;

    return rest < KV_TILE ? rest : KV_TILE;
}

/* Is measuring every point against n centers worth waking threads? */
static bool worth(const struct kv_points *p, size_t n)
{
    return p->n_tiles * n * p->d >= WORTH_THREADS;
}

static void points_init(struct kv_points *p, const float *x, size_t n, size_t d,
                        const float *weight)
{
    *p = (struct kv_points){.n = n, .d = d, .x = x, .even = !weight};
    p->n_tiles = (n + KV_TILE - 1) / KV_TILE;
    p->tile = kv_alloc(p->n_tiles, d * KV_TILE * sizeof(*p->tile));
    p->weight = kv_alloc(p->n_tiles, KV_TILE * sizeof(*p->weight));
    p->dist = kv_alloc(p->n_tiles, KV_TILE * sizeof(*p->dist));
    p->code = kv_alloc(p->n_tiles, KV_TILE * sizeof(*p->code));
    for (size_t t = 0; t < p->n_tiles; t++)
        kv_tile_fill(x + t * KV_TILE * d, tile_points(p, t), d,
                     p->tile + t * KV_TILE * d);
    for (size_t i = 0; i < n; i++)
        p->weight[i] = weight ? weight[i] : 1;
}

/* Runs on the device if all rounds together are worth it. */
static int points_to_device(struct kv_points *p, size_t k, struct kv_err *e)
{
    if (!kv_device_offloads() || p->n_tiles * k * p->d < WORTH_DEVICE)
        return 0;
    return kv_gpu_nearest_centroid_new(&p->gpu, p->tile, p->n_tiles, p->d, e);
}

static void points_clear(struct kv_points *p)
{
    kv_gpu_nearest_centroid_free(p->gpu);
    free(p->tile);
    free(p->weight);
    free(p->dist);
    free(p->code);
}

static void copy_point(const struct kv_points *p, size_t i, float *center)
{
    memcpy(center, p->x + i * p->d, p->d * sizeof(*center));
}

/* Sum of weight * dist over a tile, in one fixed order: halves onto halves. */
static double tile_mass(const struct kv_points *p, size_t t)
{
    const float *weight = p->weight + t * KV_TILE;
    const float *dist = p->dist + t * KV_TILE;
    double part[KV_TILE];

    for (size_t i = 0; i < KV_TILE; i++)
        part[i] = (double)weight[i] * (double)dist[i];
    for (size_t half = KV_TILE / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

/* Running sums of tile_mass: upto[t] includes tile t. */
static void sum_tiles(const struct kv_points *p, double *upto)
{
    double sum = 0;

    for (size_t t = 0; t < p->n_tiles; t++)
        upto[t] = sum += tile_mass(p, t);
}

/* A point drawn with probability proportional to weight * dist, whose sum is
 * positive. */
static size_t draw(const struct kv_points *p, const double *upto,
                   uint64_t random)
{
    /* 52 bits, so that the product stays below the total. */
    const double at = upto[p->n_tiles - 1] * ((double)(random >> 12) * 0x1p-52);
    size_t t = 0, end = p->n_tiles - 1, found = 0;

    while (t < end) { /* the first tile with upto > at */
        const size_t mid = t + (end - t) / 2;

        if (upto[mid] > at)
            end = mid;
        else
            t = mid + 1;
    }

    double left = at - (t ? upto[t - 1] : 0);

    for (size_t i = t * KV_TILE; i < (t + 1) * KV_TILE; i++) {
        const double mass = (double)p->weight[i] * (double)p->dist[i];

        if (mass <= 0)
            continue;
        found = i;
        left -= mass;
        if (left < 0)
            break;
    }
    return found;
}

/* Centers that p->dist does not know of yet, by tiles padded with infinity. */
struct fresh {
    float *tile;
    size_t n;
};

static void fresh_add(struct fresh *f, const float *center, size_t d)
{
    float *tile = f->tile + f->n / KV_TILE * d * KV_TILE;

    for (size_t i = 0; f->n % KV_TILE == 0 && i < d * KV_TILE; i++)
        tile[i] = INFINITY;
    for (size_t j = 0; j < d; j++)
        tile[j * KV_TILE + f->n % KV_TILE] = center[j];
    f->n++;
}

/* min(bound, squared distance to the nearest fresh center). */
static float closest(const struct fresh *f, const float *x, size_t d,
                     float bound)
{
    float dist[KV_TILE], min = bound;

    for (size_t i = 0; i < KV_TILE; i++)
        dist[i] = bound;
    for (size_t c = 0; c < f->n; c += KV_TILE)
        kv_tile_closer(f->tile + c * d, d, x, dist);
    for (size_t i = 0; i < KV_TILE; i++)
        min = dist[i] < min ? dist[i] : min;
    return min;
}

/* Finds the nearest of k centers to every point: code, dist [n_tiles][64]
 * (NULL: not wanted; not NULL on a device). */
static int measure(const struct kv_points *p, const float *centers, size_t k,
                   uint16_t *code, float *dist, struct kv_err *e)
{
    struct kv_centroids book;

    if (p->gpu)
        return kv_gpu_nearest_centroid_run(p->gpu, centers, k, code, dist, e);
    kv_centroids_init(&book, centers, k, p->d);
#pragma omp parallel for schedule(static) if (worth(p, k))
    for (size_t t = 0; t < p->n_tiles; t++)
        kv_tile_nearest(&book, p->tile + t * p->d * KV_TILE, tile_points(p, t),
                        code + t * KV_TILE, dist ? dist + t * KV_TILE : NULL);
    kv_centroids_clear(&book);
    return 0;
}

/* A tile's points take the nearer center: their own, or one from `first` on.  A
 * mask selects it, since codes and distances differ in width. */
static void take_nearer(const float *s, const uint16_t *c, size_t first,
                        float *dist, uint16_t *code)
{
    for (size_t i = 0; i < KV_TILE; i++) {
        const uint16_t nearer = -(s[i] < dist[i]);

        code[i] ^= (code[i] ^ (uint16_t)(first + c[i])) & nearer;
        dist[i] = s[i] < dist[i] ? s[i] : dist[i];
    }
}

/* Updates p->dist and p->code with n more centers, from index `first` on. */
static int approach(struct kv_points *p, const float *centers, size_t first,
                    size_t n, struct kv_err *e)
{
    const size_t size = p->n_tiles * KV_TILE;
    float *s = kv_alloc(size, sizeof(*s));
    uint16_t *c = kv_alloc(size, sizeof(*c));
    const int rc = measure(p, centers + first * p->d, n, c, s, e);

#pragma omp parallel for schedule(static) if (worth(p, n))
    for (size_t t = 0; t < (rc ? 0 : p->n_tiles); t++)
        take_nearer(s + t * KV_TILE, c + t * KV_TILE, first,
                    p->dist + t * KV_TILE, p->code + t * KV_TILE);
    free(c);
    free(s);
    return rc;
}

/* k-means++.  The next center must be drawn in proportion to weight * dist.
 * dist need not be fresh for that: it only shrinks, so a draw by the old
 * dist that is kept with probability new / old has exactly this distribution.
 * All points are measured again only when the centers have doubled, or when
 * draws are rejected in a row.  In the end code and dist know all centers. */
static int seed_centers(struct kv_points *p, size_t k, uint64_t seed,
                        float *centers, struct kv_err *e)
{
    enum { MAX_REJECTED = 64 };
    const size_t d = p->d, size = p->n_tiles * KV_TILE;
    double *upto = kv_alloc(p->n_tiles, sizeof(*upto));
    struct fresh fresh = {.n = 0};
    uint64_t counter = 0;
    size_t n = 1, known = 0, rejected = 0;
    int rc = 0;

    fresh.tile = kv_alloc(k / KV_TILE + 1, d * KV_TILE * sizeof(float));
    for (size_t i = 0; i < size; i++)
        p->dist[i] = 1; /* the first is drawn by weight alone */
    sum_tiles(p, upto);
    copy_point(p, draw(p, upto, kv_random(seed, counter++)), centers);
    for (size_t i = 0; i < p->n; i++)
        p->dist[i] = INFINITY;
    while (n < k) {
        if (n >= 2 * known || rejected == MAX_REJECTED) {
            rc = approach(p, centers, known, n - known, e);
            if (rc)
                break;
            sum_tiles(p, upto);
            known = n;
            rejected = fresh.n = 0;
            if (upto[p->n_tiles - 1] <= 0)
                break;
        }

        const size_t i = draw(p, upto, kv_random(seed, counter++));
        float *center = centers + n * d;

        copy_point(p, i, center);
        if (kv_random_unit(seed, counter++) * p->dist[i] <
            closest(&fresh, center, d, p->dist[i])) {
            fresh_add(&fresh, center, d);
            rejected = 0;
            n++;
        } else {
            rejected++;
        }
    }
    if (!rc && known < n)
        rc = approach(p, centers, known, n - known, e);
    for (; n < k; n++) /* every point has a center of its own */
        memcpy(centers + n * d, centers, d * sizeof(*centers));
    free(fresh.tile);
    free(upto);
    return rc;
}

/* Draws k different points of positive weight, all choices equally likely;
 * afterwards code and dist know all centers. */
static int draw_evenly(struct kv_points *p, size_t k, uint64_t seed,
                       float *centers, struct kv_err *e)
{
    size_t *of = kv_alloc(p->n, sizeof(*of)), n = 0;

    for (size_t i = 0; i < p->n; i++)
        if (p->weight[i] > 0)
            of[n++] = i;
    for (size_t c = 0; c < k; c++) { /* the first k of a shuffle */
        const size_t at = c + (size_t)(kv_random(seed, c) % (n - c));
        const size_t i = of[at];

        of[at] = of[c];
        copy_point(p, i, centers + c * p->d);
    }
    free(of);
    return measure(p, centers, k, p->code, p->dist, e);
}

/* Whether bounds are faster than asking all centers: the first round pays for
 * them; skipped centers must save more time than choosing them costs. */
static bool worth_bounds(const struct kv_points *p, size_t k, size_t rounds)
{
    enum { CENTERS = 1024, ROUNDS = 3 };

    return !p->gpu && rounds >= ROUNDS && k >= CENTERS && p->d >= 2 &&
           p->n <= KV_BOUNDS_MAX_POINTS;
}

/* Sets p->code; p->dist is then stale, except on a device. */
static int assign(struct kv_points *p, const float *centers, size_t k,
                  struct kv_bounds *bounds, bool *stale, struct kv_err *e)
{
    *stale = !p->gpu;
    if (bounds && kv_bounds_assign(bounds, p, centers))
        return 0;
    return measure(p, centers, k, p->code, p->gpu ? p->dist : NULL, e);
}

/* Sets p->dist to the distances of points to the centers that they have. */
static void freshen(struct kv_points *p, const float *centers, bool *stale)
{
    if (!*stale)
        return;
    *stale = false;
#pragma omp parallel for schedule(static) if (worth(p, 1))
    for (size_t i = 0; i < p->n; i++)
        p->dist[i] =
            kv_tile_distance(p->tile + i / KV_TILE * p->d * KV_TILE,
                             i % KV_TILE, p->d, centers + p->code[i] * p->d);
}

/* sum[k][d + 1] += weight * x and weight of n points, NULL: all ones; d may be
 * a constant. */
static inline void add_points(const float *x, size_t d, const float *weight,
                              const uint16_t *code, size_t n, double *sum)
{
    for (size_t i = 0; i < n; i++) {
        const double w = weight ? (double)weight[i] : 1;
        double *to = sum + code[i] * (d + 1);

        for (size_t j = 0; j < d; j++)
            to[j] += w * (double)x[i * d + j];
        to[d] += w;
    }
}

static void add_part(const struct kv_points *p, size_t first, size_t n,
                     double *sum)
{
    const float *x = p->x + first * p->d;
    const float *weight = p->even ? NULL : p->weight + first;
    const uint16_t *code = p->code + first;

    switch (p->d) {
    case 2:
        add_points(x, 2, weight, code, n, sum);
        break;
    case 4:
        add_points(x, 4, weight, code, n, sum);
        break;
    case 8:
        add_points(x, 8, weight, code, n, sum);
        break;
    default:
        add_points(x, p->d, weight, code, n, sum);
    }
}

/* Computes per cluster the sums of weight * x and of weight, sum [k][d + 1].
 * `sum` holds n_parts of these arrays; all but the first are scratch.  The
 * parts are whole tiles and depend only on the points, so the number of threads
 * does not change the order of additions. */
static void add_up(const struct kv_points *p, size_t k, size_t n_parts,
                   double *sum)
{
    const size_t size = k * (p->d + 1);

    memset(sum, 0, n_parts * size * sizeof(*sum));
#pragma omp parallel for schedule(static, 1) if (worth(p, 64))
    for (size_t part = 0; part < n_parts; part++) {
        const size_t first = p->n_tiles * part / n_parts * KV_TILE;
        const size_t end = p->n_tiles * (part + 1) / n_parts * KV_TILE;

        add_part(p, first, (end < p->n ? end : p->n) - first,
                 sum + part * size);
    }
    for (size_t part = 1; part < n_parts; part++)
        for (size_t i = 0; i < size; i++)
            sum[i] += sum[part * size + i];
}

struct far_point {
    float dist;
    size_t i;
};

/* Farthest first; lowest index on ties. */
static int by_distance(const void *a, const void *b)
{
    const struct far_point *p = a, *q = b;

    if (p->dist != q->dist)
        return p->dist > q->dist ? -1 : 1;
    return p->i < q->i ? -1 : 1;
}

/* Gives each empty cluster the farthest point that does not leave its own
 * cluster empty; false when no cluster got one. */
static bool fill_empty(struct kv_points *p, size_t k)
{
    struct far_point *far = kv_alloc(p->n, sizeof(*far));
    size_t *count = kv_alloc(k, sizeof(*count)), n_far = 0, next = 0;
    bool moved = false;

    for (size_t i = 0; i < p->n; i++) {
        if (p->weight[i] <= 0)
            continue;
        count[p->code[i]]++;
        if (p->dist[i] > 0)
            far[n_far++] = (struct far_point){p->dist[i], i};
    }
    qsort(far, n_far, sizeof(*far), by_distance);
    for (size_t c = 0; c < k; c++) {
        if (count[c])
            continue;
        while (next < n_far && count[p->code[far[next].i]] < 2)
            next++;
        if (next == n_far)
            break;
        count[p->code[far[next].i]]--;
        p->code[far[next++].i] = (uint16_t)c;
        count[c] = 1;
        moved = true;
    }
    free(count);
    free(far);
    return moved;
}

/* Each center becomes the mean of its points; a center without points stays.
 * False when no center moved. */
static bool average(const double *sum, size_t k, size_t d, float *centers)
{
    bool moved = false;

    for (size_t c = 0; c < k; c++) {
        const double *from = sum + c * (d + 1);

        for (size_t j = 0; j < d && from[d] > 0; j++) {
            const float mean = (float)(from[j] / from[d]);

            moved |= mean != centers[c * d + j];
            centers[c * d + j] = mean;
        }
    }
    return moved;
}

static bool has_empty(const double *sum, size_t k, size_t d)
{
    for (size_t c = 0; c < k; c++)
        if (sum[c * (d + 1) + d] <= 0)
            return true;
    return false;
}

static double mean_error(const struct kv_points *p)
{
    double error = 0, weight = 0;

    for (size_t t = 0; t < p->n_tiles; t++)
        error += tile_mass(p, t);
    for (size_t i = 0; i < p->n; i++)
        weight += (double)p->weight[i];
    return error / weight / (double)p->d;
}

int kv_kmeans(const float *x, size_t n, size_t d, const float *weight, size_t k,
              enum kv_kmeans_start start, size_t iters, uint64_t seed,
              float *centers, double *mse, struct kv_err *e)
{
    /* Scratch for the parts stays below the size of the points. */
    const size_t max_parts = n / (16 * (k ? k : 1));
    const size_t n_parts = max_parts < 1           ? 1
                           : max_parts > MAX_PARTS ? MAX_PARTS
                                                   : max_parts;
    struct kv_bounds *bounds = NULL;
    struct kv_points p;
    int rc = -1;

    if (check(x, n, d, weight, k, e))
        return -1;
    points_init(&p, x, n, d, weight);

    float *c = kv_alloc(k, d * sizeof(*c));
    double *sum = kv_alloc(n_parts * k, (d + 1) * sizeof(*sum));

    if (points_to_device(&p, k, e) ||
        (start == KV_KMEANS_RANDOM ? draw_evenly(&p, k, seed, c, e)
                                   : seed_centers(&p, k, seed, c, e)))
        goto out;

    bool stale = false; /* whether p.dist belongs to older centers than c */

    if (worth_bounds(&p, k, iters))
        bounds = kv_bounds_new(&p, c, k);

    for (size_t round = 0; round < iters; round++) {
        if (kv_interrupted(e))
            goto out;
        add_up(&p, k, n_parts, sum);
        if (has_empty(sum, k, d)) {
            freshen(&p, c, &stale);
            if (fill_empty(&p, k))
                add_up(&p, k, n_parts, sum);
        }
        if (!average(sum, k, d, c))
            break;

        const bool last = round + 1 == iters;

        if ((mse || !last) && assign(&p, c, k, bounds, &stale, e))
            goto out;
    }
    if (mse) {
        freshen(&p, c, &stale);
        *mse = mean_error(&p);
    }
    memcpy(centers, c, k * d * sizeof(*c));
    rc = 0;
out:
    kv_bounds_free(bounds);
    free(sum);
    free(c);
    points_clear(&p);
    return rc;
}
