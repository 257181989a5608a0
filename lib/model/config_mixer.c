#include "lib/model/config_parts.h"

#include <string.h>

/* The name in layer_types of layers without attention. */
static const char *const names[] = {[KV_MIXER_CONV] = "conv",
                                    [KV_MIXER_DELTA] = "linear_attention",
                                    [KV_MIXER_MAMBA] = "mamba"};

static const char TYPES[] = "layer_types", LISTED[] = "full_attn_idxs",
                  EVERY[] = "full_attention_interval";

/* One bit for each layer: whether it lacks attention. */
struct stateful {
    uint64_t bits[KV_MAX_LAYERS / 64];
};

/* Whether layer_types names a mixer here; transformers 5 renamed Mamba's
 * layers. */
static bool is_mixer(const struct kv_config *c, const char *type)
{
    return !strcmp(type, names[c->arch->mixer]) ||
           (c->arch->mixer == KV_MIXER_MAMBA &&
            !strcmp(type, "linear_attention"));
}

static bool is_attention(const struct kv_config *c, const char *type)
{
    return !strcmp(type, "full_attention") ||
           (c->arch->mixer == KV_MIXER_MAMBA && !strcmp(type, "attention"));
}

static int read_types(const struct kv_fields *f, const struct kv_config *c,
                      struct stateful *s, struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, TYPES);
    const char *name = names[c->arch->mixer];

    if (json_array_size(list) != c->shape.n_layers)
        return kv_fail(e,
                       "%s: field %s%s is not a list of %zu types, one for "
                       "each layer",
                       f->path, f->in, TYPES, c->shape.n_layers);
    for (size_t i = 0; i < c->shape.n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));

        if (type && is_mixer(c, type))
            kv_layer_set(s->bits, i, true);
        else if (!type || !is_attention(c, type))
            return kv_fail(e,
                           "%s: field %s%s: layer %zu is %s; only "
                           "full_attention and %s are known",
                           f->path, f->in, TYPES, i, type ? type : "no name",
                           name);
    }
    return 0;
}

/* All layers except those in the list full_attn_idxs lack attention. */
static int read_listed(const struct kv_fields *f, const struct kv_config *c,
                       struct stateful *s, struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, LISTED);
    const size_t n = c->shape.n_layers;

    for (size_t i = 0; i < n; i++)
        kv_layer_set(s->bits, i, true);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        const json_int_t at = json_integer_value(layer);

        if (!json_is_integer(layer) || at < 0 || at >= (json_int_t)n)
            return kv_fail(e, "%s: field %s: entry %zu is no layer below %zu",
                           f->path, LISTED, i, n);
        kv_layer_set(s->bits, (size_t)at, false);
    }
    return 0;
}

/* All layers except every n-th lack attention. */
static int read_every(const struct kv_fields *f, const struct kv_config *c,
                      struct stateful *s, struct kv_err *e)
{
    size_t every = c->arch->attended_every;

    if (kv_fields_size_if(f, EVERY, 1, KV_MAX_LAYERS, &every, e))
        return -1;
    for (size_t i = 0; i < c->shape.n_layers && every; i++)
        if ((i + 1) % every)
            kv_layer_set(s->bits, i, true);
    return 0;
}

/* Reads layer_types or the older field; if both are there, they must agree. */
static int read_which(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    const char *old = kv_fields_get(f, LISTED)  ? LISTED
                      : kv_fields_get(f, EVERY) ? EVERY
                                                : NULL;
    struct stateful by_type = {{0}}, by_old = {{0}};
    const bool typed = kv_fields_get(f, TYPES);

    if (!typed && c->arch->mixer_listed)
        return kv_fail(e, "%s: field %s%s is missing", f->path, f->in, TYPES);
    if ((typed && read_types(f, c, &by_type, e)) ||
        (old == LISTED ? read_listed(f, c, &by_old, e)
                       : read_every(f, c, &by_old, e)))
        return -1;
    if (typed && old && memcmp(&by_type, &by_old, sizeof(by_type)) != 0)
        return kv_fail(e, "%s: fields %s%s and %s%s contradict each other",
                       f->path, f->in, TYPES, f->in, old);
    memcpy(c->shape.stateful, typed ? by_type.bits : by_old.bits,
           sizeof(by_type));
    return 0;
}

/* LFM2's MLP is narrower than intermediate_size, unless the config turns this
 * off. */
static int read_width(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char times[] = "block_ffn_dim_multiplier";
    double by = 1;
    size_t step = 256;
    bool adjusted = true;

    if (kv_fields_flag_if(f, "block_auto_adjust_ff_dim", &adjusted, e) ||
        (kv_fields_get(f, times) && kv_fields_real(f, times, &by, e)) ||
        kv_fields_size_if(f, "block_multiple_of", 1, 1 << 20, &step, e))
        return -1;
    if (!adjusted)
        return 0;
    c->inter = 2 * c->inter / 3;
    if (kv_fields_get(f, times) || !kv_fields_has(f, times))
        c->inter = ((size_t)(by * (double)c->inter) + step - 1) / step * step;
    return c->inter ? 0
                    : kv_fail(e, "%s: by %s an MLP is 0 wide", f->path, times);
}

static int read_conv(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e)
{
    struct kv_mixer_sizes *m = &c->mixer;

    m->kernel = 3;
    m->conv = m->out = c->hidden;
    m->in = 3 * c->hidden;
    return kv_fields_size_if(f, "conv_L_cache", 1, 1 << 10, &m->kernel, e) ||
                   (!c->arch->experts && read_width(f, c, e))
               ? -1
               : 0;
}

