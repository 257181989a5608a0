#include "tools/kvdump_about.h"
#include "lib/base/file.h"
#include "lib/model/tensor_map.h"
#include "tools/columns_about.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {"model",
                                      "model_hash",
                                      "arch",
                                      "weights",
                                      "n_layers",
                                      "n_heads",
                                      "n_kv_heads",
                                      "head_dim",
                                      "hidden",
                                      "n_vocab",
                                      "n_ctx",
                                      "weight_bytes",
                                      "kv_bytes_per_token",
                                      "ctx",
                                      "batch",
                                      "kv_bytes",
                                      "kv_share",
                                      "layer_weight_bytes",
                                      "layer_kv_bytes",
                                      "even_ctx",
                                      "n_states",
                                      "state_bytes",
                                      "shared_layers",
                                      "slide_kv_heads",
                                      "slide_head_dim",
                                      NULL};

void kv_footprint_about(void)
{
    kv_columns_about("kvdump --about", columns);
}

/* The fp16 bytes of one token in one layer's cache. */
static size_t token_bytes(const struct kv_shape *s, size_t layer)
{
    return (size_t)kv_shape_sides(s) * sizeof(uint16_t) *
           kv_shape_kv_heads(s, layer) * kv_shape_dim(s, layer);
}

/* The fp16 bytes of one token in the caches of all layers. */
static size_t all_token_bytes(const struct kv_shape *s)
{
    return (size_t)kv_shape_sides(s) * sizeof(uint16_t) * kv_shape_kv_all(s);
}

/* The bytes of one sequence of ctx tokens; a sliding layer holds only its
 * window. */
static size_t cache_bytes(const struct kv_shape *s, size_t ctx)
{
    size_t bytes = 0;

    for (size_t i = 0; i < s->n_layers; i++) {
        const struct kv_shape layer = kv_shape_layer(s, i);

        bytes += kv_shape_seen(&layer, ctx) * token_bytes(s, i);
    }
    return bytes;
}

/* even_ctx: beyond this many tokens, one sequence's cache in a layer has more
 * bytes than the layer's matrices. */
static void put_layer(struct kv_results *r, const struct kv_footprint *f)
{
    const size_t token = token_bytes(&f->info.shape, 0);

    if (!f->layer_bytes)
        return;
    kv_results_size(r, "layer_weight_bytes", f->layer_bytes);
    kv_results_size(r, "layer_kv_bytes", f->batch * f->ctx * token);
    kv_results_size(r, "even_ctx", f->layer_bytes / token);
}

static int put_row(struct kv_results *r, const struct kv_footprint *f,
                   struct kv_err *e)
{
    const struct kv_model_info *info = &f->info;
    const struct kv_shape *s = &info->shape;
    const size_t per_token = all_token_bytes(s);
    const size_t kv_bytes = f->batch * cache_bytes(s, f->ctx);

    kv_results_text(r, "model", info->name);
    kv_results_text(r, "model_hash", info->hash);
    kv_results_text(r, "arch", info->arch);
    kv_results_text(r, "weights", info->weights);
    kv_results_size(r, "n_layers", s->n_layers);
    kv_results_size(r, "n_heads", s->n_heads);
    kv_results_size(r, "n_kv_heads", s->n_kv_heads);
    kv_results_size(r, "head_dim", s->head_dim);
    kv_results_size(r, "hidden", info->hidden);
    kv_results_size(r, "n_vocab", info->n_vocab);
    kv_results_size(r, "n_ctx", info->n_ctx);
    kv_results_size(r, "weight_bytes", info->weight_bytes);
    kv_results_size(r, "kv_bytes_per_token", per_token);
    kv_results_size(r, "ctx", f->ctx);
    kv_results_size(r, "batch", f->batch);
    kv_results_size(r, "kv_bytes", kv_bytes);
    kv_results_real(r, "kv_share",
                    (double)kv_bytes /
                        ((double)kv_bytes + (double)info->weight_bytes));
    put_layer(r, f);
    kv_results_size(r, "n_states", s->n_states);
    kv_results_size(r, "state_bytes", f->batch * kv_shape_state_bytes(s));
    kv_results_size(r, "shared_layers", s->n_shared);
    kv_results_size(r, "slide_kv_heads",
                    s->slide_dim ? s->slide_kv_heads : s->n_kv_heads);
    kv_results_size(r, "slide_head_dim",
                    s->slide_dim ? s->slide_dim : s->head_dim);
    return kv_results_row(r, e);
}

static int countable(const struct kv_footprint *f, struct kv_err *e)
{
    const struct kv_shape *s = &f->info.shape;
    size_t bytes;

    if (__builtin_mul_overflow(f->ctx, all_token_bytes(s), &bytes) ||
        __builtin_add_overflow(bytes, kv_shape_state_bytes(s), &bytes) ||
        __builtin_mul_overflow(f->batch, bytes, &bytes))
        return kv_fail(e,
                       "--batch %zu: so many caches are more bytes than can "
                       "be counted",
                       f->batch);
    return 0;
}

