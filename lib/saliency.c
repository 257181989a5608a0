#include "lib/saliency.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

/* The number of probes at j or later; at [n_probes] is ascending. */
static size_t probes_from(const size_t *at, size_t n_probes, size_t j)
{
    size_t p = 0;

    while (p < n_probes && at[p] < j)
        p++;
    return n_probes - p;
}

void kv_saliency(const struct kv_shape *s, const float *q, const size_t *at,
                 size_t n_probes, const float *k, size_t n, float *out)
{
    const size_t group = s->n_heads / s->n_kv_heads;
    double *mass = kv_alloc(s->n_kv_heads * n, sizeof(*mass));

    for (size_t p = 0; p < n_probes; p++) {
        struct kv_attend_job job = {
            .view = kv_shape_view(s, n, at[p], 1),
            .q = q + p * s->n_heads * s->head_dim,
            .q_rows = 1,
            .k = {.unquantized = k},
        };

        job.view.mass = mass;
        kv_attend_c(&job);
    }
    for (size_t i = 0; i < s->n_kv_heads * n; i++) {
        const size_t rows = probes_from(at, n_probes, i % n) * group;

        out[i] = rows ? (float)(mass[i] / (double)rows) : 0;
    }
    free(mass);
}
