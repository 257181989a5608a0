/* Training of CommVQ's values: the basis whose vectors a token is a sum of.
 *
 * The basis starts as a transform coder.  Its first vector is the mean plus the
 * lowest level of every axis.  The other vectors are the bits of evenly spaced
 * levels along the principal axes; the axis with the most remaining error gets
 * the next bit.  Each round then chooses bits (kv_commvq_choose()) and fits the
 * vectors to these bits by least squares, with a small ridge that keeps the
 * vectors near those of the last round. */
#include "kernels/eigen.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/moments.h"
#include "lib/schemes/commvq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOGETHER = 64 /* tokens that a thread takes at a time */ };

static const double RIDGE = 1e-3, SMALLEST = 1e-6, WIDTH = 3.2;

/* Divides x [n][row] by the channels' mean magnitudes, scale [row], and then
 * each token by its norm. */
static void normalize(float *x, size_t n, size_t row, float *scale)
{
    double *mean = kv_alloc(row, sizeof(*mean));

    for (size_t i = 0; i < n * row; i++)
        mean[i % row] += fabs((double)x[i]) / (double)n;
    for (size_t i = 0; i < row; i++)
        scale[i] = (float)(mean[i] + SMALLEST);
    for (size_t t = 0; t < n; t++) {
        float *token = x + t * row, norm;
        uint8_t half[2];

        for (size_t i = 0; i < row; i++)
            token[i] /= scale[i];
        norm = kv_commvq_put_norm(token, row, half);
        for (size_t i = 0; i < row; i++)
            token[i] = norm > 0 ? token[i] / norm : 0;
    }
    free(mean);
}

/* Distributes bits among the axes: of [row], from deviation [row]. */
static void share_bits(const double *deviation, size_t row, size_t bits,
                       unsigned *of)
{
    for (; bits; bits--) {
        size_t most = 0;

        for (size_t i = 1; i < row; i++)
            if (ldexp(deviation[i], -(int)of[i]) >
                ldexp(deviation[most], -(int)of[most]))
                most = i;
        of[most]++;
    }
}

/* Fills e [bits][row] with the starting vectors; axis [row][row]: component i
 * of axis j is at [i][j]. */
static void put_start(const double *mean, const double *axis,
                      const double *deviation, size_t row, size_t bits,
                      float *e)
{
    unsigned *of = kv_alloc(row, sizeof(*of));
    float *to = e + row;

    share_bits(deviation, row, bits - 1, of);
    for (size_t i = 0; i < row; i++)
        e[i] = (float)mean[i];
    for (size_t j = 0; j < row; j++) {
        const double apart = WIDTH * ldexp(deviation[j], -(int)of[j]);
        const double lowest = -apart * (ldexp(1, (int)of[j]) - 1) / 2;

        for (size_t i = 0; i < row; i++)
            e[i] += (float)(lowest * axis[i * row + j]);
        for (unsigned bit = 0; bit < of[j]; bit++, to += row)
            for (size_t i = 0; i < row; i++)
                to[i] = (float)(ldexp(apart, (int)bit) * axis[i * row + j]);
    }
    free(of);
}

/* Makes the starting basis e [bits][row] from x [n][row]. */
static int start_basis(const float *x, size_t n, size_t row, size_t bits,
                       float *e, struct kv_err *err)
{
    double *moment = kv_alloc(row, row * sizeof(*moment));
    double *mean = kv_alloc(row, sizeof(*mean));
    double *value = kv_alloc(row, sizeof(*value));
    int rc;

    for (size_t i = 0; i < n * row; i++)
        mean[i % row] += (double)x[i] / (double)n;
    kv_moments_cross(x, row, x, row, n, moment, row);
    for (size_t i = 0; i < row * row; i++)
        moment[i] = moment[i] / (double)n - mean[i / row] * mean[i % row];
    rc = kv_eigen(moment, row, value);
    for (size_t i = 0; i < row; i++)
        value[i] = sqrt(fmax(value[i], 0));
    if (!rc)
        put_start(mean, moment, value, row, bits, e);
    free(value);
    free(mean);
    free(moment);
    return rc ? kv_fail(err, "no principal axes: values are not finite") : 0;
}