int kv_footprint_print(const struct kv_footprint *f, size_t n,
                       const struct kv_common *common, struct kv_err *e)
{
    static const char *const key[] = {
        "model",        "model_hash", "arch",     "weights", "n_layers",
        "n_heads",      "n_kv_heads", "head_dim", "hidden",  "n_vocab",
        "weight_bytes", "ctx",        "batch",    NULL};
    const struct kv_results_keys keys = {
        .key = key, .full = "kv_bytes", .at_end = true};
    struct kv_results_form form = kv_common_form(common);
    struct kv_results *r;

    form.keys = common->append ? &keys : NULL;
    for (size_t i = 0; i < n; i++)
        if (countable(&f[i], e))
            return -1;
    if (kv_results_open(&r, &form, columns, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (put_row(r, &f[i], e)) {
            kv_results_discard(r);
            return -1;
        }
    return kv_results_close(r, e);
}

/* ---- from a shape alone ---------------------------------------------------
 */

static size_t halves(const struct kv_weight *w)
{
    return w ? sizeof(uint16_t) * w->n : 0;
}

/* The size over all experts, if the tensor belongs to one expert. */
static size_t part_bytes(const struct kv_config *c,
                         const struct kv_model_weights *w, size_t layer,
                         size_t part)
{
    const bool expert = kv_config_has_experts(c, layer) && part >= KV_P_GATE &&
                        part <= KV_P_DOWN;

    if ((part == KV_P_V && c->values_are_keys &&
         !kv_shape_slides(&c->shape, layer)) ||
        (part == KV_P_LAYER_IN_NORM && layer)) /* tensors that layers share */
        return 0;
    return halves(w->layer[layer].part[part]) * (expert ? c->n_experts : 1);
}

/* Adds up the bytes of the model's tensors, as halves. */
static void weigh(struct kv_footprint *f, const struct kv_config *c)
{
    const size_t first = kv_shape_own(&c->shape, 0);
    struct kv_model_weights w;
    size_t *all = &f->info.weight_bytes;

    kv_tensor_map_random(&w, c, 0);
    *all = halves(w.norm) + (c->tied ? 1 : 2) * halves(w.embed) +
           sizeof(uint16_t) * c->n_places * c->hidden +
           sizeof(uint16_t) * c->layer_vocab * kv_config_layers_of(c) *
               c->layer_embed +
           sizeof(uint16_t) * 2 * (c->n_streams ? c->n_streams - 1 : 0) *
               c->hidden * c->hidden;
    for (size_t i = 0; i < kv_config_layers_of(c); i++)
        for (size_t p = 0; p < KV_PARTS; p++) {
            *all += part_bytes(c, &w, i, p);
            if (i == first && p <= KV_P_DOWN)
                f->layer_bytes += part_bytes(c, &w, i, p);
        }
    kv_tensor_unmap(&w);
}

void kvdump_model_name(const char *path, char *name, size_t capacity)
{
    char *full = realpath(path, NULL), *folder = NULL;
    const char *last;

    folder = kv_path_folder(full ? full : path, &last);
    if (!strcmp(last, "config.json")) {
        const char *slash = strrchr(folder, '/');

        last = slash && slash[1] ? slash + 1 : folder;
    }
    snprintf(name, capacity, "%s", last);
    free(folder);
    free(full);
}

static struct kv_footprint of_config(const struct kv_config *c,
                                     const char *path, size_t ctx, size_t batch)
{
    struct kv_footprint f = {.ctx = ctx ? ctx : c->n_ctx, .batch = batch};
    struct kv_model_info *i = &f.info;

    kvdump_model_name(path, i->name, sizeof(i->name));
    snprintf(i->arch, sizeof(i->arch), "%s", c->arch->name);
    snprintf(i->weights, sizeof(i->weights), "f16");
    i->n_vocab = c->n_vocab;
    i->hidden = c->hidden;
    i->n_ctx = c->n_ctx;
    i->shape = c->shape;
    weigh(&f, c);
    return f;
}

int kv_footprint_of_shape(const char *path, size_t ctx, size_t batch,
                          const struct kv_common *common, struct kv_err *e)
{
    struct kv_config c;

    if (kv_model_config(&c, path, e))
        return -1;

    const size_t own = c.shape.n_kv_heads;
    const size_t heads[] = {own, c.shape.n_heads, 1};
    struct kv_footprint f[3];
    size_t n = 0;

    for (size_t i = 0; i < 3; i++) {
        if (i && (heads[i] == own || c.shape.latent || c.arch->by_kind))
            continue;
        c.shape.n_kv_heads = heads[i];
        f[n++] = of_config(&c, path, ctx, batch);
    }
    return kv_footprint_print(f, n, common, e);
}
