#include "lib/schemes/klt_pred_fit.h"
#include "kernels/eigen.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/moments.h"
#include "lib/schemes/klt_short.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOGETHER = 256 }; /* tokens of one matrix product */

/* The ridge, as a share of the mean diagonal of the features' second
 * moments. */
static const double RIDGE = 1e-3;

void kv_klt_seen_init(struct kv_klt_seen *s, size_t n, size_t row,
                      size_t n_below)
{
    const size_t most = KV_KLT_SOURCES * row;

    *s = (struct kv_klt_seen){.n = n, .row = row, .n_below = n_below};
    for (size_t i = 0; i <= n_below; i++)
        for (int side = 0; side < KV_SIDES; side++) {
            s->x[i][side] = kv_alloc(n, row * sizeof(float));
            s->mean[i][side] = kv_alloc(row, sizeof(double));
        }
    s->gram = kv_alloc(most, most * sizeof(*s->gram));
}

void kv_klt_seen_clear(struct kv_klt_seen *s)
{
    for (size_t i = 0; i <= KV_MAX_BELOW; i++)
        for (int side = 0; side < KV_SIDES; side++) {
            free(s->x[i][side]);
            free(s->mean[i][side]);
        }
    free(s->gram);
}

void kv_klt_seen_up(struct kv_klt_seen *s)
{
    float *x[KV_SIDES] = {s->x[s->n_below][KV_K], s->x[s->n_below][KV_V]};
    double *mean[KV_SIDES] = {s->mean[s->n_below][KV_K],
                              s->mean[s->n_below][KV_V]};

    memmove(s->x[1], s->x[0], s->n_below * sizeof(*s->x));
    memmove(s->mean[1], s->mean[0], s->n_below * sizeof(*s->mean));
    memcpy(s->x[0], x, sizeof(x));
    memcpy(s->mean[0], mean, sizeof(mean));
    s->n_gram = 0;
}

/* ---- the predictor ----------------------------------------------------- */

struct source {
    const float *x;
    const double *mean;
};

/* Lists the sources in the order of the matrix (klt_pred.c). */
static size_t list_sources(const struct kv_klt_seen *s, size_t n_below,
                           enum kv_side side, struct source *to)
{
    size_t n = 0;

    for (size_t i = 1; i <= n_below; i++)
        for (int k = 0; k < KV_SIDES; k++)
            to[n++] = (struct source){s->x[i][k], s->mean[i][k]};
    if (side == KV_V)
        to[n++] = (struct source){s->x[0][KV_K], s->mean[0][KV_K]};
    return n;
}

/* Adds to the gram the sources that it lacks: values have the same sources as
 * keys, and one more. */
static void extend_gram(struct kv_klt_seen *s, const struct source *source,
                        size_t n_sources)
{
    const size_t row = s->row, stride = KV_KLT_SOURCES * row;

    for (size_t i = s->n_gram; i < n_sources; i++)
        for (size_t j = 0; j <= i; j++) {
            double *low = s->gram + i * row * stride + j * row;

            for (size_t k = 0; k < row; k++)
                memset(low + k * stride, 0, row * sizeof(*low));
            kv_moments_cross(source[i].x, row, source[j].x, row, s->n, low,
                             stride);
            for (size_t k = 0; k < row * row; k++)
                s->gram[(j * row + k % row) * stride + i * row + k / row] =
                    low[k / row * stride + k % row];
        }
    s->n_gram = n_sources;
}

/* Solves the ridge regression for c [n_sources * row][row]; x: minus its
 * mean. */
static int solve(const struct kv_klt_seen *s, const struct source *source,
                 size_t n_sources, const float *x, double *c)
{
    const size_t row = s->row, n = n_sources * row;
    double *gram = kv_alloc(n, n * sizeof(*gram)), trace = 0;

    for (size_t i = 0; i < n; i++) {
        memcpy(gram + i * n, s->gram + i * KV_KLT_SOURCES * row,
               n * sizeof(*gram));
        trace += gram[i * n + i];
    }
    for (size_t i = 0; i < n; i++)
        gram[i * n + i] += trace > 0 ? RIDGE * trace / (double)n : 1;
    for (size_t i = 0; i < n_sources; i++)
        kv_moments_cross(source[i].x, row, x, row, s->n, c + i * row * row,
                         row);

    const int rc = kv_solve(gram, n, c, row);

    free(gram);
    return rc;
}

