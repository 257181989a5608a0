/* Training of klt.  For one layer and side after the other, passes over the
 * dump find each token's weight, then mean, covariance and metric.  The trellis
 * is trained on a sample of the coefficients of all layers, K and V. */
#include "lib/schemes/klt_train.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/moments.h"
#include "lib/rope_table.h"
#include "lib/schemes/klt_short.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 512,       /* tokens of one window read at a time */
    SAMPLED = 1 << 16, /* coefficients sampled from a side of a layer */
    LEN = 128,         /* values of a training sequence */
    MAX_SEQUENCES = 6144,
    ROUNDS = 24
};

/* Added to the metric's diagonal, as a share of its mean.  RIDGE is small, so
 * that directions without queries do not outweigh directions with some.
 * FISHER_RIDGE is larger, since a direction without effect on the loss in this
 * text may matter in another. */
static const double RIDGE = 1e-5, FISHER_RIDGE = 0.03;

static size_t dump_tokens(const struct kv_klt_job *j)
{
    return j->info->n_windows * j->info->ctx;
}

static enum kv_tensor klt_tensor_of(const struct kv_spec *s, enum kv_side side)
{
    return side == KV_V                         ? KV_T_V
           : kv_spec_is(s, KV_K, "rope", "pre") ? KV_T_K_PRE
                                                : KV_T_K;
}

enum kv_tensor kv_klt_gradient_of(enum kv_side side)
{
    return side == KV_K ? KV_T_K_GRADIENT : KV_T_V_GRADIENT;
}

static bool is_fisher(const struct kv_klt_job *j)
{
    return kv_spec_is(j->spec, j->side, "metric", "fisher");
}

/* The number of tokens that are read together, all from one window. */
static size_t chunk_at(const struct kv_klt_job *j, size_t token)
{
    const size_t left = j->info->ctx - token % j->info->ctx;

    return left < CHUNK ? left : CHUNK;
}

/* Reads x [n][row].  Gradients of keys after RoPE are the dump's gradients of
 * keys before RoPE, rotated. */
static int klt_read_rows(const struct kv_klt_job *j, enum kv_tensor t,
                         size_t at, size_t n, float *x, struct kv_err *e)
{
    if (kv_interrupted(e) || kv_dump_read(j->dump, j->layer, t, at, n, x, e))
        return -1;
    if (t == KV_T_K_GRADIENT && j->tensor == KV_T_K)
        kv_rope(&j->shape, x, n, j->shape.n_kv_heads, at % j->info->ctx);
    return 0;
}

/* ---- the weight of a token ----------------------------------------------- */

/* Reads the squared lengths of the gradients: square [tokens]. */
static int read_lengths(const struct kv_klt_job *j, double *square,
                        struct kv_err *e)
{
    float *g = kv_alloc(CHUNK, j->row * sizeof(*g));
    int rc = 0;

    for (size_t at = 0, n; at < dump_tokens(j) && !rc; at += n) {
        n = chunk_at(j, at);
        rc = klt_read_rows(j, kv_klt_gradient_of(j->side), at, n, g, e);
        for (size_t i = 0; i < n * j->row && !rc; i++)
            square[at + i / j->row] += (double)g[i] * (double)g[i];
    }
    free(g);
    return rc;
}

/* The mean of min(square, most). */
static double mean_below(const struct kv_klt_job *j, const double *square,
                         double most)
{
    double sum = 0;

    for (size_t t = 0; t < dump_tokens(j); t++)
        sum += square[t] < most ? square[t] : most;
    return sum / (double)dump_tokens(j);
}

/* Each token's weight in the metric and in the covariance (moments), both
 * [tokens].  All weights are 1 except with metric=fisher: there the weights
 * follow from the squared length of the token's gradient, within limits, since
 * few tokens have most of the sum.  Attention sinks count too: a codec that is
 * trained without them clips them (2 bits on SmolLM2, s0: KL .103 with them,
 * .486 without; s1: .061 and .065). */
int kv_klt_weigh(const struct kv_klt_job *j, float *metric, float *moments,
                 struct kv_err *e)
{
    const size_t n = dump_tokens(j);
    double *square = kv_alloc(n, sizeof(*square));
    const int rc = is_fisher(j) ? read_lengths(j, square, e) : 0;
    const double mean = mean_below(j, square, (double)INFINITY);
    const double most = 4 * mean, capped = mean_below(j, square, most);

