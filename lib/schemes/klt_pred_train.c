/* Training of klt's prediction.  The tables depend on the water level, since
 * features are decoded values; the level depends on the tables, since better
 * predictions cost fewer bits.  So training makes several passes up the layers,
 * each at the level at which the tables of earlier passes would fill the
 * budget. */
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/moments.h"
#include "lib/schemes/klt_pred_fit.h"
#include "lib/schemes/klt_short.h"
#include "lib/schemes/klt_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PASSES = 4, SAMPLED = 1 << 16 };

/* The state of all passes. */
struct training {
    struct kv_klt_job job;  /* its layer and side are set for each place */
    size_t n_below, n, row; /* n_below: the maximum; n: tokens */
    uint64_t seed;
    double mse[KV_KLT_KINDS];
    struct kv_klt_parts parts;
    float *counted, *weight; /* [n]: weights in the metric, and in mean and
                              * covariance */
    double *metric, *cov;    /* [row][row] */
    struct kv_klt_pool pool;
    struct kv_progress *progress; /* or NULL */
};

/* One pass over the layers; set: the pass's tables. */
struct pass {
    struct training *t;
    struct kv_klt_seen seen;
    double lambda; /* 0: features are not quantized */
    bool sample;   /* whether coefficients go to the pool */
    struct kv_calib_set set;
};

/* The weighted covariance of the residual. */
static void covariance(struct training *t)
{
    const size_t row = t->row, values = t->n * row;
    float *x = kv_alloc(values, sizeof(*x));
    double sum = 0;

    for (size_t i = 0; i < values; i++)
        x[i] = t->parts.x[i] * sqrtf(t->weight[i / row]);
    for (size_t i = 0; i < t->n; i++)
        sum += (double)t->weight[i];
    memset(t->cov, 0, row * row * sizeof(*t->cov));
    kv_moments_cross(x, row, x, row, t->n, t->cov, row);
    for (size_t i = 0; i < row * row; i++)
        t->cov[i] /= sum > 0 ? sum : 1;
    free(x);
}

/* Sets share [row]: the share of each coefficient's variance that quantization
 * at the pass's level leaves. */
static void shares(const struct pass *p, double *share)
{
    const struct training *t = p->t;
    struct kv_klt_unit u =
        kv_klt_unit(&p->set, t->job.layer, t->job.side, t->row);

    if (p->lambda > 0)
        kv_klt_assign(&u, p->lambda, t->mse);
    for (size_t i = 0; i < t->row; i++)
        share[u.coef[i].index] =
            p->lambda > 0 ? u.coef[i].kind ? t->mse[u.coef[i].kind - 1] : 1 : 0;
    free(u.coef);
}

/* Adds to the pool the upper half of some tokens' coefficients, each divided by
 * its size. */
static void pred_sample(struct training *t, const struct kv_klt_tables *by,
                        const float *size)
{
    const size_t row = t->row, part = by->part;
    const size_t most = SAMPLED / (row / 2) + 1;
    const size_t n = most < t->n ? most : t->n;

    t->pool.value =
        kv_realloc(t->pool.value, t->pool.n + n * row, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        const float *x = t->parts.x + i * t->n / n * row;

        for (size_t k = 0; k < row && t->weight[i * t->n / n] > 0; k++) {
            const size_t at = k / part * part;
            double y = 0;

            if (k - at >= part / 2 || !(size[k] > 0))
                continue;
            for (size_t j = at; j < at + part; j++)
                y += (double)x[j] * (double)by->forward[j * part + k - at];
            t->pool.value[t->pool.n++] = (float)(y / (double)size[k]);
        }
    }
}

static float *add_predictor(struct pass *p, size_t sources)
{
    const struct kv_klt_job *j = &p->t->job;
    const size_t dims[] = {sources * p->t->row, p->t->row};
    struct kv_table *t;

    if (!sources)
        return NULL;
    t = kv_calib_add(&p->set, "predictor", (int)j->side, (int)j->layer, KV_ALL,
                     2, dims);
    t->type = KV_TABLE_F16;
    return t->data;
}

