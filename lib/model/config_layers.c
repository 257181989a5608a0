#include "lib/model/config_layers.h"

#include <string.h>

/* *window: the number of tokens that a sliding layer attends over; 0: no layer
 * slides. */
static int read_window(const struct kv_fields *f, const struct kv_arch *a,
                       size_t *window, struct kv_err *e)
{
    static const char name[] = "sliding_window";
    const bool has =
        a->layers.window &&
        (a->layers.given ? kv_fields_get(f, name) != NULL
                         : !json_is_null(json_object_get(f->json, name)));
    bool use = has && !a->layers.opted;

    *window = 0;
    if (!a->layers.window && kv_fields_get(f, name))
        return kv_fail(e, "%s: field %s is not null, but a %s has none",
                       f->path, name, a->name);
    if (kv_fields_flag_if(f, "use_sliding_window", &use, e))
        return -1;
    if (!a->layers.opted && use != has)
        return kv_fail(e,
                       "%s: field use_sliding_window is %s, but by its %s "
                       "this %s %s",
                       f->path, use ? "true" : "false", name, a->name,
                       has ? "slides" : "does not slide");
    if (!use || !has)
        return 0;
    *window = a->layers.window;
    return kv_fields_size_if(f, name, 1, 1 << 28, window, e);
}

/* Reads layer_types; *n_slide: the number of sliding layers. */
static int read_layer_types(const struct kv_fields *f, const json_t *list,
                            struct kv_config *c, size_t *n_slide,
                            struct kv_err *e)
{
    const size_t n_layers = c->shape.n_layers;
    size_t n = 0;

    if (json_array_size(list) != n_layers)
        return kv_fail(e,
                       "%s: field layer_types is not a list of %zu types, one "
                       "for each layer",
                       f->path, n_layers);
    for (size_t i = 0; i < n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        const bool slides = type && !strcmp(type, "sliding_attention");

        if (!slides && (!type || strcmp(type, "full_attention")))
            return kv_fail(e,
                           "%s: field layer_types: layer %zu is %s; only "
                           "full_attention and sliding_attention are known",
                           f->path, i, type ? type : "no name");
        n += slides;
        kv_layer_set(c->shape.slides, i, slides);
    }
    if (n != *n_slide && (!(c->arch->layers.pattern || c->arch->layers.mixed) ||
                          !c->shape.slide_window))
        return kv_fail(e,
                       "%s: by field layer_types %zu layers slide, but by "
                       "sliding_window and use_sliding_window %zu do",
                       f->path, n, *n_slide);
    *n_slide = n;
    return 0;
}

/* Reads the pattern of a class whose config may change it.  transformers writes
 * the name that begins with _ but does not read it; both names must agree,
 * unless layer_types is given. */
static int read_pattern(const struct kv_fields *f, const struct kv_config *c,
                        size_t *pattern, struct kv_err *e)
{
    static const char *const name[] = {"sliding_window_pattern",
                                       "_sliding_window_pattern"};
    const bool by_type = kv_fields_get(f, "layer_types");
    size_t noted;

    *pattern = c->arch->layers.pattern;
    for (size_t i = 0; i < 2; i++)
        if (kv_fields_get(f, name[i]) && !c->arch->layers.pattern_read)
            return kv_fail(e, "%s: field %s is not null, but a %s has none",
                           f->path, name[i], c->arch->name);
    if (!c->shape.slide_window || by_type)
        return 0;
    if (kv_fields_size_if(f, name[0], 1, KV_MAX_LAYERS, pattern, e))
        return -1;
    noted = *pattern;
    if (kv_fields_size_if(f, name[1], 1, KV_MAX_LAYERS, &noted, e))
        return -1;
    return noted == *pattern
               ? 0
               : kv_fail(e,
                         "%s: field %s is %zu, but a %s goes by %s, which is "
                         "%zu",
                         f->path, name[1], noted, c->arch->name, name[0],
                         *pattern);
}

/* Whether the layer slides, without layer_types. */
static bool layer_slides(const struct kv_config *c, size_t layer,
                         size_t pattern)
{
    return c->arch->layers.slides_still ? kv_shape_still(&c->shape, layer)
                                        : !pattern || (layer + 1) % pattern;
}

