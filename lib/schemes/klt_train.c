/* Training of klt: one pass over the dump per layer and side finds mean and
 * covariance, the metric comes beside it; the trellis is trained on a sample of
 * the coefficients of all layers, K and V. */
#include "kernels/eigen.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/moments.h"
#include "lib/schemes/klt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 512,       /* tokens read at a time */
    SAMPLED = 1 << 16, /* coefficients sampled of a side of a layer */
    LEN = 128,         /* values of a training sequence */
    MAX_SEQUENCES = 6144,
    ROUNDS = 24
};

/* A direction's share of the metric is at least this of the mean: a direction
 * that no query has must not drown those that some queries have. */
static const double RIDGE = 1e-5;

/* One side of one layer. */
struct job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    struct kv_calib_set *out;
    size_t layer, d, n_heads;
    enum kv_side side;
    enum kv_tensor tensor;
};

/* The pool that the trellis is trained on: coefficients over their sigma. */
struct pool {
    float *value;
    size_t n;
};

static size_t dump_tokens(const struct job *j)
{
    return j->info->n_windows * j->info->ctx;
}

static enum kv_tensor tensor_of(const struct kv_spec *s, enum kv_side side)
{
    return side == KV_V                         ? KV_T_V
           : kv_spec_is(s, KV_K, "rope", "pre") ? KV_T_K_PRE
                                                : KV_T_K;
}

static enum kv_tensor fisher_of(enum kv_side side)
{
    return side == KV_K ? KV_T_K_FISHER : KV_T_V_FISHER;
}

static enum kv_gram fisher_gram(const struct kv_spec *s, enum kv_side side)
{
    return side == KV_V                       ? KV_GRAM_V_FISHER
           : tensor_of(s, side) == KV_T_K_PRE ? KV_GRAM_K_PRE_FISHER
                                              : KV_GRAM_K_FISHER;
}

/* A token's weight: 1, or with Fisher's metric the length of the loss's
 * gradient at its vector (between not at all and the square, this is best):
 * more important tokens count more in the transform.  weight: [n][n_heads]. */
static int read_weights(const struct job *j, size_t at, size_t n, float *weight,
                        struct kv_err *e)
{
    const enum kv_tensor t = fisher_of(j->side);
    const bool fisher = kv_spec_is(j->spec, j->side, "metric", "fisher");
    float *square = kv_alloc(n, j->n_heads * j->d * sizeof(*square));
    const int rc =
        fisher ? kv_dump_read(j->dump, j->layer, t, at, n, square, e) : 0;

    for (size_t i = 0; i < n * j->n_heads && !rc; i++) {
        double sum = fisher ? 0 : 1;

        for (size_t k = 0; k < j->d; k++)
            sum += (double)square[i * j->d + k];
        weight[i] = (float)sqrt(sum);
    }
    free(square);
    return rc;
}

/* Weighted sums of x and of x x^T over the side's tokens, not yet divided by
 * the weights' sum [heads].  The first token's x is taken off before, so that
 * little cancels; it is left in origin [heads][d]. */
static int add_up(const struct job *j, float *origin, double *first,
                  double *second, double *weights, struct kv_err *e)
{
    const size_t d = j->d, row = j->n_heads * d, tokens = dump_tokens(j);
    float *x = kv_alloc(CHUNK, row * sizeof(*x));
    float *weight = kv_alloc(CHUNK, j->n_heads * sizeof(*weight));
    int rc = -1;

    for (size_t at = 0; at < tokens; at += CHUNK) {
        const size_t n = tokens - at < CHUNK ? tokens - at : CHUNK;

        if (kv_interrupted(e) ||
            kv_dump_read(j->dump, j->layer, j->tensor, at, n, x, e) ||
            read_weights(j, at, n, weight, e))
            goto out;
        if (!at)
            memcpy(origin, x, row * sizeof(*x));
        for (size_t i = 0; i < n * j->n_heads; i++)
            weights[i % j->n_heads] += (double)weight[i];
        for (size_t i = 0; i < n * row; i++) {
            x[i] -= origin[i % row];
            first[i % row] += (double)weight[i / d] * (double)x[i];
            x[i] *= sqrtf(weight[i / d]);
        }
        kv_moments_add(x, n, j->n_heads, d, second);
    }
    rc = 0;
out:
    free(weight);
    free(x);
    return rc;
}

/* mean [heads][d], cov [heads][d][d], both cleared. */
static int covariance(const struct job *j, double *mean, double *cov,
                      struct kv_err *e)
{
    const size_t d = j->d, row = j->n_heads * d;
    float *origin = kv_alloc(row, sizeof(*origin));
    double *weights = kv_alloc(j->n_heads, sizeof(*weights));
    const int rc = add_up(j, origin, mean, cov, weights, e);

