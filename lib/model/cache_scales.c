#include "lib/model/cache_scales.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is(const char *name, const char *what)
{
    const char *dot = strrchr(name, '.');

    return dot && !strcmp(dot + 1, what);
}

bool kv_is_cache_scale(const char *name)
{
    return is(name, "k_scale") || is(name, "v_scale") || is(name, "kv_scale");
}

/* *layer: the layer, counted among layers with attention, whose tensor has this
 * name; false: there is none. */
static bool layer_of(const struct kv_config *c, const char *name, size_t *layer)
{
    const char *layers = c->arch->names->layers;
    const char *at = strstr(name, layers);
    char *end;
    size_t own;

    if (!at)
        return false;
    own = strtoul(at + strlen(layers), &end, 10);
    if (*end != '.' || own >= kv_config_layers_of(c) ||
        kv_shape_stateful(&c->shape, own))
        return false;
    *layer = own - kv_shape_states(&c->shape, own);
    return true;
}

int kv_cache_scales(const struct kv_weights *w, const struct kv_config *c,
                    float **scale, struct kv_err *e)
{
    for (size_t i = 0; i < w->n_weights; i++) {
        const struct kv_weight *t = w->weight[i];
        size_t layer;
        float x;

        if (!kv_is_cache_scale(t->name) || !layer_of(c, t->name, &layer) ||
            t->n != 1 || t->type > KV_STORED_BF16)
            continue;
        kv_weight_dequantize(t, 0, 1, &x);
        if (!isfinite(x) || !(x > 0))
            return kv_fail(e, "%s: tensor %s is %g, a scale above 0 expected",
                           t->path, t->name, (double)x);
        if (!*scale)
            *scale = kv_alloc(c->shape.n_layers * KV_SIDES, sizeof(**scale));
        for (int side = 0; side < KV_SIDES; side++)
            if (!is(t->name, side == KV_K ? "v_scale" : "k_scale"))
                (*scale)[layer * KV_SIDES + (size_t)side] = x;
    }
    return 0;
}
