#include "lib/model/weights_gpu.h"
#include "kernels/device.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

struct kv_weights_gpu {
    const struct kv_model *m;
    enum kv_gpu_type type; /* of every matrix */
    /* A layer: matrices as stored, vectors in f32, part p at at[p]. */
    size_t at[KV_PARTS], layer_bytes;
    size_t n_resident; /* layers that stay; the others share the last block */
    uint8_t **layer;   /* [n_layers or n_resident + 1] */
    size_t passing;    /* the layer that is in the last block; SIZE_MAX: none */
    float *norm;
    void *head;
};

static bool is_matrix(enum kv_part p)
{
    return p <= KV_P_DOWN;
}

static enum kv_gpu_type type_of(const struct kv_weight *w)
{
    return w->type == KV_W_F16    ? KV_GPU_F16
           : w->type == KV_W_BF16 ? KV_GPU_BF16
                                  : KV_GPU_F32;
}

/* Every matrix is of one type; offsets are those of layer 0. */
static int lay_out(struct kv_weights_gpu *g, struct kv_err *e)
{
    const struct kv_model_weights *w = &g->m->weights;

    g->type = type_of(w->head);
    for (size_t l = 0; l < g->m->config.shape.n_layers; l++)
        for (enum kv_part p = 0; is_matrix(p); p++)
            if (w->layer[l].part[p]->type != w->head->type)
                return kv_fail(e,
                               "%s is %s, but %s %s: on a GPU all matrices are "
                               "of one type",
                               w->layer[l].part[p]->name,
                               w->layer[l].part[p]->dtype, w->head->name,
                               w->head->dtype);
    for (enum kv_part p = 0; p < KV_PARTS; p++) {
        const struct kv_weight *part = w->layer[0].part[p];
        const size_t bytes = !part          ? 0
                             : is_matrix(p) ? part->bytes
                                            : part->n * sizeof(float);

        g->at[p] = g->layer_bytes;
        g->layer_bytes += (bytes + 255) / 256 * 256;
    }
    return 0;
}

static int put_floats(void *to, const struct kv_weight *w, struct kv_err *e)
{
    float *x = kv_alloc(w->n, sizeof(*x));
    int rc;

    kv_weight_dequantize(w, 0, w->n, x);
    rc = kv_device_upload(to, x, w->n * sizeof(*x), e);
    free(x);
    return rc;
}

static int put_layer(const struct kv_weights_gpu *g, size_t layer, uint8_t *to,
                     struct kv_err *e)
{
    for (enum kv_part p = 0; p < KV_PARTS; p++) {
        const struct kv_weight *w = g->m->weights.layer[layer].part[p];

        if (!w)
            continue;
        if (is_matrix(p) ? kv_device_upload(to + g->at[p], w->data, w->bytes, e)
                         : put_floats(to + g->at[p], w, e))
            return -1;
        kv_weight_release(w);
    }
    return 0;
}

/* How many layers stay. */
static int plan(struct kv_weights_gpu *g, size_t free, size_t beside,
                struct kv_err *e)
{
    const size_t n_layers = g->m->config.shape.n_layers;
    const size_t rest = g->m->weights.head->bytes + beside;

    if (free < rest + g->layer_bytes)
        return kv_fail(e,
                       "not enough device memory: %zu bytes needed (a layer, "
                       "the head, %zu for all else, twice --memory of it), "
                       "%zu free",
                       rest + g->layer_bytes, beside, free);
    g->n_resident = (free - rest) / g->layer_bytes;
    g->n_resident = g->n_resident < n_layers ? g->n_resident - 1 : n_layers;
    return 0;
}

static int put_weights(struct kv_weights_gpu *g, struct kv_err *e)
{
    const struct kv_model_weights *w = &g->m->weights;
    const size_t n_layers = g->m->config.shape.n_layers;
    const size_t n = g->n_resident < n_layers ? g->n_resident + 1 : n_layers;

    g->layer = kv_alloc(n, sizeof(*g->layer));
    for (size_t l = 0; l < n; l++)
        if (kv_device_alloc((void **)&g->layer[l], g->layer_bytes, e) ||
            (l < g->n_resident && put_layer(g, l, g->layer[l], e)))
            return -1;
    return kv_device_alloc((void **)&g->norm, w->norm->n * sizeof(float), e) ||
                   put_floats(g->norm, w->norm, e) ||
                   kv_device_alloc(&g->head, w->head->bytes, e) ||
                   kv_device_upload(g->head, w->head->data, w->head->bytes, e)
               ? -1
               : 0;
}

int kv_weights_gpu_new(struct kv_weights_gpu **out, const struct kv_model *m,
                       size_t free, size_t beside, struct kv_err *e)
{
    struct kv_weights_gpu *g = kv_alloc(1, sizeof(*g));

    g->m = m;
    g->passing = SIZE_MAX;
    if (lay_out(g, e) || plan(g, free, beside, e) || put_weights(g, e)) {
        kv_weights_gpu_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

void kv_weights_gpu_free(struct kv_weights_gpu *g)
{
    if (!g)
        return;
    for (size_t l = 0;
         g->layer && l <= g->n_resident && l < g->m->config.shape.n_layers; l++)
        kv_device_free(g->layer[l]);
    kv_device_free(g->norm);
    kv_device_free(g->head);
    free(g->layer);
    free(g);
}

enum kv_gpu_type kv_weights_gpu_type(const struct kv_weights_gpu *g)
{
    return g->type;
}

int kv_weights_gpu_load(struct kv_weights_gpu *g, size_t layer,
                        struct kv_err *e)
{
    if (layer < g->n_resident || layer == g->passing)
        return 0;
    g->passing = SIZE_MAX;
    if (put_layer(g, layer, g->layer[g->n_resident], e))
        return -1;
    g->passing = layer;
    return 0;
}

const void *kv_weights_gpu_part(const struct kv_weights_gpu *g, size_t layer,
                                enum kv_part part)
{
    return g->m->weights.layer[layer].part[part]
               ? g->layer[layer < g->n_resident ? layer : g->n_resident] +
                     g->at[part]
               : NULL;
}

const float *kv_weights_gpu_norm(const struct kv_weights_gpu *g)
{
    return g->norm;
}

const void *kv_weights_gpu_head(const struct kv_weights_gpu *g)
{
    return g->head;
}