    for (size_t h = 0; h < j->n_heads && !rc; h++) {
        double *m = mean + h * d, *c = cov + h * d * d;

        if (!(weights[h] > 0))
            weights[h] = 1; /* nothing matters: the metric is 1, all sums 0 */
        for (size_t i = 0; i < d; i++)
            m[i] /= weights[h];
        for (size_t i = 0; i < d; i++)
            for (size_t k = 0; k < d; k++)
                c[i * d + k] = c[i * d + k] / weights[h] - m[i] * m[k];
        for (size_t i = 0; i < d; i++)
            m[i] += (double)origin[h * d + i];
    }
    free(weights);
    free(origin);
    return rc;
}

/* ---- the metric -------------------------------------------------------- */

/* Before RoPE a key meets queries turned by every angle: of each rotary pair's
 * block half the trace is left, and nothing between pairs.  m: [d][d]. */
static void average_angles(const struct kv_shape *s, double *m)
{
    const size_t d = s->head_dim, half = d / 2, n_rot = s->n_rot;

    for (size_t i = 0; i < d; i++)
        for (size_t k = 0; k < d; k++)
            if (i != k && (i % half < n_rot || k % half < n_rot))
                m[i * d + k] = 0;
    for (size_t i = 0; i < n_rot; i++) {
        double *low = &m[i * d + i], *high = &m[(i + half) * d + i + half];

        *low = *high = (*low + *high) / 2;
    }
}

/* Queries, not divided by their number: a factor of the metric changes the
 * unit of sigma alone. */
static int query_metric(const struct job *j, double *m, struct kv_err *e)
{
    const struct kv_shape *s = &j->info->shape;
    const size_t d = j->d, group = s->n_heads / s->n_kv_heads;
    const size_t tokens = dump_tokens(j);
    float *q = kv_alloc(CHUNK, s->n_heads * d * sizeof(*q));
    double *all = kv_alloc(s->n_heads * d * d, sizeof(*all));
    int rc = 0;

    for (size_t at = 0; at < tokens && !rc; at += CHUNK) {
        const size_t n = tokens - at < CHUNK ? tokens - at : CHUNK;

        rc = kv_interrupted(e) ||
             kv_dump_read(j->dump, j->layer, KV_T_Q, at, n, q, e);
        if (!rc)
            kv_moments_add(q, n, s->n_heads, d, all);
    }
    for (size_t h = 0; h < s->n_heads && !rc; h++)
        for (size_t i = 0; i < d * d; i++)
            m[h / group * d * d + i] += all[h * d * d + i];
    for (size_t h = 0; h < s->n_kv_heads && j->tensor == KV_T_K_PRE; h++)
        average_angles(s, m + h * d * d);
    free(all);
    free(q);
    return rc ? -1 : 0;
}

static int gram_metric(const struct job *j, enum kv_gram which, double *m,
                       struct kv_err *e)
{
    const size_t n = j->n_heads * j->d * j->d;
    float *gram = kv_alloc(n, sizeof(*gram));
    const int rc = kv_dump_gram(j->dump, j->layer, which, gram, e);

    for (size_t i = 0; i < n && !rc; i++)
        m[i] = (double)gram[i];
    free(gram);
    return rc;
}

/* m: [n_heads][d][d], cleared. */
static int read_metric(const struct job *j, double *m, struct kv_err *e)
{
    const size_t d = j->d;
    int rc = 0;

    if (kv_spec_is(j->spec, j->side, "metric", "fisher"))
        rc = gram_metric(j, fisher_gram(j->spec, j->side), m, e);
    else if (kv_spec_is(j->spec, j->side, "metric", "attention"))
        rc = j->side == KV_K ? query_metric(j, m, e)
                             : gram_metric(j, KV_GRAM_WO, m, e);
    for (size_t h = 0; h < j->n_heads && !rc; h++) {
        double *own = m + h * d * d, trace = 0;

        for (size_t i = 0; i < d; i++)
            trace += own[i * d + i];
        for (size_t i = 0; i < d; i++)
            own[i * d + i] += trace > 0 ? RIDGE * trace / (double)d : 1;
    }
    return rc;
}

/* ---- the transform ----------------------------------------------------- */

/* c = a b, all [n][n]. */
static void multiply(const double *a, const double *b, size_t n, double *c)
{
    memset(c, 0, n * n * sizeof(*c));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            for (size_t j = 0; j < n; j++)
                c[i * n + j] += a[i * n + k] * b[k * n + j];
}