    for (size_t t = 0; t < n && !rc; t++) {
        metric[t] = moments[t] = 1;
        if (capped > 0) {
            metric[t] = (float)(mean / fmax(mean, square[t]));
            moments[t] = (float)(0.5 + 0.5 * fmin(square[t], most) / capped);
        }
    }
    free(square);
    return rc;
}

/* ---- moments ----------------------------------------------------------- */

/* Computes the weighted mean [row] of the side's tensor. */
static int add_mean(const struct kv_klt_job *j, const float *weight,
                    double *mean, struct kv_err *e)
{
    float *x = kv_alloc(CHUNK, j->row * sizeof(*x));
    double sum = 0;
    int rc = 0;

    for (size_t at = 0, n; at < dump_tokens(j) && !rc; at += n) {
        n = chunk_at(j, at);
        rc = klt_read_rows(j, j->tensor, at, n, x, e);
        for (size_t t = 0; t < n && !rc; t++) {
            sum += (double)weight[at + t];
            for (size_t i = 0; i < j->row; i++)
                mean[i] += (double)(weight[at + t] * x[t * j->row + i]);
        }
    }
    for (size_t i = 0; i < j->row; i++)
        mean[i] /= sum > 0 ? sum : 1;
    free(x);
    return rc;
}

/* second [row][row]: the weighted mean of (x - mean)^T (x - mean) of a tensor;
 * mean: [row]. */
static int add_second(const struct kv_klt_job *j, enum kv_tensor tensor,
                      const float *weight, const double *mean, double *second,
                      struct kv_err *e)
{
    const size_t row = j->row;
    float *x = kv_alloc(CHUNK, row * sizeof(*x));
    double sum = 0;
    int rc = 0;

    for (size_t at = 0, n; at < dump_tokens(j) && !rc; at += n) {
        n = chunk_at(j, at);
        rc = klt_read_rows(j, tensor, at, n, x, e);
        for (size_t t = 0; t < n && !rc; t++) {
            const double root = sqrt((double)weight[at + t]);

            sum += (double)weight[at + t];
            for (size_t i = 0; i < row; i++)
                x[t * row + i] =
                    (float)(root * ((double)x[t * row + i] - mean[i]));
        }
        if (!rc)
            kv_moments_add(x, n, 1, row, second);
    }
    for (size_t i = 0; i < row * row; i++)
        second[i] /= sum > 0 ? sum : 1;
    free(x);
    return rc;
}

/* ---- the metric -------------------------------------------------------- */

static bool turns(const struct kv_shape *s, size_t channel)
{
    return channel >= s->latent && channel - s->latent < 2 * s->n_rot;
}

/* Averages m [d][d] over RoPE's angles, since a key before RoPE meets queries
 * at every angle: half the trace of each rotary pair's block remains, and the
 * entries between pairs become 0. */
static void average_angles(const struct kv_shape *s, double *m)
{
    const struct kv_rope_pairs pairs = kv_shape_pairs(s);
    const size_t d = s->head_dim;

    for (size_t i = 0; i < d; i++)
        for (size_t k = 0; k < d; k++)
            if (i != k && (turns(s, i) || turns(s, k)))
                m[i * d + k] = 0;
    for (size_t i = 0; i < pairs.n; i++) {
        double *low = &m[(s->latent + i * pairs.step) * (d + 1)];
        double *high = low + pairs.apart * (d + 1);

        *low = *high = (*low + *high) / 2;
    }
}

/* Sums q^T q by KV head: m [n_kv_heads][d][d].  The sums are not divided by
 * their number, since a factor of the metric changes only the unit of sigma. */