/* Sets the sliding layers; clears the window if no layer slides. */
static int read_sliding(const struct kv_fields *f, struct kv_config *c,
                        struct kv_err *e)
{
    /* If some layers have a mixer, config_mixer.c reads layer_types. */
    const json_t *list =
        c->arch->mixer ? NULL : kv_fields_get(f, "layer_types");
    size_t first = c->arch->layers.from, pattern, n_slide = 0;
    struct kv_shape *s = &c->shape;

    if (read_window(f, c->arch, &s->slide_window, e) ||
        read_pattern(f, c, &pattern, e) ||
        (first &&
         kv_fields_size_if(f, "max_window_layers", 0, 1 << 28, &first, e)))
        return -1;
    for (size_t i = first; i < s->n_layers && s->slide_window; i++) {
        const bool slides = layer_slides(c, i, pattern);

        kv_layer_set(s->slides, i, slides);
        n_slide += slides;
    }
    if (list && read_layer_types(f, list, c, &n_slide, e))
        return -1;
    if (c->arch->by_kind && !c->arch->altup &&
        kv_shape_slides(s, s->n_layers - 1)) {
        kv_layer_set(s->slides, s->n_layers - 1,
                     false); /* whatever the list says */
        n_slide--;
    }
    if (!n_slide)
        s->slide_window = 0;
    return 0;
}

/* Layers without RoPE: those with a 0 in no_rope_layers, or every
 * no_rope_layer_interval-th.
 */
static int read_still(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char name[] = "no_rope_layers";
    const json_t *list = kv_fields_get(f, name);
    const size_t n_layers = c->shape.n_layers;
    size_t every = c->arch->layers.still_every;

    if (!every)
        return 0;
    if (kv_fields_size_if(f, "no_rope_layer_interval", 1, KV_MAX_LAYERS, &every,
                          e))
        return -1;
    if (list && json_array_size(list) != n_layers)
        return kv_fail(e,
                       "%s: field %s is not a list of %zu numbers, one for "
                       "each layer",
                       f->path, name, n_layers);
    for (size_t i = 0; i < n_layers; i++) {
        const json_t *has = json_array_get(list, i);

        if (list && (!json_is_integer(has) || json_integer_value(has) < 0 ||
                     json_integer_value(has) > 1))
            return kv_fail(e, "%s: field %s: layer %zu is neither 0 nor 1",
                           f->path, name, i);
        kv_layer_set(c->shape.still, i,
                     list ? !json_integer_value(has) : (i + 1) % every == 0);
    }
    return 0;
}

/* *none: no layer has RoPE, since the class has RoPE only with
 * position_embedding_type rope. */
static int read_unless(const struct kv_fields *f, const struct kv_config *c,
                       bool *none, struct kv_err *e)
{
    static const char name[] = "position_embedding_type";
    const json_t *type = kv_fields_get(f, name);
    const char *is = json_string_value(type);

    *none = c->arch->layers.still_unless && (!is || strcmp(is, "rope") != 0);
    if (*none && type && (!is || strcmp(is, "nope") != 0))
        return kv_fail(e, "%s: field %s is %s; only rope and nope are known",
                       f->path, name, is ? is : "no name");
    return 0;
}

/* Marks the layers without RoPE: all of them (none), or those without a sliding
 * window. */
static void fill_still(const struct kv_fields *f, bool none,
                       struct kv_config *c)
{
    const bool turn_all =
        c->arch->layers.turns_alone &&
        json_is_null(json_object_get(f->json, "sliding_window"));

    for (size_t i = 0; i < c->shape.n_layers && none; i++)
        kv_layer_set(c->shape.still, i, true);
    for (size_t i = 0; i < c->shape.n_layers && c->arch->layers.still_full; i++)
        kv_layer_set(c->shape.still, i,
                     !turn_all && !kv_shape_slides(&c->shape, i));
}

int kv_config_layers(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e)
{
    bool none;

    if (read_still(f, c, e) || read_sliding(f, c, e) ||
        read_unless(f, c, &none, e))
        return -1;
    fill_still(f, none, c);
    return 0;
}