/* Chooses code [n][bits], as floats; rest [n][row]: the residual of x.  Returns
 * the mean square of rest. */
static double choose_all(const struct kv_commvq_basis *b, const float *x,
                         size_t n, float *code, float *rest)
{
    double sum = 0;

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t at = 0; at < n; at += TOGETHER) {
        uint16_t *chosen = kv_alloc(b->n, sizeof(*chosen));

        for (size_t t = at; t < n && t < at + TOGETHER; t++) {
            kv_commvq_choose(b, x + t * b->d, chosen);
            kv_commvq_sum(b, chosen, rest + t * b->d);
            for (size_t i = 0; i < b->d; i++)
                rest[t * b->d + i] = x[t * b->d + i] - rest[t * b->d + i];
            for (size_t i = 0; i < b->n; i++)
                code[t * b->n + i] = chosen[i];
        }
        free(chosen);
    }
    for (size_t i = 0; i < n * b->d; i++)
        sum += (double)rest[i] * (double)rest[i];
    return sum / (double)(n * b->d);
}

/* Adds to e [bits][row] the least-squares fit of the residual to the bits. */
static int fit(const float *code, const float *rest, size_t n, size_t bits,
               size_t row, float *e, struct kv_err *err)
{
    double *gram = kv_alloc(bits, bits * sizeof(*gram)), trace = 0;
    double *y = kv_alloc(bits, row * sizeof(*y));
    int rc;

    kv_moments_cross(code, bits, code, bits, n, gram, bits);
    kv_moments_cross(code, bits, rest, row, n, y, row);
    for (size_t i = 0; i < bits; i++)
        trace += gram[i * bits + i];
    for (size_t i = 0; i < bits; i++)
        gram[i * bits + i] += RIDGE * trace / (double)bits + SMALLEST;
    rc = kv_solve(gram, bits, y, row);
    for (size_t i = 0; i < bits * row && !rc; i++)
        e[i] += (float)y[i];
    free(y);
    free(gram);
    return rc ? kv_fail(err, "the equations of its vectors have no solution")
              : 0;
}

static void round_basis(float *e, size_t n)
{
    for (size_t i = 0; i < n; i++)
        e[i] = kv_f16_to_f32(kv_f16_clamp(e[i]));
}

/* Repeats both steps, from e [bits][row] on, while the error falls; best: the e
 * with the least error. */
static int refine(const struct kv_commvq_sizes *m, size_t rounds,
                  const float *x, size_t n, float *e, float *best,
                  struct kv_err *err)
{
    const size_t row = m->row, bits = m->bits;
    float *code = kv_alloc(n, bits * sizeof(*code));
    float *rest = kv_alloc(n, row * sizeof(*rest));
    double error, least = INFINITY;
    int rc = 0;

    for (size_t i = 0; i < rounds && !rc; i++) {
        struct kv_commvq_basis b;

        round_basis(e, bits * row);
        kv_commvq_basis_init(&b, e, bits, row);
        error = choose_all(&b, x, n, code, rest);
        kv_commvq_basis_clear(&b);
        if (!(error < least))
            break;
        least = error;
        memcpy(best, e, bits * row * sizeof(*best));
        rc = kv_interrupted(err) ? -1 : fit(code, rest, n, bits, row, e, err);
    }
    free(rest);
    free(code);
    return rc;
}

int kv_commvq_train_values(const struct kv_commvq_sizes *m, size_t layer,
                           size_t rounds, float *x, size_t n,
                           struct kv_calib_set *out, struct kv_err *e)
{
    const size_t dims[] = {m->bits, m->row};
    float *start = kv_alloc(m->bits, m->row * sizeof(*start));
    struct kv_table *t;
    int rc;

    normalize(x, n, m->row,
              kv_calib_add(out, "scale", KV_V, (int)layer, KV_ALL, 1, dims + 1)
                  ->data);
    t = kv_calib_add(out, "basis", KV_V, (int)layer, KV_ALL, 2, dims);
    t->type = KV_TABLE_F16;
    rc = start_basis(x, n, m->row, m->bits, start, e) ||
         refine(m, rounds, x, n, start, t->data, e);
    free(start);
    return rc ? -1 : 0;
}
