#include "eval/attn_gpu.h"
#include "kernels/cuda/gpu_attend.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

struct kv_attn_gpu {
    struct kv_gpu_attend *attend;
    size_t n_batch, copies, row; /* row: values of one sequence's answer */
};

/* Copy c of sequence b is the device's sequence c * n_batch + b. */
int kv_attn_gpu_new(struct kv_attn_gpu **out, const struct kv_device *device,
                    struct kv_tiled *const *tiled, size_t n_batch,
                    size_t copies, const float *q, size_t nq, enum kv_path path,
                    struct kv_err *e)
{
    const size_t n = n_batch * copies;
    struct kv_tiles_job *jobs = kv_alloc(n, sizeof(*jobs));
    struct kv_attn_gpu *g = kv_alloc(1, sizeof(*g));
    float *all;
    int rc;

    for (size_t i = 0; i < n; i++)
        jobs[i] = kv_tiled_job(tiled[i % n_batch], nq);
    *g = (struct kv_attn_gpu){.n_batch = n_batch,
                              .copies = copies,
                              .row = nq * jobs->n_heads * jobs->head_dim};
    all = kv_alloc(n, g->row * sizeof(*all));
    for (size_t c = 0; c < copies; c++)
        memcpy(all + c * n_batch * g->row, q, n_batch * g->row * sizeof(*q));
    rc = kv_gpu_attend_new(&g->attend, device, jobs, n, path, e) ||
         kv_gpu_attend_ask(g->attend, all, e);
    free(all);
    free(jobs);
    if (rc) {
        kv_attn_gpu_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

void kv_attn_gpu_free(struct kv_attn_gpu *g)
{
    if (!g)
        return;
    kv_gpu_attend_free(g->attend);
    free(g);
}

enum kv_path kv_attn_gpu_path(const struct kv_attn_gpu *g)
{
    return kv_gpu_attend_path(g->attend);
}

size_t kv_attn_gpu_bytes(const struct kv_attn_gpu *g)
{
    return kv_gpu_attend_bytes(g->attend);
}

int kv_attn_gpu_launch(struct kv_attn_gpu *g, struct kv_err *e)
{
    return kv_gpu_attend_launch(g->attend, e);
}

static int launch(void *arg, struct kv_err *e)
{
    return kv_attn_gpu_launch(arg, e);
}

static int answer(const struct kv_attn_gpu *g, float *out, struct kv_err *e)
{
    const size_t first = g->n_batch * g->row;
    float *all = kv_alloc(g->copies, first * sizeof(*all));
    int rc = kv_gpu_attend_answer(g->attend, all, e);

    for (size_t c = 1; c < g->copies && !rc; c++)
        if (memcmp(all, all + c * first, first * sizeof(*all)))
            rc = kv_fail(e,
                         "copy %zu of the batch has another answer than the "
                         "first",
                         c);
    memcpy(out, all, first * sizeof(*out));
    free(all);
    return rc;
}

int kv_attn_gpu_time(struct kv_attn_gpu *g, struct kv_attn_gpu *base,
                     size_t warmup, size_t reps, struct kv_timing *timing,
                     double *ratio, float *out, struct kv_err *e)
{
    double *s = kv_alloc(reps, sizeof(*s)), before = 0;
    int rc = 0;

    if (base) {
        rc = kv_device_time(launch, base, warmup, reps, s, e);
        before = rc ? 0 : kv_quantile(s, reps, 0.5);
    }
    rc = rc || kv_device_time(launch, g, warmup, reps, s, e) ||
         answer(g, out, e);
    if (!rc) {
        *timing = (struct kv_timing){.p10 = kv_quantile(s, reps, 0.1),
                                     .p50 = kv_quantile(s, reps, 0.5),
                                     .p90 = kv_quantile(s, reps, 0.9)};
        *ratio = base ? before / timing->p50 : 1;
    }
    free(s);
    return rc ? -1 : 0;
}
