#include "lib/saliency.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8 }; /* keys side by side */

static size_t padded(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* Keys by dimension: to [d][padded(n)], the padding zero. */
static void transpose(const float *k, size_t stride, size_t n, size_t d,
                      float *to)
{
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < d; i++)
            to[i * padded(n) + j] = k[j * stride + i];
}

/* The softmax of scale q k' over the first n_seen of n keys, k [d][padded(n)],
 * as kv_attend_c() computes it.  weight: [padded(n)]. */
static void attend(const float *q, const float *k, size_t n, size_t d,
                   size_t n_seen, float scale, double *weight)
{
    double max = -HUGE_VAL, sum = 0;

    for (size_t j = 0; j < n_seen; j += LANES) {
        double w[LANES] = {0};

        for (size_t i = 0; i < d; i++)
            for (size_t l = 0; l < LANES; l++)
                w[l] += (double)q[i] * (double)k[i * padded(n) + j + l];
        for (size_t l = 0; l < LANES; l++)
            weight[j + l] = w[l] * (double)scale;
    }
    for (size_t j = 0; j < n_seen; j++)
        max = weight[j] > max ? weight[j] : max;
    for (size_t j = 0; j < n_seen; j++) {
        weight[j] = exp(weight[j] - max);
        sum += weight[j];
    }
    for (size_t j = 0; j < n_seen; j++)
        weight[j] /= sum;
}

/* One KV head: q [n_probes], rows of `row` floats, its query heads first in
 * each; k: [d][padded(n)]; sum, weight: room for padded(n). */
static void score(const struct kv_shape *s, const float *q, size_t row,
                  const size_t *at, size_t n_probes, const float *k, size_t n,
                  double *sum, double *weight, float *out)
{
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;

    memset(sum, 0, n * sizeof(*sum));
    for (size_t p = 0; p < n_probes; p++)
        for (size_t h = 0; h < group; h++) {
            attend(q + p * row + h * d, k, n, d, at[p] + 1, s->attn_scale,
                   weight);
            for (size_t j = 0; j <= at[p]; j++)
                sum[j] += weight[j];
        }
    for (size_t j = 0, p = 0; j < n; j++) {
        while (p < n_probes && at[p] < j)
            p++;

        const double rows = (double)((n_probes - p) * group);

        out[j] = rows > 0 ? (float)(sum[j] / rows) : 0;
    }
}

void kv_saliency(const struct kv_shape *s, const float *q, const size_t *at,
                 size_t n_probes, const float *k, size_t n, float *out)
{
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    double *sum = kv_alloc(2 * padded(n), sizeof(*sum));
    float *key = kv_alloc(d, padded(n) * sizeof(*key));

    for (size_t h = 0; h < s->n_kv_heads; h++) {
        transpose(k + h * d, s->n_kv_heads * d, n, d, key);
        score(s, q + h * group * d, s->n_heads * d, at, n_probes, key, n, sum,
              sum + padded(n), out + h * n);
    }
    free(key);
    free(sum);
}
