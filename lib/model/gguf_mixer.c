/* GGUF keys of models with layers without attention. */
#include "lib/model/gguf_maker.h"

#include <stdio.h>

/* Sets the layers' types: a layer without KV heads has no attention.  If each
 * layer is only one of mixer, attention and MLP, a layer with an MLP has
 * neither of the others. */
static int set_types(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const bool halves = k->arch->halves;
    const bool experts = kv_gguf_maker_int(k, "num_experts") > 0;
    const char *mixer = k->arch->mixer == KV_MIXER_CONV ? "conv" : "mamba";
    const int64_t n = kv_gguf_maker_int(k, "num_hidden_layers");
    const struct kv_gguf_value *heads, *wide;
    json_t *types;

    if (kv_gguf_maker_list(k, "attention.head_count_kv", &heads, e) ||
        kv_gguf_maker_list(k, "feed_forward_length", &wide, e))
        return -1;
    if (!heads || (halves && !wide))
        return k->arch->mixer_listed || halves
                   ? kv_fail(e,
                             "%s: key %s.%s is no list: it says which layers "
                             "have attention",
                             k->g->path, k->f->name,
                             heads ? "feed_forward_length"
                                   : "attention.head_count_kv")
                   : 0;
    types = json_array();
    json_object_set_new(k->config, halves ? "layers_block_type" : "layer_types",
                        types);
    for (size_t i = 0; i < (size_t)n; i++)
        json_array_append_new(
            types, json_string(kv_gguf_int(heads, i) ? "full_attention"
                               : !halves || !kv_gguf_int(wide, i) ? mixer
                               : experts                          ? "moe"
                                                                  : "mlp"));
    return 0;
}

/* *inner: ssm.inner_size; *each: inner / heads, with ssm.time_step_rank
 * heads. */
static int get_head(const struct kv_gguf_maker *k, int64_t *inner,
                    int64_t *each, struct kv_err *e)
{
    static const char *const needed[] = {"ssm.conv_kernel", "ssm.state_size",
                                         "ssm.group_count"};
    int64_t heads, n;

    for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++)
        if (kv_gguf_maker_size(k, needed[i], &n, e))
            return -1;
    if (kv_gguf_maker_size(k, "ssm.inner_size", inner, e) ||
        kv_gguf_maker_size(k, "ssm.time_step_rank", &heads, e))
        return -1;
    *each = *inner / heads;
    return *each * heads == *inner
               ? 0
               : kv_fail(e,
                         "%s: key %s.ssm.inner_size is %lld, which is no "
                         "multiple of ssm.time_step_rank %lld",
                         k->g->path, k->f->name, (long long)*inner,
                         (long long)heads);
}

/* Sets layer_types if the file lists the blocks without attention; the list
 * then replaces the interval. */
static int set_recurrent(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const int64_t n = kv_gguf_maker_int(k, "num_hidden_layers");
    const struct kv_gguf_value *v;
    json_t *types;
    char key[96];

    snprintf(key, sizeof(key), "%s.attention.recurrent_layers", k->f->name);
    if (!kv_gguf_find(k->g, key))
        return 0;
    if (kv_gguf_get(k->g, key, KV_GGUF_BOOL, true, &v, e))
        return -1;
    if ((int64_t)v->n < n)
        return kv_fail(e, "%s: key %s has %zu values for %lld layers",
                       k->g->path, key, v->n, (long long)n);
    types = json_array();
    json_object_set_new(k->config, "layer_types", types);
    json_object_del(k->config, "full_attention_interval");
    for (size_t i = 0; i < (size_t)n; i++)
        json_array_append_new(types, json_string(kv_gguf_bool(v, i)
                                                     ? "linear_attention"
                                                     : "full_attention"));
    return 0;
}

static int set_delta(const struct kv_gguf_maker *k, struct kv_err *e)
{
    int64_t inner, each;

    if (get_head(k, &inner, &each, e) || set_recurrent(k, e))
        return -1;
    kv_gguf_set_int(k->config, "linear_value_head_dim", each);
    return 0;
}

/* Granite 4: sets whether attention has RoPE, and the MLP's size in a model
 * without experts. */
static int set_granite(const struct kv_gguf_maker *k, int64_t inner,
                       struct kv_err *e)
{
    static const char shared[] = "shared_intermediate_size";
    const int64_t hidden = kv_gguf_maker_int(k, "hidden_size");
    const struct kv_gguf_value *v;

    if (kv_gguf_maker_get(k, "rope.scaling.finetuned", KV_GGUF_BOOL, &v, e))
        return -1;
    if (!hidden || inner % hidden)
        return kv_fail(e,
                       "%s: key %s.ssm.inner_size is %lld, which is no "
                       "multiple of embedding_length %lld",
                       k->g->path, k->f->name, (long long)inner,
                       (long long)hidden);
    kv_gguf_set_int(k->config, "mamba_expand", inner / hidden);
    json_object_set_new(
        k->config, "position_embedding_type",
        json_string(!v || kv_gguf_bool(v, 0) ? "rope" : "nope"));
    if (!json_object_get(k->config, shared))
        json_object_set(k->config, shared,
                        json_object_get(k->config, "intermediate_size"));
    return 0;
}

static int set_mamba(const struct kv_gguf_maker *k, struct kv_err *e)
{
    static const char *const conv[] = {"ssm_conv1d", NULL};
    int64_t inner, each;

    if (get_head(k, &inner, &each, e))
        return -1;
    kv_gguf_set_int(k->config, "mamba_d_head", each);
    json_object_set_new(k->config, "mamba_conv_bias",
                        json_boolean(kv_gguf_has_bias(k->m, conv)));
    return k->arch->halves ? 0 : set_granite(k, inner, e);
}

/* For classes that choose experts by sigmoids: fails if the file does not. */
static int check_gating(const struct kv_gguf_maker *k, struct kv_err *e)
{
    enum { SIGMOID = 2 };
    const struct kv_gguf_value *v;

    if (!k->arch->sigmoid)
        return 0;
    if (kv_gguf_maker_get(k, "expert_gating_func", KV_GGUF_COUNT, &v, e))
        return -1;
    return !v || kv_gguf_int(v, 0) == SIGMOID
               ? 0
               : kv_fail(e, "%s: key %s is %lld; only %d is implemented",
                         k->g->path, v->key, (long long)kv_gguf_int(v, 0),
                         SIGMOID);
}

int kv_gguf_mixer(const struct kv_gguf_maker *k, struct kv_err *e)
{
    int64_t n;

    if (check_gating(k, e))
        return -1;
    switch (k->arch->mixer) {
    case KV_MIXER_CONV:
        return kv_gguf_maker_size(k, "shortconv.l_cache", &n, e) ||
                       set_types(k, e)
                   ? -1
                   : 0;
    case KV_MIXER_DELTA:
        return set_delta(k, e);
    case KV_MIXER_MAMBA:
        return set_types(k, e) || set_mamba(k, e) ? -1 : 0;
    case KV_MIXER_NONE:
        break;
    }
    return 0;
}
