#include "eval/attn_gpu.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_attn_gpu {
    struct kv_gpu_attend *attend; /* NULL: unfused */
    struct kv_gpu_attend *once;   /* the caches whose tokens `attend` repeats,
                                   * or NULL */
    struct kv_unfused *unfused;
    void *half_out; /* the output of unfused attention */
    float *q;
    size_t n_batch, copies, row; /* row: number of values in one sequence's
                                  * output */
};

static int open_unfused(struct kv_attn_gpu *g, const struct kv_tiles_job *jobs,
                        size_t n_jobs, const float *q, struct kv_err *e)
{
    const size_t values = n_jobs * g->row;

    return kv_unfused_new(&g->unfused, jobs, n_jobs, e) ||
           kv_device_alloc(&g->half_out, values * sizeof(uint16_t), e) ||
           kv_device_alloc((void **)&g->q, values * sizeof(float), e) ||
           kv_device_upload(g->q, q, values * sizeof(float), e);
}

/* Downloads the outputs as kv_gpu_attend_answer() does. */
static int answer_unfused(const struct kv_attn_gpu *g, float *out,
                          struct kv_err *e)
{
    const size_t n = g->n_batch * g->copies * g->row;
    uint16_t *half = kv_alloc(n, sizeof(*half));
    const int rc = kv_device_download(half, g->half_out, n * sizeof(*half), e);

    for (size_t i = 0; i < n && !rc; i++)
        out[i] = kv_f16_to_f32(half[i]);
    free(half);
    return rc;
}

/* Replaces attention's caches by longer ones that repeat the tokens. */
static int repeat(struct kv_attn_gpu *g, size_t repeats, struct kv_err *e)
{
    if (repeats == 1)
        return 0;
    g->once = g->attend;
    g->attend = NULL;
    return kv_gpu_attend_copy(&g->attend, g->once, repeats, e);
}

static int open_path(struct kv_attn_gpu *g, const struct kv_device *device,
                     const struct kv_tiles_job *jobs, size_t n_jobs,
                     size_t repeats, const float *q, enum kv_attn_path path,
                     struct kv_err *e)
{
    int rc = 0;

    switch (path) {
    case KV_ATTN_UNFUSED:
        return open_unfused(g, jobs, n_jobs, q, e);
    case KV_ATTN_DEQUANT:
        rc = kv_gpu_attend_new_dequant(&g->attend, device, jobs, n_jobs, e);
        break;
    case KV_ATTN_GENERIC:
        rc = kv_gpu_attend_new_generic(&g->attend, device, jobs, n_jobs, e);
        break;
    case KV_ATTN_AUTO:
    case KV_ATTN_EXACT:
    case KV_ATTN_INT8:
        rc = kv_gpu_attend_new(
            &g->attend, device, jobs, n_jobs,
            path == KV_ATTN_INT8 ? KV_PATH_INT8 : KV_PATH_EXACT, e);
    }
    return rc || repeat(g, repeats, e) || kv_gpu_attend_ask(g->attend, q, e);
}

/* Copy c of sequence b is the device's sequence c * n_batch + b. */
int kv_attn_gpu_new(struct kv_attn_gpu **out, const struct kv_device *device,
                    struct kv_tile_cache *const *tiled, size_t n_batch,
                    size_t copies, size_t repeats, const float *q, size_t nq,
                    enum kv_attn_path path, struct kv_err *e)
{
    const size_t n = n_batch * copies;
    struct kv_tiles_job *jobs = kv_alloc(n, sizeof(*jobs));
    struct kv_attn_gpu *g = kv_alloc(1, sizeof(*g));
    float *all;
    int rc;

    for (size_t i = 0; i < n; i++)
        jobs[i] = kv_tile_cache_job(tiled[i % n_batch], nq);
    *g = (struct kv_attn_gpu){.n_batch = n_batch,
                              .copies = copies,
                              .row = nq * jobs->view.n_heads *
                                     jobs->view.head_dim};
    all = kv_alloc(n, g->row * sizeof(*all));
    for (size_t c = 0; c < copies; c++)
        memcpy(all + c * n_batch * g->row, q, n_batch * g->row * sizeof(*q));
    rc = open_path(g, device, jobs, n, repeats, all, path, e);
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
    kv_gpu_attend_free(g->once);
    kv_unfused_free(g->unfused);
    kv_device_free(g->half_out);
    kv_device_free(g->q);
    free(g);
}

const char *kv_attn_gpu_name(const struct kv_attn_gpu *g)
{
    return g->attend ? kv_gpu_attend_name(g->attend) : "unfused";
}

size_t kv_attn_gpu_bytes(const struct kv_attn_gpu *g)
{
    return g->attend ? kv_gpu_attend_bytes(g->attend)
                     : kv_unfused_bytes(g->unfused);
}

int kv_attn_gpu_launch(struct kv_attn_gpu *g, struct kv_err *e)
{
    return g->attend ? kv_gpu_attend_launch(g->attend, e)
                     : kv_unfused_attend(g->unfused, 0, g->q, KV_TYPE_F16,
                                         g->half_out, e);
}

static int launch(void *arg, struct kv_err *e)
{
    return kv_attn_gpu_launch(arg, e);
}

static int answer(const struct kv_attn_gpu *g, float *out, struct kv_err *e)
{
    const size_t first = g->n_batch * g->row;
    float *all = kv_alloc(g->copies, first * sizeof(*all));
    int rc = g->attend ? kv_gpu_attend_answer(g->attend, all, e)
                       : answer_unfused(g, all, e);

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
        *timing = kv_timing_of(s, reps);
        *ratio = base ? before / timing->p50 : 1;
    }
    free(s);
    return rc ? -1 : 0;
}

int kv_attn_gpu_again(struct kv_attn_gpu *g, const float *out, struct kv_err *e)
{
    const size_t n = g->n_batch * g->row;
    float *got = kv_alloc(n, sizeof(*got));
    int rc = kv_attn_gpu_launch(g, e) || answer(g, got, e);

    if (!rc && memcmp(got, out, n * sizeof(*got)))
        rc = kv_fail(e, "attention over quantized tiles has another answer");
    free(got);
    return rc ? -1 : 0;
}

struct kv_gpu_attend *kv_attn_gpu_attend(const struct kv_attn_gpu *g)
{
    return g->attend;
}