/* The number of layers of the dump, times 2 sides. */
static size_t n_places(const struct training *t)
{
    const struct kv_dump_info *info = t->job.info;

    return KV_SIDES * (info->last_layer + 1 - info->first_layer);
}

/* Computes the tables of the job's layer and side, and its decoded features. */
static int pass_place(struct pass *p, struct kv_err *e)
{
    struct training *t = p->t;
    const struct kv_klt_job *j = &t->job;
    const size_t n_below = kv_spec_layered(j->spec, j->layer)->n_below;
    const size_t row = t->row;
    double *share = kv_alloc(row, sizeof(*share)), unit;
    float *size = kv_alloc(row, sizeof(*size));
    struct kv_klt_tables by;
    int rc = -1;

    t->parts.matrix =
        add_predictor(p, kv_klt_sources(n_below, j->layer, j->side));
    memset(t->metric, 0, row * row * sizeof(*t->metric));
    if (kv_klt_weigh(j, t->counted, t->weight, e) ||
        kv_dump_read(j->dump, j->layer, j->tensor, 0, t->n, t->parts.x, e) ||
        kv_klt_predict(&p->seen, n_below < j->layer ? n_below : j->layer,
                       j->side, &t->parts, e) ||
        kv_klt_metric(j, t->counted, t->metric, &unit, e))
        goto out;
    covariance(t);
    if (kv_klt_add_tables(j, t->parts.bias, t->metric, unit, t->cov, &by, e))
        goto out;
    for (size_t i = 0; i < row; i++)
        size[i] = by.sigma[i] / by.unit[i];
    if (p->sample)
        pred_sample(t, &by, size);
    shares(p, share);
    kv_klt_seen_put(
        &p->seen, j->side,
        &(struct kv_klt_coded){
            .sigma = size,
            .forward = by.forward,
            .inverse = by.inverse,
            .share = share,
            .part = by.part,
            .seed = kv_mix(kv_mix(t->seed, j->layer), (uint64_t)j->side)},
        &t->parts);
    rc = 0;
out:
    free(size);
    free(share);
    return rc ? kv_fail_in(e, "layer %zu, %c", j->layer, kv_side_name(j->side))
              : 0;
}

static int run_pass(struct pass *p, struct kv_err *e)
{
    struct training *t = p->t;
    const size_t first = t->job.info->first_layer;
    int rc = 0;

    kv_klt_seen_init(&p->seen, t->n, t->row, t->n_below);
    p->seen.weight = t->weight;
    t->job.out = &p->set;
    for (size_t i = 0; i < n_places(t) && !rc; i++) {
        kv_klt_at(&t->job, first + i / KV_SIDES, (enum kv_side)(i % KV_SIDES));
        if (i && t->job.side == KV_K)
            kv_klt_seen_up(&p->seen);
        rc = pass_place(p, e);
        if (t->progress)
            kv_progress_step(t->progress, 1);
    }
    kv_klt_seen_clear(&p->seen);
    return rc;
}

/* The level at which a pass's tables fill the budget. */
static double level_of(const struct training *t, const struct kv_calib_set *set)
{
    const size_t n = n_places(t), first = t->job.info->first_layer;
    struct kv_klt_unit *unit = kv_alloc(n, sizeof(*unit));
    double budget = 0, lambda;

    for (size_t i = 0; i < n; i++) {
        const enum kv_side side = (enum kv_side)(i % KV_SIDES);

        unit[i] = kv_klt_unit(set, first + i / KV_SIDES, side, t->row);
        budget += (double)t->row * kv_spec_get(t->job.spec, side, "b") / 8;
    }
    lambda = kv_klt_allocate(unit, n, (size_t)budget, t->mse);
    for (size_t i = 0; i < n; i++)
        free(unit[i].coef);
    free(unit);
    return lambda;
}

/* The level lambda of pass n >= 1, where it should equal the level at which the
 * pass's tables fill the budget (level).  On a logarithmic scale, level is
 * assumed to rise SLOPE times as fast as lambda, or, from pass 3 on, as fast as
 * between the last two passes.  Pass 0 has lambda 0. */