/* predicted = features * matrix; x becomes x - predicted. */
static void apply(const struct kv_klt_seen *s, const struct source *source,
                  size_t n_sources, const float *matrix, float *x,
                  float *predicted)
{
    const size_t row = s->row;

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t t = 0; t < s->n; t += TOGETHER) {
        const size_t n = s->n - t < TOGETHER ? s->n - t : TOGETHER;

        for (size_t i = 0; i < n_sources; i++)
            kv_gemm(false, n, row, row, 1, source[i].x + t * row, row,
                    matrix + i * row * row, row, i > 0, predicted + t * row,
                    row);
        for (size_t i = t * row; i < (t + n) * row; i++)
            x[i] -= predicted[i];
    }
}

/* Subtracts from x [n][row] the mean [row] of the tokens that count; other
 * tokens become 0. */
static void centre(const struct kv_klt_seen *s, float *x, double *mean)
{
    const size_t row = s->row;
    size_t n = 0;

    memset(mean, 0, row * sizeof(*mean));
    for (size_t t = 0; t < s->n; t++) {
        n += s->weight[t] > 0;
        for (size_t i = 0; i < row && s->weight[t] > 0; i++)
            mean[i] += (double)x[t * row + i];
    }
    for (size_t i = 0; i < row; i++)
        mean[i] /= n ? (double)n : 1;
    for (size_t i = 0; i < s->n * row; i++)
        x[i] = s->weight[i / row] > 0 ? x[i] - (float)mean[i % row] : 0;
}

/* Rounds c [n_sources][row][row] to values that tables can hold. */
static void round_matrix(const double *c, size_t n_sources, size_t row,
                         struct kv_klt_parts *p)
{
    float *step = kv_alloc(row, sizeof(*step));

    for (size_t i = 0; i < n_sources * row * row; i++)
        p->matrix[i] =
            p->bytes ? (float)c[i] : kv_f16_to_f32(kv_f16_clamp((float)c[i]));
    for (size_t i = 0; i < n_sources && p->bytes; i++)
        kv_klt_round_columns(p->matrix + i * row * row, row, row, step);
    free(step);
}

int kv_klt_predict(struct kv_klt_seen *s, size_t n_below, enum kv_side side,
                   struct kv_klt_parts *p, struct kv_err *e)
{
    const size_t row = s->row;
    struct source source[KV_KLT_SOURCES];
    const size_t n_sources = list_sources(s, n_below, side, source);
    double *c = kv_alloc(n_sources * row, row * sizeof(*c));
    int rc = 0;

    centre(s, p->x, p->mean);
    memcpy(p->bias, p->mean, row * sizeof(*p->bias));
    memset(p->predicted, 0, s->n * row * sizeof(*p->predicted));
    extend_gram(s, source, n_sources);
    if (n_sources && solve(s, source, n_sources, p->x, c))
        rc = kv_fail(e, "the equations of its prediction have no solution");
    if (!rc)
        round_matrix(c, n_sources, row, p);
    for (size_t i = 0; i < n_sources * row * row && !rc; i++)
        p->bias[i % row] -=
            source[i / row / row].mean[i / row % row] * (double)p->matrix[i];
    if (!rc)
        apply(s, source, n_sources, p->matrix, p->x, p->predicted);
    free(c);
    return rc;
}

/* ---- features as decoders have them -------------------------------------- */

/* Overwrites y [n][row], the coefficients of n tokens from token t on, with
 * simulated decoded values. */
static void code(const struct kv_klt_coded *by, size_t t, size_t n, size_t row,
                 float *y)
{
    for (size_t i = 0; i < n * row; i++) {
        const size_t j = i % row;
        const double m = by->share[j], sigma = (double)by->sigma[j];

        y[i] = m < 1 ? (float)((1 - m) * (double)y[i] +
                               sigma * sqrt(m * (1 - m)) *
                                   kv_random_normal(by->seed, t * row + i))
                     : 0;
    }
}

void kv_klt_seen_put(struct kv_klt_seen *s, enum kv_side side,
                     const struct kv_klt_coded *by,
                     const struct kv_klt_parts *p)
{
    const size_t row = s->row, d = by->part;
    float *x = s->x[0][side];

    memcpy(x, p->predicted, s->n * row * sizeof(*x));
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t t = 0; t < s->n; t += TOGETHER) {
        const size_t n = s->n - t < TOGETHER ? s->n - t : TOGETHER;
        float *y = kv_alloc(n * row, sizeof(*y));

        for (size_t i = 0; i < row; i += d)
            kv_gemm(false, n, d, d, 1, p->x + t * row + i, row,
                    by->forward + i * d, d, 0, y + i, row);
        code(by, t, n, row, y);
        for (size_t i = 0; i < row; i += d)
            kv_gemm(false, n, d, d, 1, y + i, row, by->inverse + i * d, d, 1,
                    x + t * row + i, row);
        free(y);
    }
    centre(s, x, s->mean[0][side]);
    for (size_t i = 0; i < row; i++)
        s->mean[0][side][i] += p->mean[i];
}
