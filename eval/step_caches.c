#include "eval/step_caches.h"
#include "eval/unfused.h"
#include "kernels/cuda/step.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <stdlib.h>

/* ---- codes ----------------------------------------------------------------
 */

struct fused {
    struct kv_gpu_attend **layer; /* [n_layers]; those after 0 copies of it */
    size_t n_layers, values;      /* of all answers of a layer */
};

static float *fused_q(const void *self, size_t layer)
{
    const struct fused *f = self;

    return kv_gpu_attend_q(f->layer[layer]);
}

static const struct kv_gpu_slot *fused_slots(const void *self, size_t layer)
{
    const struct fused *f = self;

    return kv_gpu_attend_slots(f->layer[layer]);
}

static int fused_attend(const void *self, size_t layer, void *out,
                        struct kv_err *e)
{
    const struct fused *f = self;
    struct kv_gpu_attend *a = f->layer[layer];

    return kv_gpu_attend_launch(a, e) ||
           kv_gpu_narrow(kv_gpu_attend_out(a), f->values, out, e);
}

int kv_fused_caches_new(struct kv_step_cache *c, const struct kv_device *device,
                        const struct kv_tiles_job *jobs, size_t n_jobs,
                        size_t n_layers, enum kv_path path, struct kv_err *e)
{
    struct fused *f = kv_alloc(1, sizeof(*f));
    int rc;

    *f = (struct fused){.n_layers = n_layers,
                        .values = n_jobs * jobs->view.nq * jobs->view.n_heads *
                                  jobs->view.head_dim};
    f->layer = kv_alloc(n_layers, sizeof(struct kv_gpu_attend *));
    *c = (struct kv_step_cache){f, fused_q, fused_slots, fused_attend};
    rc = kv_gpu_attend_new(&f->layer[0], device, jobs, n_jobs, path, e);
    for (size_t i = 1; i < n_layers && !rc; i++)
        rc = kv_gpu_attend_copy(&f->layer[i], f->layer[0], e);
    if (rc)
        kv_fused_caches_clear(c);
    return rc;
}

void kv_fused_caches_clear(struct kv_step_cache *c)
{
    struct fused *f = c->self;

    if (!f)
        return;
    for (size_t i = f->n_layers; i--;) /* copies go before their original */
        kv_gpu_attend_free(f->layer[i]);
    free(f->layer);
    free(f);
    c->self = NULL;
}

size_t kv_fused_caches_bytes(const struct kv_step_cache *c)
{
    const struct fused *f = c->self;
    size_t bytes = 0;

    for (size_t i = 0; i < f->n_layers; i++)
        bytes += kv_gpu_attend_bytes(f->layer[i]);
    return bytes;
}

const char *kv_fused_caches_name(const struct kv_step_cache *c)
{
    const struct fused *f = c->self;

    return kv_gpu_attend_name(f->layer[0]);
}

/* ---- halves, unfused ------------------------------------------------------
 */

struct unfused {
    struct kv_unfused *attend;
    size_t n_layers, batch, n;
    void **kv; /* [n_layers] */
    float *q;
    struct kv_gpu_slot *slots;
};

static float *unfused_q(const void *self, size_t layer)
{
    const struct unfused *u = self;

    (void)layer;
    return u->q;
}

static const struct kv_gpu_slot *unfused_slots(const void *self, size_t layer)
{
    const struct unfused *u = self;

    (void)layer;
    return u->slots;
}

static int unfused_attend(const void *self, size_t layer, void *out,
                          struct kv_err *e)
{
    const struct unfused *u = self;

    return kv_unfused_attend(u->attend, u->kv[layer], u->q, out, e);
}

/* The newest token is in the cache already, wherever that is. */
static int make_slots(struct unfused *u, struct kv_err *e)
{
    struct kv_gpu_slot *slots = kv_alloc(u->batch, sizeof(*slots));
    const size_t bytes = u->batch * sizeof(*slots);
    int rc;

    for (size_t i = 0; i < u->batch; i++)
        slots[i] = (struct kv_gpu_slot){.position = (unsigned)(u->n - 1)};
    rc = kv_device_alloc((void **)&u->slots, bytes, e) ||
         kv_device_upload(u->slots, slots, bytes, e);
    free(slots);
    return rc;
}

int kv_unfused_caches_new(struct kv_step_cache *c, const struct kv_shape *shape,
                          size_t n_layers, size_t batch, size_t n,
                          uint64_t seed, struct kv_err *e)
{
    struct unfused *u = kv_alloc(1, sizeof(*u));
    const size_t queries = batch * shape->n_heads * shape->head_dim;
    int rc;

    *u = (struct unfused){.n_layers = n_layers, .batch = batch, .n = n};
    u->kv = kv_alloc(n_layers, sizeof(*u->kv));
    *c = (struct kv_step_cache){u, unfused_q, unfused_slots, unfused_attend};
    rc = kv_unfused_new(&u->attend, shape, batch, n, e) ||
         kv_device_alloc((void **)&u->q, queries * sizeof(float), e) ||
         make_slots(u, e);
    for (size_t i = 0; i < n_layers && !rc; i++) {
        const size_t bytes = kv_unfused_bytes(u->attend);

        rc = kv_device_alloc(&u->kv[i], bytes, e) ||
             kv_gpu_random(u->kv[i], bytes / 2, kv_mix(seed, i), 1, e);
    }
    if (rc)
        kv_unfused_caches_clear(c);
    return rc;
}

void kv_unfused_caches_clear(struct kv_step_cache *c)
{
    struct unfused *u = c->self;

    if (!u)
        return;
    for (size_t i = 0; i < u->n_layers; i++)
        kv_device_free(u->kv[i]);
    free(u->kv);
    kv_unfused_free(u->attend);
    kv_device_free(u->q);
    kv_device_free(u->slots);
    free(u);
    c->self = NULL;
}

size_t kv_unfused_caches_bytes(const struct kv_step_cache *c)
{
    const struct unfused *u = c->self;

    return u->n_layers * kv_unfused_bytes(u->attend);
}
