#include "lib/model/tensor_spares.h"
#include "lib/base/alloc.h"
#include "lib/model/cache_scales.h"

#include <stdlib.h>
#include <string.h>

/* Whether the tensor belongs to a part that sees no text. */
static bool is_of_tower(const char *name)
{
    static const char *const parts[] = {
        "vision_tower.", "visual.",       "multi_modal_projector.",
        "audio_tower.",  "embed_vision.", "embed_audio.",
        "mm_projector."};

    if (!strncmp(name, "model.", strlen("model.")))
        name += strlen("model.");
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (!strncmp(name, parts[i], strlen(parts[i])))
            return true;
    return false;
}

/* Whether the tensor belongs to a layer, after the last or beside all, that
 * predicts tokens after the next. */
static bool is_of_more_layers(const char *name, const struct kv_config *c)
{
    const struct kv_tensor_names *names = c->arch->names;
    const size_t n = strlen(names->prefix), m = strlen(names->layers);

    return !strncmp(name, "mtp.", 4) ||
           !strncmp(name, "model.mtp_layers.", 17) ||
           (!strncmp(name, names->prefix, n) &&
            !strncmp(name + n, names->layers, m) &&
            strtoul(name + n + m, NULL, 10) >= kv_config_layers_of(c));
}

/* Whether the tensor makes keys or values of a layer that shares another
 * layer's. */
static bool is_shared(const char *name, const struct kv_config *c)
{
    static const char *const parts[] = {"k_proj.", "v_proj.", "k_norm.",
                                        "v_norm."};
    const char *layer = strstr(name, c->arch->names->layers), *part;

    if (!c->shape.n_shared || !layer)
        return false;
    layer += strlen(c->arch->names->layers);
    part = strstr(layer, ".self_attn.");
    for (size_t i = 0; part && i < sizeof(parts) / sizeof(*parts); i++)
        if (kv_config_shares(c, strtoul(layer, NULL, 10)) &&
            !strncmp(part + strlen(".self_attn."), parts[i], strlen(parts[i])))
            return true;
    return false;
}

/* Whether the tensor is rightly not used. */
static bool is_spare(const char *name, const struct kv_config *c)
{
    /* RoPE's frequencies, and attention masks */
    static const char *const spare[] = {".rotary_emb.inv_freq", ".attn.bias",
                                        ".attn.masked_bias", ".attention.bias",
                                        ".attention.masked_bias"};
    const size_t n = strlen(name);

    if (c->tied && !strcmp(name, c->arch->names->head))
        return true;
    if ((c->wrapped && is_of_tower(name)) ||
        (c->arch->more_layers && is_of_more_layers(name, c)) ||
        is_shared(name, c))
        return true;
    for (size_t i = 0; i < sizeof(spare) / sizeof(*spare); i++) {
        const size_t m = strlen(spare[i]);

        if (n > m && !strcmp(name + n - m, spare[i]))
            return true;
    }
    return false;
}

/* Whether the tensor only accompanies a packed matrix: a scale of activations,
 * or a tensor that was already read. */
static bool is_beside_packed(const char *name)
{
    static const char *const parts[] = {
        ".input_scale",   ".input_global_scale",  ".output_scale",
        ".weight_shape",  ".weight_global_scale", ".weight_scale_2",
        ".weight_format", ".bitsandbytes__nf4",   ".bitsandbytes__fp4"};
    const char *dot = strrchr(name, '.');

    for (size_t i = 0; dot && i < sizeof(parts) / sizeof(*parts); i++)
        if (!strcmp(dot, parts[i]))
            return true;
    return false;
}

/* Whether the tensor is a bias of zeros, which some quantizers add and which
 * changes nothing. */
static bool is_zero_bias(const struct kv_weight *t)
{
    const size_t n = strlen(t->name);

    return n > 5 && !strcmp(t->name + n - 5, ".bias") && t->bytes &&
           !t->data[0] && !memcmp(t->data, t->data + 1, t->bytes - 1);
}

static int by_address(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return (*x > *y) - (*x < *y);
}

/* The number of a part's pieces: one for each expert, or 1. */
static size_t n_pieces(const struct kv_weight *t)
{
    size_t n = 0;

    for (; t; t = t->next)
        n++;
    return n;
}

/* The names of all bound tensors, sorted by address. */
static size_t list_bound(const struct kv_model_weights *m, size_t n_layers,
                         const char ***names)
{
    const struct kv_weight *const top[] = {
        m->embed,       m->norm,       m->norm_bias,
        m->positions,   m->embed_norm, m->embed_norm_bias,
        m->head,        m->head_bias,  m->project_in,
        m->project_out, m->layer_embed};
    const size_t n_top = sizeof(top) / sizeof(*top);
    size_t room = n_top + 2 * KV_MAX_STREAMS, n = 0;

    for (size_t i = 0; i < n_layers * KV_PARTS; i++)
        room += n_pieces(m->layer[i / KV_PARTS].part[i % KV_PARTS]);
    *names = kv_alloc(room, sizeof(**names));
    for (size_t i = 0; i < n_top; i++)
        if (top[i])
            (*names)[n++] = top[i]->name;
    for (size_t i = 0; i < KV_MAX_STREAMS && m->spread[i]; i++) {
        (*names)[n++] = m->spread[i]->name;
        (*names)[n++] = m->gather[i]->name;
    }
    for (size_t i = 0; i < n_layers * KV_PARTS; i++)
        for (const struct kv_weight *t =
                 m->layer[i / KV_PARTS].part[i % KV_PARTS];
             t; t = t->next)
            (*names)[n++] = t->name;
    qsort(*names, n, sizeof(**names), by_address);
    return n;
}

int kv_tensor_spares(const struct kv_model_weights *m,
                     const struct kv_config *c, const struct kv_weights *w,
                     struct kv_err *e)
{
    const char **bound;
    const size_t n = list_bound(m, kv_config_layers_of(c), &bound);
    int rc = 0;

    for (size_t i = 0; i < w->n_weights && !rc; i++) {
        const struct kv_weight *t = w->weight[i];

        if (!bsearch(&t->name, bound, n, sizeof(*bound), by_address) &&
            !is_spare(t->name, c) && !kv_is_cache_scale(t->name) &&
            !kv_weights_is_part(w, t) &&
            !(w->unpacked && (is_zero_bias(t) || is_beside_packed(t->name))))
            rc = kv_fail(e,
                         "%s: tensor %s has no place in a %s of this "
                         "configuration",
                         t->path, t->name, c->arch->name);
    }
    free(bound);
    return rc;
}
