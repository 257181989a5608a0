#include "lib/model/config_parts.h"

#include <string.h>

static int read_dense_inter(const struct kv_fields *f, struct kv_config *c,
                            struct kv_err *e)
{
    const struct kv_fields plain = {
        .path = f->path, .in = f->in, .json = f->json};

    return kv_fields_size(&plain, "intermediate_size", 1, 1 << 22,
                          &c->dense_inter, e);
}

/* Layers with an MLP of intermediate_size instead of experts: the layers in
 * mlp_only_layers, and those whose number is no multiple of
 * decoder_sparse_step. */
static int read_dense(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char name[] = "mlp_only_layers";
    const json_t *list = kv_fields_get(f, name);
    const size_t n = c->shape.n_layers;
    size_t step = 1;

    if (kv_fields_size_if(f, "decoder_sparse_step", 1, KV_MAX_LAYERS, &step, e))
        return -1;
    if (list && !json_is_array(list))
        return kv_fail(e, "%s: field %s is not a list of layers", f->path,
                       name);
    for (size_t i = 0; i < n; i++)
        if ((i + 1) % step)
            kv_layer_set(c->dense, i, true);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        const json_int_t at = json_integer_value(layer);

        if (!json_is_integer(layer) || at < 0 || at >= (json_int_t)n)
            return kv_fail(e, "%s: field %s: entry %zu is no layer below %zu",
                           f->path, name, i, n);
        kv_layer_set(c->dense, (size_t)at, true);
    }
    if (step == 1 && !json_array_size(list))
        return 0;
    return read_dense_inter(f, c, e);
}

/* The first first_k_dense_replace layers have an MLP. */
static int read_first(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    size_t n = c->arch->first_dense;

    if (kv_fields_size_if(f, "first_k_dense_replace", 0, c->shape.n_layers, &n,
                          e))
        return -1;
    for (size_t i = 0; i < n && i < c->shape.n_layers; i++)
        kv_layer_set(c->dense, i, true);
    return n ? read_dense_inter(f, c, e) : 0;
}

/* Dense layers by mlp_layer_types; without that field the first layer is
 * dense. */
static int read_types(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char name[] = "mlp_layer_types";
    const json_t *list = kv_fields_get(f, name);
    const size_t n = c->shape.n_layers;

    if (list && json_array_size(list) != n)
        return kv_fail(e,
                       "%s: field %s is not a list of %zu types, one for each "
                       "layer",
                       f->path, name, n);
    if (!list)
        kv_layer_set(c->dense, 0, true);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));

        if (!type || (strcmp(type, "dense") && strcmp(type, "sparse")))
            return kv_fail(e,
                           "%s: field %s: layer %zu is neither dense nor "
                           "sparse",
                           f->path, name, i);
        if (!strcmp(type, "dense"))
            kv_layer_set(c->dense, i, true);
    }
    return read_dense_inter(f, c, e);
}

/* Experts are in layers [start, end] whose number the interval divides; an end
 * of -1 is the last layer. */
static int read_moe_layers(const struct kv_fields *f, struct kv_config *c,
                           struct kv_err *e)
{
    static const char last[] = "moe_layer_end_index";
    size_t start = 1, end = c->shape.n_layers - 1, interval = 1;

    if (kv_fields_size_if(f, "moe_layer_start_index", 0, KV_MAX_LAYERS, &start,
                          e) ||
        (json_integer_value(kv_fields_get(f, last)) != -1 &&
         kv_fields_size_if(f, last, 0, KV_MAX_LAYERS, &end, e)) ||
        kv_fields_size_if(f, "moe_layer_interval", 1, KV_MAX_LAYERS, &interval,
                          e))
        return -1;
    for (size_t i = 0; i < c->shape.n_layers; i++)
        if (i < start || i > end || (i + 1) % interval)
            kv_layer_set(c->dense, i, true);
    return read_dense_inter(f, c, e);
}