static int query_metric(const struct kv_klt_job *j, double *m, struct kv_err *e)
{
    const struct kv_shape *s = &j->shape;
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    float *q = kv_alloc(CHUNK, s->n_heads * d * sizeof(*q));
    double *all = kv_alloc(s->n_heads * d * d, sizeof(*all));
    int rc = 0;

    for (size_t at = 0, n; at < dump_tokens(j) && !rc; at += n) {
        n = chunk_at(j, at);
        rc = klt_read_rows(j, KV_T_Q, at, n, q, e);
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
    return rc;
}

static int output_metric(const struct kv_klt_job *j, double *m,
                         struct kv_err *e)
{
    const size_t n = j->row * j->shape.head_dim;
    float *gram = kv_alloc(n, sizeof(*gram));
    const int rc = kv_dump_gram(j->dump, j->layer, gram, e);

    for (size_t i = 0; i < n && !rc; i++)
        m[i] = (double)gram[i];
    free(gram);
    return rc;
}

/* Fills m [row][row] head by head; entries between heads stay 0. */
static int attention_metric(const struct kv_klt_job *j, double *m,
                            struct kv_err *e)
{
    const size_t d = j->shape.head_dim;
    double *own = kv_alloc(j->row * d, sizeof(*own));
    const int rc =
        j->side == KV_K ? query_metric(j, own, e) : output_metric(j, own, e);

    for (size_t i = 0; i < j->row * d; i++) /* i / d: the row, counted over all
                                             * heads */
        m[i / d * j->row + i / d / d * d + i % d] = own[i];
    free(own);
    return rc;
}

/* Computes the metric m [row][row], which comes cleared.  m is scaled so that
 * its mean diagonal is 1; *unit becomes the factor that undoes this. */
int kv_klt_metric(const struct kv_klt_job *j, const float *weight, double *m,
                  double *unit, struct kv_err *e)
{
    const bool attention = kv_spec_is(j->spec, j->side, "metric", "attention");
    const double ridge = is_fisher(j) ? FISHER_RIDGE : RIDGE;
    double *zero = kv_alloc(j->row, sizeof(*zero)), trace = 0;
    const int rc = is_fisher(j) ? add_second(j, kv_klt_gradient_of(j->side),
                                             weight, zero, m, e)
                   : attention  ? attention_metric(j, m, e)
                                : 0;

    for (size_t i = 0; i < j->row; i++)
        trace += m[i * j->row + i] / (double)j->row;
    for (size_t i = 0; i < j->row * j->row && trace > 0; i++)
        m[i] /= trace;
    for (size_t i = 0; i < j->row; i++)
        m[i * j->row + i] += trace > 0 ? ridge : 1;
    *unit = trace > 0 ? sqrt(trace) : 1;
    free(zero);
    return rc;
}

/* ---- a side of a layer -------------------------------------------------- */

/* Adds to the pool the upper half of the coefficients of a token's part, each
 * divided by its sigma. */
static void sample_part(const struct kv_klt_tables *from, size_t at,
                        const float *x, double *y, struct kv_klt_pool *pool)
{
    const size_t n = from->part, some = (n + 1) / 2;

    memset(y, 0, some * sizeof(*y));
    for (size_t k = at; k < at + n; k++)
        for (size_t c = 0; c < some; c++)
            y[c] += (double)(x[k] - from->mean[k]) *
                    (double)from->forward[k * n + c];
    for (size_t c = 0; c < some; c++)
        if (from->sigma[at + c] > 0)
            pool->value[pool->n++] =
                (float)(y[c] *
                        (double)(from->unit[at + c] / from->sigma[at + c]));
}

/* Adds to the pool coefficients of some tokens, evenly spaced. */
static int klt_sample(const struct kv_klt_job *j,
                      const struct kv_klt_tables *from,
                      struct kv_klt_pool *pool, struct kv_err *e)
{
    const size_t row = j->row, part = from->part;
    const size_t some = row / part * ((part + 1) / 2), tokens = dump_tokens(j);
    const size_t max = SAMPLED / some + 1, n = max < tokens ? max : tokens;
    float *x = kv_alloc(row, sizeof(*x));
    double *y = kv_alloc(some, sizeof(*y));
    int rc = 0;

    pool->value = kv_realloc(pool->value, pool->n + n * some, sizeof(*x));
    for (size_t i = 0; i < n && !rc; i++) {
        rc = klt_read_rows(j, j->tensor, i * tokens / n, 1, x, e);
        for (size_t at = 0; at < row && !rc; at += part)
            sample_part(from, at, x, y, pool);
    }
    free(y);
    free(x);
    return rc;
}

static int train_side(const struct kv_klt_job *j, struct kv_klt_pool *pool,
                      struct kv_err *e)
{
    const size_t row = j->row, tokens = dump_tokens(j);
    float *counted = kv_alloc(2 * tokens, sizeof(*counted));
    double *mean = kv_alloc(row, sizeof(*mean)), unit;
    double *cov = kv_alloc(row * row, sizeof(*cov));
    double *metric = kv_alloc(row * row, sizeof(*metric));
    struct kv_klt_tables t;
    const int rc =
        kv_klt_weigh(j, counted, counted + tokens, e) ||
                add_mean(j, counted + tokens, mean, e) ||
                add_second(j, j->tensor, counted + tokens, mean, cov, e) ||
                kv_klt_metric(j, counted, metric, &unit, e) ||
                kv_klt_add_tables(j, mean, metric, unit, cov, &t, e) ||
                klt_sample(j, &t, pool, e)
            ? kv_fail_in(e, "layer %zu, %c", j->layer, kv_side_name(j->side))
            : 0;

    free(metric);
    free(cov);
    free(mean);
    free(counted);
    return rc;
}

/* ---- the trellis ------------------------------------------------------- */

/* Draws n values of the pool at random: from every eighth value (for the test),
 * or from all others. */
static float *draw(const struct kv_klt_pool *pool, bool eighth, size_t n,
                   uint64_t seed)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n && pool->n >= 8; i++) {
        const size_t k = kv_random(seed, i) % (pool->n / 8);

        x[i] = pool->value[8 * k + (eighth ? 7 : kv_random(~seed, i) % 7)];
    }
    return x;
}