/* root = m^(1/2), inverse = m^(-1/2); m is overwritten. */
static int roots(double *m, size_t n, double *root, double *inverse)
{
    double *value = kv_alloc(n, sizeof(*value));
    const int rc = kv_eigen(m, n, value);

    memset(root, 0, n * n * sizeof(*root));
    memset(inverse, 0, n * n * sizeof(*inverse));
    for (size_t k = 0; k < n && !rc; k++) {
        const double floor = value[n - 1] * 1e-12;
        const double r = sqrt(value[k] > floor ? value[k] : floor);

        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                const double p = m[i * n + k] * m[j * n + k];

                root[i * n + j] += p * r;
                inverse[i * n + j] += p / r;
            }
    }
    free(value);
    return rc;
}

/* Of one head: sigma [d], forward, inverse [d][d] from its metric and its
 * covariance (both overwritten). */
static int make_transform(double *metric, double *cov, size_t d, float *sigma,
                          float *forward, float *inverse)
{
    double *root = kv_alloc(d * d, sizeof(*root));
    double *back = kv_alloc(d * d, sizeof(*back));
    double *work = kv_alloc(d * d, sizeof(*work));
    double *value = kv_alloc(d, sizeof(*value));
    int rc = roots(metric, d, root, back);

    if (rc)
        goto out;
    multiply(root, cov, d, work);
    multiply(work, root, d, cov);
    rc = kv_eigen(cov, d, value);
    for (size_t j = 0; j < d && !rc; j++) {
        const size_t from = d - 1 - j; /* eigenvalues ascend */

        sigma[j] = (float)sqrt(value[from] > 0 ? value[from] : 0);
        for (size_t i = 0; i < d; i++) {
            double f = 0, g = 0;

            for (size_t k = 0; k < d; k++) {
                f += root[i * d + k] * cov[k * d + from];
                g += cov[k * d + from] * back[k * d + i];
            }
            forward[i * d + j] = (float)f;
            inverse[j * d + i] = (float)g;
        }
    }
out:
    free(value);
    free(work);
    free(back);
    free(root);
    return rc;
}

static float *add_table(const struct job *j, const char *name, size_t head,
                        size_t n_dims)
{
    const size_t dims[] = {j->d, j->d};

    return kv_calib_add(j->out, name, (int)j->side, (int)j->layer, (int)head,
                        n_dims, dims)
        ->data;
}

/* Adds the tables of every head; forward and sigma of each are left in
 * *f, *s: [n_heads]. */
static int add_tables(const struct job *j, const double *mean, double *metric,
                      double *cov, float **f, float **s, struct kv_err *e)
{
    const size_t d = j->d;

    for (size_t h = 0; h < j->n_heads; h++) {
        float *m = add_table(j, "mean", h, 1);
        float *g;

        s[h] = add_table(j, "sigma", h, 1);
        f[h] = add_table(j, "forward", h, 2);
        g = add_table(j, "inverse", h, 2);
        for (size_t i = 0; i < d; i++)
            m[i] = (float)mean[h * d + i];
        if (make_transform(metric + h * d * d, cov + h * d * d, d, s[h], f[h],
                           g))
            return kv_fail(e,
                           "head %zu: no eigenvectors: the covariance is "
                           "not finite",
                           h);
    }
    return 0;
}

/* Adds the upper half of the coefficients of some tokens, over their sigma. */
static int sample(const struct job *j, const double *mean, float *const *f,
                  float *const *s, struct pool *pool, struct kv_err *e)
{
    const size_t d = j->d, row = j->n_heads * d, tokens = dump_tokens(j);
    const size_t max = SAMPLED / (row / 2) + 1;
    const size_t n = max < tokens ? max : tokens;
    float *x = kv_alloc(row, sizeof(*x));
    int rc = 0;

    pool->value = kv_realloc(pool->value, pool->n + n * row, sizeof(*x));
    for (size_t t = 0; t < n && !rc; t++) {
        rc =
            kv_dump_read(j->dump, j->layer, j->tensor, t * tokens / n, 1, x, e);
        for (size_t h = 0; h < j->n_heads && !rc; h++)
            for (size_t k = 0; k < (d + 1) / 2; k++) {
                double y = 0;

                for (size_t i = 0; i < d; i++)
                    y += ((double)x[h * d + i] - mean[h * d + i]) *
                         (double)f[h][i * d + k];
                if (s[h][k] > 0)
                    pool->value[pool->n++] = (float)(y / (double)s[h][k]);
            }
    }
    free(x);
    return rc;
}

