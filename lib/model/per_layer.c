/* Embeddings of each layer's own (Gemma 3n and 4): after the MLP a layer adds
 * to the stream
 *
 *     norm(Wout (act(Wgate x) * e)),
 *     e = (norm(Win x0 / sqrt(hidden)) + sqrt(n) E[token]) / sqrt(2)
 *
 * with n values in e, x0 the stream before the first layer and E the layer's
 * embedding.  Gemma 4 then multiplies the stream by a factor; Gemma 3n adds the
 * term to the other streams instead (altup.c). */
#include "kernels/vecops/vecops.h"
#include "lib/model/pass.h"

#include <math.h>
#include <string.h>

int kv_pass_keep_embedded(struct kv_pass *p, struct kv_err *e)
{
    const size_t bytes = p->n_windows * p->n * p->hidden * sizeof(*p->x);
    struct kv_workspace *w = &p->m->workspace[KV_WORK_EMBEDDED];

    if (kv_workspace_want(p->b, w, bytes, e))
        return -1;
    p->embedded = w->p;
    memcpy(p->embedded, p->x, bytes);
    return p->m->config.n_streams ? kv_pass_spread(p, e) : 0;
}

/* to [rows][n] = e of the tile's tokens. */
static int embed(const struct kv_pass *p, const struct kv_tile *t, float *to,
                 struct kv_err *e)
{
    const struct kv_config *c = &p->m->config;
    const size_t n = c->layer_embed, layers = kv_config_layers_of(c);
    const struct kv_norm norm = {
        .weight = kv_layers_vector(p->m->layers, KV_P_LAYER_IN_NORM),
        .n = n,
        .eps = c->norm_eps};
    float *own = to + t->rows * n;
    const void *a;

    if (p->b->to_input(p->b, p->embedded + t->at * p->hidden,
                       t->rows * p->hidden, t->input, &a, e) ||
        kv_pass_multiply(p, t, KV_P_LAYER_IN, a, p->hidden, to, n, false, e))
        return -1;
    kv_row_scale(to, t->rows * n, 1 / sqrtf((float)p->hidden));
    if (p->b->norm(&norm, to, t->rows, KV_TYPE_F32, to, e))
        return -1;
    for (size_t i = 0; i < t->rows; i++) {
        const size_t is = (size_t)p->tokens[t->at + i];
        const size_t token = is < c->layer_vocab ? is : 0;

        kv_weight_dequantize(p->m->weights.layer_embed,
                             (token * layers + p->loaded) * n, n, own);
        kv_row_scale(own, n, sqrtf((float)n));
        kv_row_add(to + i * n, own, n);
    }
    kv_row_scale(to, t->rows * n, sqrtf(0.5F));
    return 0;
}

/* *out [rows][hidden], in t->wide: the term above for x [rows][hidden]. */
static int make(const struct kv_pass *p, const struct kv_tile *t,
                const float *x, float **out, struct kv_err *e)
{
    const size_t n = p->m->config.layer_embed, all = t->rows * n;
    float *own = t->wide;
    float *gate = own + all, *y = gate + all;
    const void *a;

    *out = y;
    if (embed(p, t, own, e) ||
        p->b->to_input(p->b, x, t->rows * p->hidden, t->input, &a, e) ||
        kv_pass_multiply(p, t, KV_P_LAYER_GATE, a, p->hidden, gate, n, false,
                         e))
        return -1;
    kv_activate(p->m->config.act, gate, all, gate);
    for (size_t i = 0; i < all; i++)
        gate[i] *= own[i];
    return p->b->to_input(p->b, gate, all, t->input, &a, e) ||
                   kv_pass_multiply(p, t, KV_P_LAYER_OUT, a, n, y, p->hidden,
                                    false, e) ||
                   kv_pass_norm(
                       p, kv_layers_vector(p->m->layers, KV_P_LAYER_OUT_NORM),
                       NULL, y, t->rows, KV_TYPE_F32, y, e)
               ? -1
               : 0;
}

static int add_to_others(const struct kv_pass *p, const struct kv_tile *t,
                         struct kv_err *e)
{
    const float *scaled;
    float *y;

    if (kv_pass_correct(p, t, &scaled, e) || make(p, t, scaled, &y, e))
        return -1;
    kv_pass_add_to_others(p, t, y);
    return 0;
}

int kv_pass_per_layer(const struct kv_pass *p, const struct kv_tile *t,
                      struct kv_err *e)
{
    float *x = p->x + t->at * p->hidden, *y;

    if (p->m->config.n_streams)
        return add_to_others(p, t, e);
    if (p->m->config.layer_embed &&
        (make(p, t, x, &y, e) || p->b->add(x, y, 1, t->rows * p->hidden, e)))
        return -1;
    kv_row_scale(x, t->rows * p->hidden,
                 *kv_layers_vector(p->m->layers, KV_P_LAYER_SCALE));
    return 0;
}