static int read_delta(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    enum { MAX_HEADS = 1 << 12 };
    struct kv_mixer_sizes *m = &c->mixer;

    c->mix_by_head = c->arch->mix_by_head;
    *m = (struct kv_mixer_sizes){
        .kernel = 4, .k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128};
    if (kv_fields_size_if(f, "linear_conv_kernel_dim", 1, 1 << 10, &m->kernel,
                          e) ||
        kv_fields_size_if(f, "linear_num_key_heads", 1, MAX_HEADS, &m->k_heads,
                          e) ||
        kv_fields_size_if(f, "linear_num_value_heads", 1, MAX_HEADS,
                          &m->v_heads, e) ||
        kv_fields_size_if(f, "linear_key_head_dim", 1, KV_MAX_HEAD_DIM,
                          &m->k_dim, e) ||
        kv_fields_size_if(f, "linear_value_head_dim", 1, KV_MAX_HEAD_DIM,
                          &m->v_dim, e))
        return -1;
    if (m->v_heads % m->k_heads)
        return kv_fail(e,
                       "%s: linear_num_value_heads %zu is no multiple of "
                       "linear_num_key_heads %zu",
                       f->path, m->v_heads, m->k_heads);
    m->out = m->v_heads * m->v_dim;
    m->conv = 2 * m->k_heads * m->k_dim + m->out;
    m->in = m->conv + 2 * m->v_heads + m->out;
    return 0;
}

/* mamba_d_head may be "auto". */
static int read_mamba_heads(const struct kv_fields *f, struct kv_config *c,
                            struct kv_err *e)
{
    static const char name[] = "mamba_d_head";
    const char *text = json_string_value(kv_fields_get(f, name));
    struct kv_mixer_sizes *m = &c->mixer;
    size_t expand = 2;

    if (c->arch->halves) {
        m->v_dim = 64;
        if (kv_fields_size_if(f, name, 1, 1 << 12, &m->v_dim, e))
            return -1;
        m->out = m->v_heads * m->v_dim;
        return 0;
    }
    if (kv_fields_size_if(f, "mamba_expand", 1, 1 << 8, &expand, e))
        return -1;
    m->out = expand * c->hidden;
    m->v_dim = m->out / m->v_heads;
    if (!(text && !strcmp(text, "auto")) &&
        kv_fields_size_if(f, name, 1, 1 << 12, &m->v_dim, e))
        return -1;
    return m->v_heads * m->v_dim == m->out
               ? 0
               : kv_fail(e,
                         "%s: %zu heads of Mamba (mamba_n_heads) of %zu "
                         "channels (mamba_d_head) are not %zu (mamba_expand "
                         "times hidden_size)",
                         f->path, m->v_heads, m->v_dim, m->out);
}

static int read_mamba(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    enum { MAX_HEADS = 1 << 12, MAX_STATE = 1 << 12 };
    struct kv_mixer_sizes *m = &c->mixer;

    const bool halves = c->arch->halves;
    double floor = 0.001;

    *m = (struct kv_mixer_sizes){.kernel = 4,
                                 .k_heads = halves ? 8 : 1,
                                 .v_heads = 128,
                                 .k_dim = halves ? 128 : 256};
    c->mixer_bias = true;
    if (halves && kv_fields_get(f, "time_step_min") &&
        kv_fields_real(f, "time_step_min", &floor, e))
        return -1;
    c->mixer_floor = halves ? (float)floor : 0;
    if (kv_fields_size_if(f, "mamba_d_conv", 1, 1 << 10, &m->kernel, e) ||
        kv_fields_size_if(f, "mamba_n_groups", 1, MAX_HEADS, &m->k_heads, e) ||
        kv_fields_size_if(f, "mamba_n_heads", 1, MAX_HEADS, &m->v_heads, e) ||
        kv_fields_size_if(f, "mamba_d_state", 1, MAX_STATE, &m->k_dim, e) ||
        kv_fields_flag_if(f, "mamba_conv_bias", &c->mixer_bias, e) ||
        read_mamba_heads(f, c, e))
        return -1;
    if (m->v_heads % m->k_heads)
        return kv_fail(e, "%s: %s %zu is no multiple of %s %zu", f->path,
                       kv_fields_name(f, "mamba_n_heads"), m->v_heads,
                       kv_fields_name(f, "mamba_n_groups"), m->k_heads);
    m->conv = m->out + 2 * m->k_heads * m->k_dim;
    m->in = m->out + m->conv + m->v_heads;
    return 0;
}

/* Reduces the shape's n_layers to the layers with attention. */
static int count(const struct kv_fields *f, struct kv_config *c,
                 struct kv_err *e)
{
    const struct kv_mixer_sizes *m = &c->mixer;
    struct kv_shape *s = &c->shape;

    s->state_floats =
        (m->kernel - 1) * m->conv + m->v_heads * m->k_dim * m->v_dim;
    s->n_states = kv_shape_states(s, s->n_layers) - s->n_bare;
    if (s->n_states + s->n_bare == s->n_layers)
        return kv_fail(e,
                       "%s: none of %zu layers has attention: there is no KV "
                       "cache",
                       f->path, s->n_layers);
    s->n_layers -= s->n_states + s->n_bare;
    return 0;
}

int kv_config_mixer(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e)
{
    switch (c->arch->mixer) {
    case KV_MIXER_CONV:
        if (read_conv(f, c, e))
            return -1;
        break;
    case KV_MIXER_DELTA:
        if (read_delta(f, c, e))
            return -1;
        break;
    case KV_MIXER_MAMBA:
        if (read_mamba(f, c, e))
            return -1;
        break;
    case KV_MIXER_NONE:
        return 0;
    }
    return (!c->arch->halves && read_which(f, c, e)) || count(f, c, e) ? -1 : 0;
}
