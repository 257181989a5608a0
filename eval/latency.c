#include "eval/latency.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

const char *const kv_step_names[KV_STEP_PARTS] = {[KV_STEP_NORM] = "norm",
                                                  [KV_STEP_QKV] = "qkv",
                                                  [KV_STEP_ROPE] = "rope",
                                                  [KV_STEP_OUT] = "out",
                                                  [KV_STEP_ATTENTION] =
                                                      "attention",
                                                  [KV_STEP_MLP] = "mlp",
                                                  [KV_STEP_HEAD] = "head"};

/* ---- caches -------------------------------------------------------------- */

struct kv_step_caches {
    struct kv_gpu_attend **fused; /* [n_layers]; layers after 0 hold copies of
                                   * layer 0's caches */
    size_t n_layers;
    struct kv_unfused *unfused; /* or this */
};

int kv_step_caches_fused(struct kv_step_caches **out,
                         const struct kv_device *device,
                         const struct kv_tiles_job *jobs, size_t n_jobs,
                         size_t n_layers, enum kv_path path, struct kv_err *e)
{
    struct kv_step_caches *c = kv_alloc(1, sizeof(*c));
    int rc;

    c->n_layers = n_layers;
    c->fused = kv_alloc(n_layers, sizeof(struct kv_gpu_attend *));
    rc = kv_gpu_attend_new(&c->fused[0], device, jobs, n_jobs, path, e);
    for (size_t i = 1; i < n_layers && !rc; i++)
        rc = kv_gpu_attend_copy(&c->fused[i], c->fused[0], 1, e);
    if (rc) {
        kv_step_caches_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

int kv_step_caches_unfused(struct kv_step_caches **out,
                           const struct kv_shape *shape, size_t batch, size_t n,
                           uint64_t seed, struct kv_err *e)
{
    struct kv_attend_view v = kv_shape_view(shape, n, n - 1, 1);
    struct kv_unfused *u;

    v.n_seqs = batch;
    if (kv_unfused_random(&u, &v, shape->n_layers, seed, e))
        return -1;
    *out = kv_alloc(1, sizeof(**out));
    (*out)->unfused = u;
    return 0;
}

void kv_step_caches_free(struct kv_step_caches *c)
{
    if (!c)
        return;
    for (size_t i = c->n_layers; i--;) /* copies go before their original */
        kv_gpu_attend_free(c->fused[i]);
    free(c->fused);
    kv_unfused_free(c->unfused);
    free(c);
}

size_t kv_step_caches_bytes(const struct kv_step_caches *c)
{
    size_t bytes = c->unfused ? kv_unfused_bytes(c->unfused) : 0;

    for (size_t i = 0; i < c->n_layers; i++)
        bytes += kv_gpu_attend_bytes(c->fused[i]);
    return bytes;
}

const char *kv_step_caches_name(const struct kv_step_caches *c)
{
    return c->unfused ? "unfused" : kv_gpu_attend_name(c->fused[0]);
}

/* ---- a step -------------------------------------------------------------- */

struct kv_step {
    struct kv_model *m;
    struct kv_pass pass;
    struct kv_step_caches *caches; /* caches of the step under way */
    void *x;
    struct kv_workspace logits;
    size_t n_vocab;
};

int kv_step_new(struct kv_step **out, const struct kv_config *c,
                const struct kv_device *device, size_t batch, size_t n,
                uint64_t seed, struct kv_err *e)
{
    const size_t values = batch * c->hidden, window = c->shape.slide_window;
    const struct kv_backend *b;
    struct kv_step *s;

    if (window && n > window)
        return kv_fail(e,
                       "a sliding window of %zu tokens is not implemented "
                       "here: %zu tokens are too many",
                       window, n);
    s = kv_alloc(1, sizeof(*s));
    s->n_vocab = c->n_vocab;
    if (kv_model_random(&s->m, c, device, seed, e))
        goto fail;
    b = kv_model_backend(s->m);
    s->pass =
        (struct kv_pass){.m = s->m, .n_windows = batch, .n = 1, .first = n - 1};
    if (b->alloc(&s->x, values * sizeof(float), e) ||
        b->load(&(struct kv_load){.to = s->x,
                                  .to_type = KV_TYPE_F32,
                                  .n = values,
                                  .seed = kv_tensor_seed(&s->m->weights,
                                                         c->shape.n_layers, 2),
                                  .scale = 1},
                1, e) ||
        kv_workspace_want(b, &s->logits, batch * c->n_vocab * sizeof(float),
                          e) ||
        kv_pass_init(&s->pass, e))
        goto fail;
    s->pass.x = s->x;
    *out = s;
    return 0;
fail:
    kv_step_free(s);
    return kv_fail_in(e, "the model's weights");
}

void kv_step_free(struct kv_step *s)
{
    if (!s)
        return;
    if (s->m) {
        kv_model_backend(s->m)->free(s->x);
        kv_workspace_clear(kv_model_backend(s->m), &s->logits);
    }
    kv_model_free(s->m);
    free(s);
}

static bool runs(const struct kv_step *s, enum kv_step_part part)
{
    return !(s->pass.skip >> part & 1);
}

static int attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct kv_step *s = arg;
    const struct kv_step_caches *c = s->caches;
    struct kv_gpu_attend *a;

    if (c->unfused) /* the newest token is in the cache already */
        return runs(s, KV_STEP_ATTENTION)
                   ? kv_unfused_attend(c->unfused, x->layer, x->q, KV_TYPE_F32,
                                       x->out, e)
                   : 0;
    a = c->fused[x->layer];
    kv_gpu_attend_use(a, x->q, x->out);
    if (runs(s, KV_STEP_ROPE) &&
        kv_gpu_put_newest(x->k, x->v, kv_gpu_attend_slots(a), x->n_windows,
                          x->shape->n_kv_heads, x->shape->head_dim, e))
        return -1;
    return runs(s, KV_STEP_ATTENTION) ? kv_gpu_attend_launch(a, e) : 0;
}

static int step(void *arg, struct kv_err *e)
{
    struct kv_step *s = arg;
    const struct kv_attention attention = {.run = attend, .arg = s};

    if (kv_pass_layers(&s->pass, &attention, e) ||
        kv_pass_norm_all(&s->pass, e))
        return -1;
    return runs(s, KV_STEP_HEAD)
               ? kv_pass_logits(s->m, s->x, s->pass.n_windows, s->logits.p, e)
               : 0;
}

int kv_step_time(struct kv_step *s, struct kv_step_caches *caches,
                 size_t warmup, size_t reps, struct kv_timing *whole,
                 double part[KV_STEP_PARTS], struct kv_err *e)
{
    double *t = kv_alloc(reps, sizeof(*t));
    int rc;

    s->caches = caches;
    s->pass.skip = 0;
    rc = kv_device_time(step, s, warmup, reps, t, e);
    if (!rc)
        *whole = kv_timing_of(t, reps);
    for (int i = 0; i < KV_STEP_PARTS && !rc; i++) {
        s->pass.skip = ~(1u << i);
        rc = kv_device_time(step, s, warmup, reps, t, e);
        part[i] = rc ? 0 : kv_quantile(t, reps, 0.5);
    }
    free(t);
    return rc ? -1 : 0;
}

int kv_step_run(struct kv_step *s, struct kv_step_caches *caches, float *logits,
                struct kv_err *e)
{
    s->caches = caches;
    s->pass.skip = 0;
    return step(s, e) ||
           kv_device_download(logits, s->logits.p,
                              s->pass.n_windows * s->n_vocab * sizeof(*logits),
                              e);
}