/* Stores the table of each kind, and its error on values that were not in the
 * training. */
int kv_klt_train_trellis(struct kv_calib_set *out,
                         const struct kv_klt_pool *pool, uint64_t seed,
                         struct kv_err *e)
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
    if (kv_dump_want(dump, klt_tensor_of(s, side), e))
        return -1;
    if (kv_spec_is(s, side, "metric", "fisher"))
        return kv_dump_want(dump, kv_klt_gradient_of(side), e);
    return side == KV_K && kv_spec_is(s, side, "metric", "attention") &&
           kv_dump_want(dump, KV_T_Q, e);
}

/* Fails if the dump has fewer tokens than a row has values: a prediction is a
 * regression on whole rows. */
static int check_tokens(const struct kv_spec *s, struct kv_dump *dump,
                        struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t row = kv_shape_kv_most(&info->shape);

    if (kv_spec_layered(s, 0) && info->n_windows * info->ctx < row)
        return kv_fail(e,
                       "%s has %zu tokens, and a row %zu values: a prediction "
                       "wants at least as many tokens",
                       kv_dump_path(dump), info->n_windows * info->ctx, row);
    return 0;
}

int kv_klt_trainable(const struct kv_spec *s, struct kv_dump *dump,
                     struct kv_err *e)
{
    if (check_tokens(s, dump, e))
        return -1;
    for (int side = 0; side < kv_shape_sides(&kv_dump_info(dump)->shape);
         side++)
        if (check_side(s, (enum kv_side)side, dump, e))
            return kv_fail_in(e, "%c", kv_side_name((enum kv_side)side));
    return 0;
}

void kv_klt_at(struct kv_klt_job *j, size_t layer, enum kv_side side)
{
    j->layer = layer;
    j->shape = kv_shape_layer(&j->info->shape, layer);
    j->row = j->shape.n_kv_heads * j->shape.head_dim;
    j->side = side;
    j->tensor = klt_tensor_of(j->spec, side);
}

static int train_all(const struct kv_spec *s, struct kv_dump *dump,
                     uint64_t seed, struct kv_calib_set *out, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct kv_klt_job j = {.spec = s,
                           .dump = dump,
                           .info = info,
                           .out = out,
                           .row = kv_shape_kv_most(&info->shape)};
    struct kv_klt_pool pool = {0};
    int rc = 0;

    if (check_tokens(s, dump, e))
        return -1;
    if (info->n_windows * info->ctx < j.row)
        snprintf(out->warning, sizeof(out->warning),
                 "%zu tokens for the covariance of %zu values: the transforms "
                 "fit this text better than any other",
                 info->n_windows * info->ctx, j.row);
    if (kv_spec_layered(s, 0))
        return kv_klt_pred_calibrate(&j, seed, e);
    if (out->progress)
        out->progress->total += (size_t)kv_shape_sides(&info->shape) *
                                    (info->last_layer - info->first_layer + 1) +
                                KV_KLT_KINDS;
    for (size_t l = info->first_layer; l <= info->last_layer && !rc; l++)
        for (int side = 0; side < kv_shape_sides(&info->shape) && !rc; side++) {
            kv_klt_at(&j, l, (enum kv_side)side);
            rc = train_side(&j, &pool, e);
            if (out->progress)
                kv_progress_step(out->progress, 1);
        }
    rc = rc || kv_klt_train_trellis(out, &pool, seed, e) ? -1 : 0;
    free(pool.value);
    return rc;
}

int kv_klt_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                     uint64_t seed, struct kv_calib_set *out, struct kv_err *e)
{
    if (train_all(s, dump, seed, out, e))
        return -1;
    return kv_klt_is_short(s)
               ? kv_klt_shorten(s, &kv_dump_info(dump)->shape, out, e)
               : 0;
}