/* Reads the size of the expert that all tokens use. */
static int read_shared(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    size_t n = c->arch->n_shared;

    if (c->arch->shared)
        return kv_fields_size(f, "shared_expert_intermediate_size", 1, 1 << 22,
                              &c->shared_inter, e);
    if (!c->arch->shared_whole)
        return 0; /* no shared expert, or its size is read already */
    if (kv_fields_size_if(f, "n_shared_experts", 0, 1 << 10, &n, e))
        return -1;
    c->shared_inter = n * c->inter;
    return 0;
}

static int read_share_scale(const struct kv_fields *f, struct kv_config *c,
                            struct kv_err *e)
{
    static const char name[] = "routed_scaling_factor";
    double scale = c->arch->share_scale > 0 ? c->arch->share_scale : 1;

    if (kv_fields_get(f, name) && kv_fields_real(f, name, &scale, e))
        return -1;
    c->share_scale = (float)scale;
    return 0;
}

/* Reads a number; x: the default if the field is absent.  Fails on null. */
static int read_real(const struct kv_fields *f, const char *name, double x,
                     float *out, struct kv_err *e)
{
    if (kv_fields_has(f, name) && !kv_fields_get(f, name))
        return kv_fail(e, "%s: field %s is null; a number was expected",
                       f->path, name);
    if (kv_fields_get(f, name) && kv_fields_real(f, name, &x, e))
        return -1;
    *out = (float)x;
    return 0;
}

/* otherwise: the default; 0: the field must be there. */
static int read_count(const struct kv_fields *f, const char *name, size_t max,
                      size_t otherwise, size_t *out, struct kv_err *e)
{
    *out = otherwise;
    return otherwise ? kv_fields_size_if(f, name, 1, max, out, e)
                     : kv_fields_size(f, name, 1, max, out, e);
}

/* Reads the groups of experts; a token's experts come only from the best
 * groups. */
static int read_groups(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    static const char method[] = "topk_method";
    const char *name = json_string_value(kv_fields_get(f, method));
    const struct kv_arch *a = c->arch;
    const size_t least = a->sigmoid ? 2 : 1; /* experts whose ranks make a
                                              * group's */
    size_t group;

    c->group_pairs = a->sigmoid;
    if (a->topk_method && kv_fields_get(f, method) &&
        (!name ||
         (strcmp(name, "greedy") && strcmp(name, "group_limited_greedy"))))
        return kv_fail(e,
                       "%s: field %s is neither greedy nor "
                       "group_limited_greedy",
                       f->path, method);
    if (a->topk_method ? !name || !strcmp(name, "greedy") : !a->n_groups)
        return 0;
    if (read_count(f, "n_group", c->n_experts, a->n_groups, &c->n_groups, e) ||
        read_count(f, "topk_group", c->n_groups, a->used_groups,
                   &c->used_groups, e))
        return -1;
    group = c->n_experts / c->n_groups;
    if (c->n_experts % c->n_groups || c->used_groups > c->n_groups ||
        group < least)
        return kv_fail(e,
                       "%s: %zu experts are not in %zu groups (n_group) of at "
                       "least %zu, of which %zu are used (topk_group)",
                       f->path, c->n_experts, c->n_groups, least,
                       c->used_groups);
    return c->n_used <= c->used_groups * group
               ? 0
               : kv_fail(e,
                         "%s: %zu groups of %zu experts hold fewer than the "
                         "%zu that a token has (num_experts_per_tok)",
                         f->path, c->used_groups, group, c->n_used);
}

enum { MAX_EXPERTS = 1 << 12 };

/* Reads the shared expert, which is the layer's MLP if there are no other
 * experts. */
static int read_alone(const struct kv_fields *f, struct kv_config *c,
                      bool *alone, struct kv_err *e)
{
    size_t n = 0, inter = 0;

    if (kv_fields_size(f, "num_experts", 0, MAX_EXPERTS, &n, e) ||
        kv_fields_size(f, "shared_intermediate_size", 1, 1 << 22, &inter, e))
        return -1;
    *alone = !n;
    if (*alone)
        c->inter = inter;
    else
        c->shared_inter = inter;
    return 0;
}

