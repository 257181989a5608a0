#include "eval/step_model.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/step.h"
#include "kernels/device.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>

const char *const kv_step_names[KV_STEP_PARTS] = {[KV_STEP_NORM] = "norm",
                                                  [KV_STEP_QKV] = "qkv",
                                                  [KV_STEP_ROPE] = "rope",
                                                  [KV_STEP_OUT] = "out",
                                                  [KV_STEP_ATTENTION] =
                                                      "attention",
                                                  [KV_STEP_MLP] = "mlp",
                                                  [KV_STEP_HEAD] = "head"};

/* Of one layer, [rows][columns] halves. */
enum { QKV, OUT, GATE_UP, DOWN, MATRICES };

struct matrix {
    size_t rows, columns;
};

struct kv_step_model {
    struct kv_config config;
    size_t batch;
    struct matrix matrix[MATRICES];
    void **weight; /* [n_layers][MATRICES] */
    void *norm, *head;
    float *inv_freq;
    /* x: the residual stream; y, z: what the parts hand on. */
    void *x, *normed, *qkv, *attended, *gate_up, *gated, *logits;
};

static size_t q_values(const struct kv_config *c)
{
    return c->shape.n_heads * c->shape.head_dim;
}

static size_t qkv_values(const struct kv_config *c)
{
    return q_values(c) + 2 * c->shape.n_kv_heads * c->shape.head_dim;
}

/* n random halves of about unit variance after `columns` of them are summed. */
static int random_halves(void **p, size_t n, size_t columns, uint64_t seed,
                         struct kv_err *e)
{
    const float scale = sqrtf(3 / (float)columns);

    return kv_device_alloc(p, n * sizeof(uint16_t), e) ||
           kv_gpu_random(*p, n, seed, scale, e);
}

static int make_weights(struct kv_step_model *d, uint64_t seed,
                        struct kv_err *e)
{
    const struct kv_config *c = &d->config;
    const size_t n = c->shape.n_layers * MATRICES;

    d->weight = kv_alloc(n, sizeof(*d->weight));
    for (size_t i = 0; i < n; i++) {
        const struct matrix m = d->matrix[i % MATRICES];

        if (random_halves(&d->weight[i], m.rows * m.columns, m.columns,
                          kv_mix(seed, i), e))
            return -1;
    }
    return random_halves(&d->norm, c->hidden, 3, kv_mix(seed, n), e) ||
           random_halves(&d->head, c->n_vocab * c->hidden, c->hidden,
                         kv_mix(seed, n + 1), e) ||
           random_halves(&d->x, d->batch * c->hidden, 3, kv_mix(seed, n + 2),
                         e);
}

static int make_room(struct kv_step_model *d, struct kv_err *e)
{
    const struct kv_config *c = &d->config;
    const size_t row = d->batch * sizeof(uint16_t);
    const size_t freqs = c->shape.head_dim / 2 * sizeof(float);

    return kv_device_alloc(&d->normed, row * c->hidden, e) ||
           kv_device_alloc(&d->qkv, row * qkv_values(c), e) ||
           kv_device_alloc(&d->attended, row * q_values(c), e) ||
           kv_device_alloc(&d->gate_up, row * 2 * c->inter, e) ||
           kv_device_alloc(&d->gated, row * c->inter, e) ||
           kv_device_alloc(&d->logits, row * c->n_vocab, e) ||
           kv_device_alloc((void **)&d->inv_freq, freqs, e) ||
           kv_device_upload(d->inv_freq, c->shape.inv_freq, freqs, e);
}

int kv_step_model_new(struct kv_step_model **out, const struct kv_config *c,
                      size_t batch, uint64_t seed, struct kv_err *e)
{
    struct kv_step_model *d = kv_alloc(1, sizeof(*d));

    *d =
        (struct kv_step_model){.config = *c,
                               .batch = batch,
                               .matrix = {[QKV] = {qkv_values(c), c->hidden},
                                          [OUT] = {c->hidden, q_values(c)},
                                          [GATE_UP] = {2 * c->inter, c->hidden},
                                          [DOWN] = {c->hidden, c->inter}}};
    if (make_weights(d, seed, e) || make_room(d, e)) {
        kv_step_model_free(d);
        return kv_fail_in(e, "the model's weights");
    }
    *out = d;
    return 0;
}

void kv_step_model_free(struct kv_step_model *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->config.shape.n_layers * MATRICES; i++)
        kv_device_free(d->weight[i]);
    free(d->weight);
    kv_device_free(d->norm);
    kv_device_free(d->head);
    kv_device_free(d->inv_freq);
    kv_device_free(d->x);
    kv_device_free(d->normed);
    kv_device_free(d->qkv);
    kv_device_free(d->attended);
    kv_device_free(d->gate_up);
    kv_device_free(d->gated);
    kv_device_free(d->logits);
    free(d);
}

