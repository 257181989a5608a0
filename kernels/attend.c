#include "kernels/attend.h"
#include "kernels/gemm.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void kv_attend_c(const float *q, const float *k, const float *v, size_t n,
                 size_t stride, size_t head_dim, float scale, float *out,
                 double *weights)
{
    double *w = weights ? weights : kv_alloc(n, sizeof(*w));
    double *acc = kv_alloc(head_dim, sizeof(*acc));
    double max = -HUGE_VAL, sum = 0;

    for (size_t t = 0; t < n; t++) {
        w[t] = 0;
        for (size_t i = 0; i < head_dim; i++)
            w[t] += (double)q[i] * (double)k[t * stride + i];
        w[t] *= (double)scale;
        max = fmax(max, w[t]);
    }
    for (size_t t = 0; t < n; t++) {
        w[t] = exp(w[t] - max);
        sum += w[t];
        for (size_t i = 0; i < head_dim; i++)
            acc[i] += w[t] * (double)v[t * stride + i];
    }
    for (size_t t = 0; weights && t < n; t++)
        w[t] /= sum;
    for (size_t i = 0; i < head_dim; i++)
        out[i] = (float)(acc[i] / sum);
    free(acc);
    if (!weights)
        free(w);
}

/* Queries pass in tiles of TILE rows, keys in runs of whole TILEs that all
 * queries of the tile see in the same form; fixed, so that the split never
 * follows the machine. */
enum { TILE = 64 };

enum form { FRESH, SETTLED, MIXED };

static bool is_quantized(const struct kv_attend_side *s, size_t i, size_t j)
{
    if (!s->quantized || !s->unquantized)
        return s->quantized != NULL;
    return j >= s->sinks && j < s->until[i];
}

/* The form in which queries [i0, i1) see keys [j0, j1). */
static enum form form_of(const struct kv_attend_side *s, size_t i0, size_t i1,
                         size_t j0, size_t j1)
{
    size_t least, most;

    if (!s->quantized || !s->unquantized)
        return s->quantized ? SETTLED : FRESH;
    least = most = s->until[i0];
    for (size_t i = i0 + 1; i < i1; i++) {
        least = s->until[i] < least ? s->until[i] : least;
        most = s->until[i] > most ? s->until[i] : most;
    }
    if (j0 >= most || j1 <= s->sinks)
        return FRESH;
    return j0 >= s->sinks && j1 <= least ? SETTLED : MIXED;
}

/* The end of the run of key tiles from j0 on that share a form. */
static size_t run_end(const struct kv_attend_side *s, size_t i0, size_t i1,
                      size_t j0, size_t n, enum form *form)
{
    size_t j = j0 + TILE < n ? j0 + TILE : n;

    *form = form_of(s, i0, i1, j0, j);
    while (j < n) {
        const size_t next = j + TILE < n ? j + TILE : n;

        if (form_of(s, i0, i1, j, next) != *form)
            break;
        j = next;
    }
    return j;
}

/* w [rows][n] += scale q k'; other [rows][n]: room for the second form. */
static void scores(const struct kv_attend_job *a, size_t i0, size_t i1,
                   size_t n, float *w, float *other)
{
    const struct kv_attend_side *k = &a->k;
    const size_t rows = i1 - i0, d = a->head_dim;
    const float *q = a->q + i0 * a->q_stride;
    enum form form;

    for (size_t j0 = 0, j1; j0 < n; j0 = j1) {
        j1 = run_end(k, i0, i1, j0, n, &form);

        const float *first = form == FRESH ? k->unquantized : k->quantized;

        kv_gemm(true, rows, j1 - j0, d, a->scale, q, a->q_stride,
                first + j0 * k->stride, k->stride, 0, w + j0, n);
        if (form != MIXED)
            continue;
        kv_gemm(true, rows, j1 - j0, d, a->scale, q, a->q_stride,
                k->unquantized + j0 * k->stride, k->stride, 0, other + j0, n);
        for (size_t i = 0; i < rows; i++)
            for (size_t j = j0; j < j1; j++)
                if (!is_quantized(k, i0 + i, j))
                    w[i * n + j] = other[i * n + j];
    }
}

/* out = w v; w is zero beyond what a query sees. */
static void gather(const struct kv_attend_job *a, size_t i0, size_t i1,
                   size_t n, float *w, float *other)
{
    const struct kv_attend_side *v = &a->v;
    const size_t rows = i1 - i0, d = a->head_dim;
    float *out = a->out + i0 * a->q_stride;
    enum form form;

    for (size_t j0 = 0, j1; j0 < n; j0 = j1) {
        j1 = run_end(v, i0, i1, j0, n, &form);
        if (form ==
            MIXED) { /* move the unquantized ones to a matrix of their own */
            for (size_t i = 0; i < rows; i++)
                for (size_t j = j0; j < j1; j++) {
                    const bool old = is_quantized(v, i0 + i, j);

                    other[i * n + j] = old ? 0 : w[i * n + j];
                    w[i * n + j] = old ? w[i * n + j] : 0;
                }
            kv_gemm(false, rows, d, j1 - j0, 1, other + j0, n,
                    v->unquantized + j0 * v->stride, v->stride, j0 ? 1 : 0, out,
                    a->q_stride);
        }

        const float *first = form == FRESH ? v->unquantized : v->quantized;

        kv_gemm(false, rows, d, j1 - j0, 1, w + j0, n, first + j0 * v->stride,
                v->stride, j0 || form == MIXED ? 1 : 0, out, a->q_stride);
    }
}

size_t kv_attend_scratch(size_t n, size_t head_dim)
{
    (void)head_dim;
    return 2 * TILE * n;
}

void kv_attend(const struct kv_attend_job *a, float *scratch)
{
    for (size_t i0 = 0; i0 < a->nq; i0 += TILE) {
        const size_t i1 = i0 + TILE < a->nq ? i0 + TILE : a->nq;
        const size_t n = a->causal ? a->first + i1 : a->n;
        float *w = scratch, *other = scratch + TILE * n;

        scores(a, i0, i1, n, w, other);
        for (size_t i = i0; i < i1; i++) {
            const size_t sees = a->causal ? a->first + i + 1 : n;
            float *row = w + (i - i0) * n;

            kv_softmax(row, sees);
            memset(row + sees, 0, (n - sees) * sizeof(*row));
        }
        gather(a, i0, i1, n, w, other);
    }
}
