#include "lib/anchor_score.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A KV head; `row` is the stride between the keys, and values, of two
 * tokens. */
struct head {
    const float *k, *v;
    size_t d, row;
    struct kv_attend_view view;
    bool want_k;
    float *weight;       /* [n] of one query */
    double *out;         /* [d] */
    double *of_k, *of_v; /* [n] */
};

/* Sums are split into LANES partial sums, so that the compiler can vectorize
 * them. */
enum { LANES = 4 };

static double product(const float *x, const float *y, size_t n)
{
    double sum[LANES] = {0};

    for (size_t i = 0; i < n / LANES * LANES; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            sum[l] += (double)x[i + l] * (double)y[i + l];
    for (size_t i = n / LANES * LANES; i < n; i++)
        sum[0] += (double)x[i] * (double)y[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* |x - y|_1 */
static double distance(const float *x, const double *y, size_t n)
{
    double sum[LANES] = {0};

    for (size_t i = 0; i < n / LANES * LANES; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            sum[l] += fabs((double)x[i + l] - y[i + l]);
    for (size_t i = n / LANES * LANES; i < n; i++)
        sum[0] += fabs((double)x[i] - y[i]);
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Adds what query i of a query head, q [d], contributes to the scores. */
static void add_query(struct head *h, const float *q, size_t head, size_t i)
{
    const double norm = sqrt(product(q, q, h->d));

    for (size_t j = 0; j <= i; j++)
        h->weight[j] = (float)((double)h->view.scale *
                               product(q, h->k + j * h->row, h->d));
    kv_attend_logits(&h->view, 0, head, i, 0, i + 1, h->weight);
    kv_attend_weights(&h->view, head, i + 1, h->weight);
    for (size_t j = 0; j <= i; j++)
        h->of_v[j] += (double)h->weight[j];
    if (!h->want_k)
        return;
    memset(h->out, 0, h->d * sizeof(*h->out));
    for (size_t j = 0; j <= i; j++)
        for (size_t c = 0; c < h->d; c++)
            h->out[c] += (double)h->weight[j] * (double)h->v[j * h->row + c];
    for (size_t j = 0; j <= i; j++)
        h->of_k[j] += (double)h->weight[j] * norm *
                      distance(h->v + j * h->row, h->out, h->d);
}

static void score_head(const struct kv_shape *s, size_t kv_head, const float *q,
                       const float *k, const float *v, size_t n, float *of_k,
                       float *of_v)
{
    const size_t group = s->n_heads / s->n_kv_heads, d = s->head_dim;
    struct head h = {.k = k + kv_head * d,
                     .v = v + kv_head * d,
                     .d = d,
                     .row = s->n_kv_heads * d,
                     .view = kv_shape_view(s, n, 0, n),
                     .want_k = of_k};

    h.weight = kv_alloc(n, sizeof(*h.weight));
    h.out = kv_alloc(d, sizeof(*h.out));
    h.of_k = kv_alloc(2 * n, sizeof(*h.of_k));
    h.of_v = h.of_k + n;
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < group; g++) {
            const size_t head = kv_head * group + g;

            add_query(&h, q + (i * s->n_heads + head) * d, head, i);
        }
    for (size_t j = 0; j < n; j++) {
        if (of_k)
            of_k[kv_head * n + j] = (float)h.of_k[j];
        if (of_v)
            of_v[kv_head * n + j] = (float)h.of_v[j];
    }
    free(h.of_k);
    free(h.out);
    free(h.weight);
}

void kv_anchor_score(const struct kv_shape *s, const float *q, const float *k,
                     const float *v, size_t n, float *of_k, float *of_v)
{
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t h = 0; h < s->n_kv_heads; h++)
        score_head(s, h, q, k, v, n, of_k, of_v);
}