/* to [batch][rows] = from [batch][columns] weight^T. */
static int multiply(const struct kv_step_model *d, const void *from,
                    const void *weight, struct matrix m, void *to, int add,
                    struct kv_err *e)
{
    const struct kv_gpu_product p = {.m = d->batch,
                                     .n = m.rows,
                                     .k = m.columns,
                                     .a = from,
                                     .b = weight,
                                     .c = to,
                                     .a_row = m.columns,
                                     .b_row = m.columns,
                                     .c_row = m.rows,
                                     .add = add};

    return kv_gpu_multiply(&p, e);
}

/* A run of the step, or of some of its parts. */
struct run {
    const struct kv_step_model *d;
    const struct kv_step_cache *cache;
    unsigned parts; /* bit 1 << part */
};

static int has(const struct run *r, enum kv_step_part part)
{
    return r->parts >> part & 1;
}

static int norm(const struct run *r, struct kv_err *e)
{
    const struct kv_step_model *d = r->d;

    return has(r, KV_STEP_NORM)
               ? kv_gpu_norm(d->x, d->norm, d->batch, d->config.hidden,
                             d->config.norm_eps, d->normed, e)
               : 0;
}

static int attention(const struct run *r, size_t layer, struct kv_err *e)
{
    const struct kv_step_model *d = r->d;
    const struct kv_shape *s = &d->config.shape;
    void *const *weight = d->weight + layer * MATRICES;

    if (has(r, KV_STEP_QKV) &&
        multiply(d, d->normed, weight[QKV], d->matrix[QKV], d->qkv, 0, e))
        return -1;
    if (has(r, KV_STEP_ROPE) &&
        kv_gpu_rope(d->qkv, r->cache->slots(r->cache->self, layer), d->inv_freq,
                    d->batch, s->n_heads, s->n_kv_heads, s->head_dim,
                    r->cache->q(r->cache->self, layer), e))
        return -1;
    if (has(r, KV_STEP_ATTENTION) &&
        r->cache->attend(r->cache->self, layer, d->attended, e))
        return -1;
    return has(r, KV_STEP_OUT) ? multiply(d, d->attended, weight[OUT],
                                          d->matrix[OUT], d->x, 1, e)
                               : 0;
}

static int mlp(const struct run *r, size_t layer, struct kv_err *e)
{
    const struct kv_step_model *d = r->d;
    void *const *weight = d->weight + layer * MATRICES;

    if (!has(r, KV_STEP_MLP))
        return 0;
    return multiply(d, d->normed, weight[GATE_UP], d->matrix[GATE_UP],
                    d->gate_up, 0, e) ||
           kv_gpu_gate(d->gate_up, d->batch, d->config.inter, d->gated, e) ||
           multiply(d, d->gated, weight[DOWN], d->matrix[DOWN], d->x, 1, e);
}

static int step(void *arg, struct kv_err *e)
{
    const struct run *r = arg;
    const struct kv_config *c = &r->d->config;
    const struct matrix head = {c->n_vocab, c->hidden};

    for (size_t i = 0; i < c->shape.n_layers; i++)
        if (norm(r, e) || attention(r, i, e) || norm(r, e) || mlp(r, i, e))
            return -1;
    if (norm(r, e))
        return -1;
    return has(r, KV_STEP_HEAD) ? multiply(r->d, r->d->normed, r->d->head, head,
                                           r->d->logits, 0, e)
                                : 0;
}

int kv_step_model_time(struct kv_step_model *d,
                       const struct kv_step_cache *cache, size_t warmup,
                       size_t reps, struct kv_timing *whole,
                       double part[KV_STEP_PARTS], struct kv_err *e)
{
    struct run r = {d, cache, ~0u};
    double *s = kv_alloc(reps, sizeof(*s));
    int rc = kv_device_time(step, &r, warmup, reps, s, e);

    if (!rc)
        *whole = (struct kv_timing){.p10 = kv_quantile(s, reps, 0.1),
                                    .p50 = kv_quantile(s, reps, 0.5),
                                    .p90 = kv_quantile(s, reps, 0.9)};
    for (int i = 0; i < KV_STEP_PARTS && !rc; i++) {
        r.parts = 1u << i;
        rc = kv_device_time(step, &r, warmup, reps, s, e);
        part[i] = rc ? 0 : kv_quantile(s, reps, 0.5);
    }
    free(s);
    return rc ? -1 : 0;
}

int kv_step_model_run(struct kv_step_model *d,
                      const struct kv_step_cache *cache, uint16_t *logits,
                      struct kv_err *e)
{
    struct run r = {d, cache, ~0u};

    return step(&r, e) ||
           kv_device_download(logits, d->logits,
                              d->batch * d->config.n_vocab * sizeof(*logits),
                              e);
}