/* Reads the experts beside an MLP; that MLP is treated as the expert that all
 * tokens use. */
static int read_beside(const struct kv_fields *f, struct kv_config *c,
                       bool *none, struct kv_err *e)
{
    bool has = false;

    if (kv_fields_flag_if(f, "enable_moe_block", &has, e))
        return -1;
    *none = !has;
    c->shared_inter = has ? c->inter : 0;
    return has ? kv_fields_size(f, "moe_intermediate_size", 1, 1 << 22,
                                &c->inter, e)
               : 0;
}

/* Reads the experts of a model whose layers are each attention, a mixer, an MLP
 * or experts. */
static int read_halves(const struct kv_fields *f, struct kv_config *c,
                       bool *none, struct kv_err *e)
{
    *none = true;
    for (size_t i = 0; i < c->shape.n_layers; i++)
        *none = *none && kv_layer_bit(c->dense, i);
    if (*none)
        return 0;
    c->dense_inter = c->inter;
    return kv_fields_size(f, "moe_intermediate_size", 1, 1 << 22, &c->inter,
                          e) ||
                   kv_fields_size(f, "moe_shared_expert_intermediate_size", 1,
                                  1 << 22, &c->shared_inter, e)
               ? -1
               : 0;
}

/* Reads the jitter, which sets how far below the largest logit other logits
 * count. */
static int read_jitter(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    static const char name[] = "router_jitter_noise";
    const json_t *j = kv_fields_get(f, name);

    if (j && json_is_number(j) && json_number_value(j) == 0)
        return 0;
    return read_real(f, name, 0.01, &c->jitter, e);
}

/* Reads the number of experts that a token uses. */
static int read_used(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e)
{
    static const char name[] = "num_experts_per_tok";
    const json_t *list = kv_fields_get(f, name);
    const json_int_t n = json_integer_value(json_array_get(list, 0));
    bool even = json_array_size(list) == c->shape.n_layers;

    if (!c->arch->used_listed || !json_is_array(list))
        return kv_fields_size(f, name, 1, c->n_experts, &c->n_used, e);
    for (size_t i = 0; i < json_array_size(list); i++)
        even = even && json_integer_value(json_array_get(list, i)) == n;
    if (!even || n < 1 || n > (json_int_t)c->n_experts)
        return kv_fail(e,
                       "%s: field %s is not a list with the same number from 1 "
                       "to %zu for each of %zu layers",
                       f->path, kv_fields_name(f, name), c->n_experts,
                       c->shape.n_layers);
    c->n_used = (size_t)n;
    return 0;
}

int kv_config_experts(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    bool alone = false;

    if ((c->arch->shared_alone && read_alone(f, c, &alone, e)) ||
        (c->arch->halves && read_halves(f, c, &alone, e)) ||
        (c->arch->moe_beside && read_beside(f, c, &alone, e)))
        return -1;
    if (!c->arch->experts || alone)
        return 0;
    c->norm_shares = c->arch->norm_shares;
    if ((c->arch->mixed && read_dense(f, c, e)) ||
        ((c->arch->first_dense || c->arch->first_read) &&
         read_first(f, c, e)) ||
        (c->arch->mlp_types && read_types(f, c, e)) ||
        (c->arch->moe_layers && read_moe_layers(f, c, e)) ||
        read_shared(f, c, e) || read_share_scale(f, c, e))
        return -1;
    if (c->arch->sparse_mixer && read_jitter(f, c, e))
        return -1;
    if (c->arch->clamped &&
        (read_real(f, "swiglu_limit", 7, &c->act_limit, e) ||
         read_real(f, "swiglu_alpha", 1.702, &c->act_alpha, e)))
        return -1;
    return kv_fields_size(f, "num_experts", 1, MAX_EXPERTS, &c->n_experts, e) ||
                   read_used(f, c, e) ||
                   kv_fields_flag_if(f, "norm_topk_prob", &c->norm_shares, e) ||
                   read_groups(f, c, e)
               ? -1
               : 0;
}