static double next_level(const double *lambda, const double *level, size_t n)
{
    static const double SLOPE = 0.2;
    double slope = SLOPE;

    if (n == 1)
        return level[0];

    const double *x = lambda + n - 2, *y = level + n - 2;

    if (n > 2 && x[0] != x[1])
        slope = fmin(fmax(log(y[1] / y[0]) / log(x[1] / x[0]), 0), 0.8);
    return x[1] * pow(y[1] / x[1], 1 / (1 - slope));
}

/* Assumes the errors of ideal codes, until the trellis is trained. */
static void begin_kinds(struct training *t)
{
    for (size_t i = 0; i < KV_KLT_KINDS; i++)
        t->mse[i] = exp2(-2.0 * kv_klt_kinds[i].bits / kv_klt_kinds[i].values);
}

static int train_kinds(struct training *t, struct kv_calib_set *out,
                       struct kv_err *e)
{
    char name[32];

    if (kv_klt_train_trellis(out, &t->pool, t->seed, e))
        return -1;
    for (size_t i = 0; i < KV_KLT_KINDS; i++) {
        kv_klt_table_name(i, name);
        t->mse[i] = kv_calib_table(out, name, KV_K, 0, 0)->error;
    }
    return 0;
}

/* Runs all passes.  The trellis is trained after pass 1, the first whose level
 * was computed. */
static int run_passes(struct training *t, struct kv_calib_set *out,
                      struct kv_err *e)
{
    double lambda[PASSES] = {0}, level[PASSES];

    for (size_t i = 0; i < PASSES; i++) {
        struct pass p = {.t = t, .sample = i == 1};
        int rc;

        if (i)
            lambda[i] = next_level(lambda, level, i);
        p.lambda = lambda[i];
        rc = run_pass(&p, e) || (i == 1 && train_kinds(t, out, e));
        if (!rc)
            level[i] = level_of(t, &p.set);
        if (!rc && i + 1 == PASSES)
            kv_calib_move(&p.set, out);
        kv_calib_set_clear(&p.set);
        if (rc)
            return -1;
        kv_detail("klt: pass %zu of %d: level %g, its tables fill the budget "
                  "at %g",
                  i + 1, PASSES, lambda[i], level[i]);
    }
    return 0;
}

static void init(struct training *t)
{
    t->parts.x = kv_alloc(t->n, t->row * sizeof(float));
    t->parts.predicted = kv_alloc(t->n, t->row * sizeof(float));
    t->parts.mean = kv_alloc(t->row, sizeof(double));
    t->parts.bias = kv_alloc(t->row, sizeof(double));
    t->parts.bytes = kv_klt_is_short(t->job.spec);
    t->counted = kv_alloc(t->n, sizeof(float));
    t->weight = kv_alloc(t->n, sizeof(float));
    t->metric = kv_alloc(t->row, t->row * sizeof(double));
    t->cov = kv_alloc(t->row, t->row * sizeof(double));
    begin_kinds(t);
}

static void pred_clear(struct training *t)
{
    free(t->parts.x);
    free(t->parts.predicted);
    free(t->parts.mean);
    free(t->parts.bias);
    free(t->counted);
    free(t->weight);
    free(t->metric);
    free(t->cov);
    free(t->pool.value);
}

int kv_klt_pred_calibrate(const struct kv_klt_job *j, uint64_t seed,
                          struct kv_err *e)
{
    const struct kv_dump_info *info = j->info;
    struct training t = {.job = *j,
                         .n_below = kv_spec_layered(j->spec, 1)->n_below,
                         .n = info->n_windows * info->ctx,
                         .row = j->row,
                         .seed = seed,
                         .progress = j->out->progress};
    int rc;

    if (t.n_below &&
        (info->first_layer || info->last_layer + 1 != info->shape.n_layers))
        return kv_fail(e,
                       "%s has layers %zu to %zu: a prediction across layers "
                       "wants all %zu",
                       kv_dump_path(j->dump), info->first_layer,
                       info->last_layer, info->shape.n_layers);
    init(&t);
    if (t.progress)
        t.progress->total += PASSES * n_places(&t) + KV_KLT_KINDS;
    rc = run_passes(&t, j->out, e);
    pred_clear(&t);
    return rc;
}
