#include "kernels/levels/kmeans1d.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int check(const double *x, const double *weight, size_t n,
                 struct kv_err *e)
{
    size_t usable = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) || (i && x[i] < x[i - 1]))
            return kv_fail(e,
                           "k-means on a line: point %zu is %g, not a finite "
                           "number that ascends",
                           i, x[i]);
        if (!(weight[i] >= 0 && weight[i] < INFINITY))
            return kv_fail(e,
                           "k-means on a line: point %zu has weight %g, not a "
                           "finite number >= 0",
                           i, weight[i]);
        usable += weight[i] > 0;
    }
    return usable ? 0
                  : kv_fail(e,
                            "k-means on a line: none of %zu points has a "
                            "positive weight",
                            n);
}

/* The points of positive weight, as running sums: w[i] is the weight of the
 * first i, wx and wxx their first and second moment about the mean, so that
 * little is lost when two sums are subtracted. */
struct sums {
    size_t n;
    double mean;
    double *w, *wx, *wxx; /* [n + 1] */
};

static double mean_of(const double *x, const double *weight, size_t n)
{
    double w = 0, wx = 0;

    for (size_t i = 0; i < n; i++) {
        w += weight[i];
        wx += weight[i] * x[i];
    }
    return wx / w;
}

static void sums_init(struct sums *s, const double *x, const double *weight,
                      size_t n)
{
    *s = (struct sums){.mean = mean_of(x, weight, n)};
    s->w = kv_alloc(n + 1, sizeof(*s->w));
    s->wx = kv_alloc(n + 1, sizeof(*s->wx));
    s->wxx = kv_alloc(n + 1, sizeof(*s->wxx));
    for (size_t i = 0; i < n; i++) {
        const double t = x[i] - s->mean, w = weight[i];

        if (w <= 0)
            continue;
        s->w[s->n + 1] = s->w[s->n] + w;
        s->wx[s->n + 1] = s->wx[s->n] + w * t;
        s->wxx[s->n + 1] = s->wxx[s->n] + w * t * t;
        s->n++;
    }
}

static void sums_clear(struct sums *s)
{
    free(s->w);
    free(s->wx);
    free(s->wxx);
}

/* The cost of points [i, j) as one cluster. */
static double cost_of(const struct sums *s, size_t i, size_t j)
{
    const double w = s->w[j] - s->w[i], wx = s->wx[j] - s->wx[i];
    const double cost = s->wxx[j] - s->wxx[i] - wx * wx / w;

    return cost > 0 ? cost : 0;
}

/* Adds a cluster: before[j] is the least cost of the first j points in c
 * clusters, now[j] in c + 1 clusters, where the last one begins at start[j]. */
struct round {
    const struct sums *s;
    const double *before;
    double *now;
    uint32_t *start;
};

/* Solves for points [j, j_end), whose last cluster begins in [i, i_end]. */
static void halve(const struct round *r, size_t j, size_t j_end, size_t i,
                  size_t i_end)
{
    if (j >= j_end)
        return;

    const size_t mid = j + (j_end - j) / 2;
    const size_t max = i_end < mid - 1 ? i_end : mid - 1;

    r->now[mid] = INFINITY;
    for (size_t at = i; at <= max; at++) {
        const double cost = r->before[at] + cost_of(r->s, at, mid);

        if (cost < r->now[mid]) {
            r->now[mid] = cost;
            r->start[mid] = (uint32_t)at;
        }
    }
    halve(r, j, mid, i, r->start[mid]);
    halve(r, mid + 1, j_end, r->start[mid], i_end);
}

/* start: [k][n + 1], the beginning of the last of c + 1 clusters; returns the
 * least cost of all points.  k <= n. */
static double solve(const struct sums *s, size_t k, uint32_t *start)
{
    const size_t n = s->n;
    double *before = kv_alloc(n + 1, sizeof(*before));
    double *now = kv_alloc(n + 1, sizeof(*now)), min;

    for (size_t j = 1; j <= n; j++)
        now[j] = cost_of(s, 0, j);
    for (size_t c = 1; c < k; c++) {
        double *const old = before;
        const struct round r = {s, now, old, start + c * (n + 1)};

        before = now;
        now = old;
        halve(&r, c + 1, n + 1, c, n - 1);
    }
    min = now[n];
    free(before);
    free(now);
    return min;
}

int kv_kmeans1d(const double *x, const double *weight, size_t n, size_t k,
                double *centers, double *cost, struct kv_err *e)
{
    struct sums s;
    uint32_t *start;
    size_t some, end;
    double min;

    assert(k >= 1 && n < UINT32_MAX);
    if (check(x, weight, n, e))
        return -1;
    sums_init(&s, x, weight, n);
    some = k < s.n ? k : s.n;
    start = kv_alloc(some, (s.n + 1) * sizeof(*start));
    min = solve(&s, some, start);
    end = s.n;
    for (size_t c = some; c-- > 0;) {
        const size_t from = start[c * (s.n + 1) + end];

        const double mean =
            s.mean + (s.wx[end] - s.wx[from]) / (s.w[end] - s.w[from]);

        /* equal points in two clusters may round apart */
        centers[c] = c + 1 < some ? fmin(mean, centers[c + 1]) : mean;
        end = from;
    }
    for (size_t c = some; c < k; c++)
        centers[c] = centers[some - 1];
    if (cost)
        *cost = min;
    free(start);
    sums_clear(&s);
    return 0;
}
