#include "lib/saliency.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

void kv_saliency(const struct kv_shape *s, const float *q, const size_t *at,
                 size_t n_probes, const float *k, size_t n, float *out)
{
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    double *weight = kv_alloc(n, sizeof(*weight));
    double *sum = kv_alloc(n, sizeof(*sum));
    float unused[KV_MAX_HEAD_DIM]; /* attention's output; only its weights count
                                    */

    for (size_t p = 0; p < n_probes; p++)
        for (size_t h = 0; h < s->n_heads; h++) {
            const float *key = k + h / group * d;

            kv_attend_c(q + (p * s->n_heads + h) * d, key, key, at[p] + 1,
                        s->n_kv_heads * d, d, s->attn_scale, unused, weight);
            for (size_t j = 0; j <= at[p]; j++)
                sum[j] += weight[j];
        }
    for (size_t j = 0, p = 0; j < n; j++) {
        while (p < n_probes && at[p] < j)
            p++;

        const double rows = (double)((n_probes - p) * s->n_heads);

        out[j] = rows > 0 ? (float)(sum[j] / rows) : 0;
    }
    free(sum);
    free(weight);
}
