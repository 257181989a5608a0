#include "lib/saliency.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>

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

void kv_saliency(const struct kv_shape *s, const float *q, const size_t *at,
                 size_t n_probes, const float *k, size_t n, float *out)
{
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    const size_t head = d * padded(n);
    double *weight = kv_alloc(padded(n), sizeof(*weight));
    double *sum = kv_alloc(n, sizeof(*sum));
    float *key = kv_alloc(s->n_kv_heads, head * sizeof(*key));

    for (size_t h = 0; h < s->n_kv_heads; h++)
        transpose(k + h * d, s->n_kv_heads * d, n, d, key + h * head);
    for (size_t p = 0; p < n_probes; p++)
        for (size_t h = 0; h < s->n_heads; h++) {
            attend(q + (p * s->n_heads + h) * d, key + h / group * head, n, d,
                   at[p] + 1, s->attn_scale, weight);
            for (size_t j = 0; j <= at[p]; j++)
                sum[j] += weight[j];
        }
    for (size_t j = 0, p = 0; j < n; j++) {
        while (p < n_probes && at[p] < j)
            p++;

        const double rows = (double)((n_probes - p) * s->n_heads);

        out[j] = rows > 0 ? (float)(sum[j] / rows) : 0;
    }
    free(key);
    free(sum);
    free(weight);
}
