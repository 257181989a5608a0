#include "tools/kvquant_decoded.h"
#include "lib/arrays/arrays.h"
#include "lib/base/alloc.h"
#include "lib/codec.h"
#include "lib/dump.h"
#include "lib/rope_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvquant_decoded {
    struct kv_dump *from;
    struct kv_dump_writer *dump;  /* .h5 */
    struct kv_arrays_out *arrays; /* .npz, .safetensors: K and V of each
                                   * layer */
};

/* ---- .h5 ----------------------------------------------------------------- */

static int copy_tokens(struct kvquant_decoded *d, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d->from);
    const size_t n = info->n_windows * info->ctx;
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));
    const int rc =
        kv_dump_tokens(d->from, 0, n, tokens, e) ||
                kv_dump_put_tokens(d->dump, 0, info->n_windows, tokens, e)
            ? -1
            : 0;

    free(tokens);
    return rc;
}

static int copy_queries(struct kvquant_decoded *d, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d->from);
    const size_t n = info->ctx, row = kv_shape_q_most(&info->shape);
    const size_t n_layers = info->last_layer - info->first_layer + 1;
    float *q = kv_alloc(n, row * sizeof(*q));
    int rc = 0;

    for (size_t i = 0; i < n_layers * info->n_windows && !rc; i++) {
        const size_t layer = info->first_layer + i / info->n_windows;
        const size_t window = i % info->n_windows;

        rc = kv_dump_read(d->from, layer, KV_T_Q, window * n, n, q, e) ||
             kv_dump_put(d->dump, layer, KV_T_Q, window, 1, q, e);
    }
    free(q);
    return rc;
}

static int create_dump(struct kvquant_decoded *d, const char *path,
                       const struct kv_spec *spec, struct kv_err *e)
{
    struct kv_dump_info info = *kv_dump_info(d->from);
    const size_t named = strlen(info.model);

    info.have[KV_T_K_GRADIENT] = info.have[KV_T_V_GRADIENT] = false;
    if (info.shape.latent) /* values are a part of the keys */
        info.have[KV_T_V] = false;
    info.dtype = KV_F32;
    snprintf(info.model + named, sizeof(info.model) - named, " as %s",
             spec->text);
    if (kv_dump_create(&d->dump, path, &info, e) || copy_tokens(d, e) ||
        (info.have[KV_T_Q] && copy_queries(d, e)))
        return -1;
    return 0;
}

static int put_dump(struct kvquant_decoded *d, const struct kv_codec *c,
                    size_t window, float *x, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d->from);
    const size_t n = info->ctx, heads = c->shape.n_kv_heads;
    const enum kv_tensor stored = kv_dump_tensor(c);
    const enum kv_tensor other = c->pre_rope ? KV_T_K : KV_T_K_PRE;

    if (info->have[stored] &&
        kv_dump_put(d->dump, c->layer, stored, window, 1, x, e))
        return -1;
    if (c->side == KV_V || !info->have[other])
        return 0;
    if (c->pre_rope)
        kv_rope(&c->shape, x, n, heads, 0);
    else
        kv_rope_back(&c->shape, x, n, heads, 0);
    return kv_dump_put(d->dump, c->layer, other, window, 1, x, e);
}

/* ---- .npz, .safetensors -------------------------------------------------- */

static int create_arrays(struct kvquant_decoded *d, const char *path,
                         const struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d->from);
    const size_t sides = (size_t)kv_shape_sides(&info->shape);
    const size_t n = sides * (info->last_layer - info->first_layer + 1);
    const char *const about[][2] = {{"spec", spec->text},
                                    {"model", info->model},
                                    {"text", info->text},
                                    {NULL, NULL}};
    struct kv_array *list = kv_alloc(n, sizeof(*list));
    int rc;

    for (size_t i = 0; i < n; i++) {
        const size_t layer = info->first_layer + i / sides;

        list[i] = (struct kv_array){
            .n_dims = 4,
            .dims = {info->n_windows, kv_shape_kv_heads(&info->shape, layer),
                     info->ctx, kv_shape_dim(&info->shape, layer)}};
        snprintf(list[i].name, sizeof(list[i].name), "layers.%zu.%s", layer,
                 i % sides ? "values" : "keys");
    }
    rc = kv_arrays_create(&d->arrays, path, list, n, about, e);
    free(list);
    return rc;
}

/* Writes a window, transposed from [tokens][heads][channels] to
 * [heads][tokens][channels]. */
static int put_arrays(struct kvquant_decoded *d, const struct kv_codec *c,
                      size_t window, float *x, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d->from);
    const size_t n = info->ctx, heads = c->shape.n_kv_heads;
    const size_t dim = c->shape.head_dim, values = n * heads * dim;
    const size_t sides = (size_t)kv_shape_sides(&info->shape);
    float *y = kv_alloc(values, sizeof(*y));
    int rc;

    if (c->side == KV_K)
        kv_codec_rotate(c, x, n);
    for (size_t i = 0; i < values; i++) {
        const size_t t = i / (heads * dim), h = i / dim % heads, j = i % dim;

        y[(h * n + t) * dim + j] = x[i];
    }
    rc = kv_arrays_put(d->arrays,
                       sides * (c->layer - info->first_layer) + c->side,
                       window * values, values, y, e);
    free(y);
    return rc;
}

/* ---- both ---------------------------------------------------------------- */

int kvquant_decoded_create(struct kvquant_decoded **out, const char *path,
                           struct kv_dump *dump, const struct kv_spec *spec,
                           struct kv_err *e)
{
    struct kvquant_decoded *d;
    enum kv_arrays_kind kind;

    if (kv_arrays_kind(&kind, path, e))
        return -1;
    d = kv_alloc(1, sizeof(*d));
    d->from = dump;
    if (kind == KV_HDF5 ? create_dump(d, path, spec, e)
                        : create_arrays(d, path, spec, e)) {
        kvquant_decoded_discard(d);
        return -1;
    }
    *out = d;
    return 0;
}

static int put(void *arg, const struct kv_codec *c, size_t window, float *x,
               struct kv_err *e)
{
    struct kvquant_decoded *d = arg;

    return d->dump ? put_dump(d, c, window, x, e)
                   : put_arrays(d, c, window, x, e);
}

struct kv_decoded_sink kvquant_decoded_sink(struct kvquant_decoded *d)
{
    return (struct kv_decoded_sink){put, d};
}

int kvquant_decoded_commit(struct kvquant_decoded *d, struct kv_err *e)
{
    const int rc =
        d->dump ? kv_dump_commit(d->dump, e) : kv_arrays_commit(d->arrays, e);

    free(d);
    return rc;
}

void kvquant_decoded_discard(struct kvquant_decoded *d)
{
    if (!d)
        return;
    kv_dump_discard(d->dump);
    kv_arrays_discard(d->arrays);
    free(d);
}
