/* Gemma 3n and 4: head sizes by the kind of layer, and the last layers, which
 * have no keys and values of their own. */
#include "lib/model/config_parts.h"

#include <stdio.h>
#include <string.h>

static const char PER_LAYER[] = "per_layer_config";

/* The KV heads of one kind of layers. */
struct heads {
    size_t dim, n_kv;
};

static int check_heads(const struct kv_fields *f, const struct kv_config *c,
                       const struct heads *h, struct kv_err *e)
{
    return h->dim % 2 == 0 && c->shape.n_heads % h->n_kv == 0
               ? 0
               : kv_fail(e,
                         "%s: %zu KV heads of %zu channels in layers that do "
                         "not slide, expected a divisor of %zu heads and an "
                         "even number",
                         f->path, h->n_kv, h->dim, c->shape.n_heads);
}

/* Reads this layer's entry of the object; the entry may be absent. */
static int read_entry(const struct kv_fields *f, const json_t *all,
                      size_t layer, struct heads *h, struct kv_err *e)
{
    static const struct kv_field known[] = {
        {"head_dim", NULL}, {"num_key_value_heads", NULL}, {0}};
    char key[24], in[48];
    struct kv_fields one = {.path = f->path, .in = in};

    snprintf(key, sizeof(key), "%zu", layer);
    snprintf(in, sizeof(in), "%s.%s.", PER_LAYER, key);
    one.json = json_object_get(all, key);
    if (!one.json)
        return 0;
    return kv_fields_check(&one, known, e) ||
                   kv_fields_size_if(&one, "head_dim", 2, KV_MAX_HEAD_DIM,
                                     &h->dim, e) ||
                   kv_fields_size_if(&one, "num_key_value_heads", 1, 1 << 12,
                                     &h->n_kv, e)
               ? -1
               : 0;
}

/* Reads the object that transformers writes: head sizes of each layer, which
 * must be equal for all layers of a kind. */
static int read_per_layer(const struct kv_fields *f, const struct kv_config *c,
                          const json_t *all, struct heads *full,
                          struct kv_err *e)
{
    const struct heads base = *full;
    bool first = true;

    for (size_t i = 0; i < c->shape.n_layers; i++) {
        struct heads h = base;
        const bool slides = kv_shape_slides(&c->shape, i);
        const struct heads *want = slides ? &base : full;

        if (read_entry(f, all, i, &h, e))
            return -1;
        if (!slides && first)
            *full = h;
        first = first && slides;
        if (h.dim != want->dim || h.n_kv != want->n_kv)
            return kv_fail(e,
                           "%s: field %s: layer %zu has %zu KV heads of %zu "
                           "channels, another of its kind %zu of %zu, which "
                           "is not implemented",
                           f->path, PER_LAYER, i, h.n_kv, h.dim, want->n_kv,
                           want->dim);
    }
    return 0;
}

/* Gives the shape the heads of layers that do not slide. */
static int read_heads(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    struct kv_shape *s = &c->shape;
    const struct heads slide = {s->head_dim, s->n_kv_heads};
    const json_t *all = kv_fields_get(f, PER_LAYER);
    struct heads full = slide;

    if (kv_fields_flag_if(f, "attention_k_eq_v", &c->values_are_keys, e))
        return -1;
    if (!all) {
        full.dim = 512;
        if (kv_fields_size_if(f, "global_head_dim", 2, KV_MAX_HEAD_DIM,
                              &full.dim, e) ||
            (c->values_are_keys &&
             kv_fields_size_if(f, "num_global_key_value_heads", 1, 1 << 12,
                               &full.n_kv, e)))
            return -1;
    }
    if ((all && read_per_layer(f, c, all, &full, e)) ||
        check_heads(f, c, &full, e))
        return -1;
    s->head_dim = full.dim;
    s->n_kv_heads = full.n_kv;
    if (s->slide_window && (slide.dim != full.dim || slide.n_kv != full.n_kv)) {
        s->slide_dim = slide.dim;
        s->slide_kv_heads = slide.n_kv;
    }
    return 0;
}

/* Reduces the shape's n_layers to the layers with keys and values of their
 * own. */
static int read_shared(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    static const char name[] = "num_kv_shared_layers";
    struct kv_shape *s = &c->shape;
    const size_t n_layers = s->n_layers;
    bool twice = false;

    if (c->arch->altup && !kv_fields_has(f, name))
        s->n_shared = n_layers > 15 ? 15 : n_layers - 1;
    if (kv_fields_size_if(f, name, 0, n_layers - 1, &s->n_shared, e) ||
        kv_fields_flag_if(f, "use_double_wide_mlp", &twice, e))
        return -1;
    if (twice && s->n_shared && c->n_experts)
        return kv_fail(e,
                       "%s: field use_double_wide_mlp is true, which beside "
                       "experts is not implemented",
                       f->path);
    c->shared_times = twice ? 2 : 1;
    s->n_layers -= s->n_shared;
    for (size_t i = s->n_layers; i < n_layers; i++)
        if (kv_shape_slides(s, kv_shape_owner(s, i)) != kv_shape_slides(s, i))
            return kv_fail(e,
                           "%s: by field %s layer %zu shares keys and values "
                           "of a layer of its kind, but before there is none",
                           f->path, name, i);
    return 0;
}

static int read_embeddings(const struct kv_fields *f, struct kv_config *c,
                           struct kv_err *e)
{
    static const char name[] = "vocab_size_per_layer_input";
    static const char own[] = "hidden_size_per_layer_input";
    size_t n = 262144;

    c->layer_embed = kv_fields_has(f, own) ? 0 : 256; /* null means none */
    if (kv_fields_size_if(f, own, 0, 1 << 16, &c->layer_embed, e) ||
        kv_fields_size_if(f, name, 1, 1 << 24, &n, e))
        return -1;
    c->layer_vocab = n;
    return !c->layer_embed || n == c->n_vocab ||
                   (c->arch->altup && n < c->n_vocab)
               ? 0
               : kv_fail(e,
                         "%s: field %s is %zu, but vocab_size is %zu: a "
                         "difference is not implemented",
                         f->path, name, n, c->n_vocab);
}

int kv_config_kind(const struct kv_fields *f, struct kv_config *c,
                   struct kv_err *e)
{
    if (!c->arch->by_kind)
        return 0;
    if (!c->arch->altup && !kv_fields_get(f, "rope_parameters"))
        return kv_fail(e, "%s: field rope_parameters is missing", f->path);
    c->shape.attn_scale = 1;
    return (!c->arch->altup && read_heads(f, c, e)) || read_shared(f, c, e) ||
                   read_embeddings(f, c, e)
               ? -1
               : 0;
}
