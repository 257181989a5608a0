/* Passes a layer's queries, keys and values to attention, and its output
 * back. */
#include "lib/base/alloc.h"
#include "lib/model/pass.h"

#include <math.h>

struct kv_tokens kv_qkv_tokens(const struct kv_qkv *x, size_t window,
                               size_t first, size_t n)
{
    const struct kv_tokens all = {
        .q = x->q, .k = x->k, .k_pre = x->k_pre, .v = x->v};

    return kv_tokens_part(&all, x->shape, window * x->n + first, n);
}

struct kv_attend_job kv_qkv_job(const struct kv_qkv *x, size_t first,
                                size_t end)
{
    const size_t row = x->shape->n_heads * x->shape->head_dim;
    struct kv_attend_job job = {
        .view = kv_shape_view(x->shape, x->n, first, end - first),
        .q = x->q + first * row,
        .out = x->out + first * row,
        .q_rows = x->n,
        .k = {.unquantized = x->k},
        .v = {.unquantized = x->v},
    };

    job.view.n_seqs = x->n_windows;
    return job;
}

int kv_attend_exact(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct kv_attend_job job = kv_qkv_job(x, 0, x->n);

    (void)arg;
    return x->backend->attend(x->backend, &job, NULL, 0, e);
}

static int bring(const struct kv_qkv *x, float **to, const float *from,
                 size_t n, struct kv_err *e)
{
    const size_t bytes = n * sizeof(**to);

    if (!*to)
        *to = kv_alloc(bytes, 1);
    return from ? x->backend->download(*to, from, bytes, e) : 0;
}

int kv_qkv_to_host(const struct kv_qkv *x, struct kv_qkv *to, struct kv_err *e)
{
    const size_t head = x->n_windows * x->n * x->shape->head_dim;
    const size_t q = x->shape->n_heads * head, kv = x->shape->n_kv_heads * head;
    struct kv_host_layer *h;

    *to = *x;
    if (x->backend->on_host)
        return 0;
    if (!*x->host) {
        *x->host = kv_alloc(1, sizeof(**x->host));
        (*x->host)->cpu = kv_backend_cpu(KV_TYPE_F32);
    }
    h = *x->host;
    if (bring(x, &h->q, x->q, q, e) || bring(x, &h->k, x->k, kv, e) ||
        bring(x, &h->k_pre, x->k_pre, kv, e) || bring(x, &h->v, x->v, kv, e) ||
        bring(x, &h->out, NULL, q, e) ||
        bring(x, &h->rope, x->rope, x->n * 2 * x->shape->n_rot, e))
        return -1;
    to->backend = h->cpu;
    to->q = h->q;
    to->k = h->k;
    to->k_pre = h->k_pre;
    to->v = h->v;
    to->out = h->out;
    to->rope = h->rope;
    return 0;
}

int kv_qkv_from_host(const struct kv_qkv *x, const struct kv_qkv *host,
                     struct kv_err *e)
{
    const struct kv_shape *s = x->shape;

    return x->backend->on_host
               ? 0
               : x->backend->upload(x->out, host->out,
                                    x->n_windows * x->n * s->n_heads *
                                        s->head_dim * sizeof(*x->out),
                                    e);
}

void kv_pass_gate_out(const struct kv_pass *p, const struct kv_tile *t)
{
    const float *gate = p->out_gate + t->at * p->q_dim;
    float *out = p->out + t->at * p->q_dim;

    for (size_t i = 0; i < t->rows * p->q_dim; i++)
        out[i] *= 1 / (1 + expf(-gate[i]));
}