static int train_side(const struct job *j, struct pool *pool, struct kv_err *e)
{
    const size_t d = j->d, n = j->n_heads * d;
    double *mean = kv_alloc(n, sizeof(*mean));
    double *cov = kv_alloc(n * d, sizeof(*cov));
    double *metric = kv_alloc(n * d, sizeof(*metric));
    float **f = kv_alloc(j->n_heads, sizeof(*f));
    float **s = kv_alloc(j->n_heads, sizeof(*s));
    const int rc =
        covariance(j, mean, cov, e) || read_metric(j, metric, e) ||
                add_tables(j, mean, metric, cov, f, s, e) ||
                sample(j, mean, f, s, pool, e)
            ? kv_fail_in(e, "layer %zu, %c", j->layer, kv_side_name(j->side))
            : 0;

    free(s);
    free(f);
    free(metric);
    free(cov);
    free(mean);
    return rc;
}

/* ---- the trellis ------------------------------------------------------- */

/* n values of the pool at random: of every eighth, or of all others. */
static float *draw(const struct pool *pool, bool eighth, size_t n,
                   uint64_t seed)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n && pool->n >= 8; i++) {
        const size_t k = kv_random(seed, i) % (pool->n / 8);

        x[i] = pool->value[8 * k + (eighth ? 7 : kv_random(~seed, i) % 7)];
    }
    return x;
}

/* Stores the table of each kind, and its error on values that it was not
 * trained on. */
static int train_trellis(struct kv_calib_set *out, const struct pool *pool,
                         uint64_t seed, struct kv_err *e)
{
    const size_t all = pool->n / LEN + 1, test = all / 8 + 1;
    const size_t n = all < MAX_SEQUENCES ? all : MAX_SEQUENCES;
    float *x = draw(pool, false, n * LEN, seed);
    float *y = draw(pool, true, test * LEN, seed);
    int rc = 0;

    for (size_t i = 0; i < KV_KLT_KINDS && !rc; i++) {
        const struct kv_klt_kind *kind = &kv_klt_kinds[i];
        const size_t dims[] = {kind->values, kv_trellis_kept(kind->bits)};
        struct kv_table *t;
        char name[32];

        kv_klt_table_name(i, name);
        t = kv_calib_add(out, name, KV_ALL, KV_ALL, KV_ALL, 2, dims);
        kv_trellis_train(kind->bits, kind->values, x, n, LEN, ROUNDS,
                         kv_mix(seed, i), t->data);
        t->error =
            kv_trellis_error(kind->bits, kind->values, t->data, y, test, LEN);
        rc = kv_interrupted(e);
        if (out->progress)
            kv_progress_step(out->progress, 1);
    }
    free(y);
    free(x);
    return rc;
}

static int check_side(const struct kv_spec *s, enum kv_side side,
                      struct kv_dump *dump, struct kv_err *e)
{
    if (kv_dump_want(dump, tensor_of(s, side), e))
        return -1;
    if (kv_spec_is(s, side, "metric", "fisher"))
        return kv_dump_want(dump, fisher_of(side), e) ||
               kv_dump_want_gram(dump, fisher_gram(s, side), e);
    return side == KV_K && kv_spec_is(s, side, "metric", "attention") &&
           kv_dump_want(dump, KV_T_Q, e);
}

int kv_klt_trainable(const struct kv_spec *s, struct kv_dump *dump,
                     struct kv_err *e)
{
    for (int side = 0; side < KV_SIDES; side++)
        if (check_side(s, (enum kv_side)side, dump, e))
            return kv_fail_in(e, "%c", kv_side_name((enum kv_side)side));
    return 0;
}

int kv_klt_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                     uint64_t seed, struct kv_calib_set *out, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct job j = {.spec = s,
                    .dump = dump,
                    .info = info,
                    .out = out,
                    .d = info->shape.head_dim,
                    .n_heads = info->shape.n_kv_heads};
    struct pool pool = {0};
    int rc = 0;

    if (out->progress)
        out->progress->total +=
            2 * (info->last_layer - info->first_layer + 1) + KV_KLT_KINDS;
    for (j.layer = info->first_layer; j.layer <= info->last_layer && !rc;
         j.layer++)
        for (int side = 0; side < KV_SIDES && !rc; side++) {
            j.side = (enum kv_side)side;
            j.tensor = tensor_of(s, j.side);
            rc = train_side(&j, &pool, e);
            if (out->progress)
                kv_progress_step(out->progress, 1);
        }
    rc = rc || train_trellis(out, &pool, seed, e) ? -1 : 0;
    free(pool.value);
    return rc;
}
