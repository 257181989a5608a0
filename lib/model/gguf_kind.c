/* GGUF keys of Gemma 3n and 4: the embeddings of layers, and sizes that depend
 * on the kind of layer. */
#include "lib/model/gguf_maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static size_t n_layers(const struct kv_gguf_maker *k)
{
    return (size_t)kv_gguf_maker_int(k, "num_hidden_layers");
}

static bool slides(const struct kv_gguf_maker *k, size_t layer)
{
    const char *type = json_string_value(
        json_array_get(json_object_get(k->config, "layer_types"), layer));

    return type && !strcmp(type, "sliding_attention");
}

/* Sets the field to the number of rows of the tensor, if the file has it. */
static void set_rows(const struct kv_gguf_maker *k, const char *field,
                     const char *tensor)
{
    const struct kv_weight *w = kv_gguf_tensor(k->m, tensor);

    if (w && w->n_dims)
        kv_gguf_set_int(k->config, field, (int64_t)w->dims[0]);
}

/* ---- Gemma 3n ------------------------------------------------------------ */

/* Sets the share of gates that are 0 in each layer; the key has the normal
 * quantile of that share, -inf for none. */
static int set_sparse(const struct kv_gguf_maker *k, struct kv_err *e)
{
    static const char name[] = "gemma3n.activation_sparsity_scale";
    const struct kv_gguf_value *v;
    json_t *list;

    if (!kv_gguf_find(k->g, name))
        return 0;
    if (kv_gguf_get(k->g, name, KV_GGUF_REAL, true, &v, e))
        return -1;
    list = json_array();
    json_object_set_new(k->config, "activation_sparsity_pattern", list);
    for (size_t i = 0; i < v->n; i++) {
        const double share = erfc(-kv_gguf_real(v, i) / sqrt(2)) / 2;

        if (!(share >= 0 && share < 1))
            return kv_fail(e, "%s: key %s: value %zu is %g, no quantile",
                           k->g->path, name, i, kv_gguf_real(v, i));
        json_array_append_new(list, json_real(share));
    }
    return 0;
}

/* ---- Gemma 4 ------------------------------------------------------------- */

/* *common: the value that all layers of a kind have, in an array with one value
 * for each layer; 0: no layer is of this kind. */
static int get_common(const struct kv_gguf_maker *k,
                      const struct kv_gguf_value *v, bool sliding,
                      int64_t *common, struct kv_err *e)
{
    *common = 0;
    for (size_t i = 0; i < n_layers(k); i++) {
        const int64_t n = kv_gguf_int(v, i);

        if (slides(k, i) != sliding)
            continue;
        if (n < 1)
            return kv_fail(e,
                           "%s: key %s: layer %zu has %lld, expected at "
                           "least 1",
                           k->g->path, v->key, i, (long long)n);
        if (*common && n != *common)
            return kv_fail(e,
                           "%s: key %s: layers of a kind differ, which is not "
                           "implemented: one has %lld, layer %zu has %lld",
                           k->g->path, v->key, (long long)*common, i,
                           (long long)n);
        *common = n;
    }
    return 0;
}

static int set_heads(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const struct kv_gguf_value *v;
    int64_t slide, full;

    if (kv_gguf_maker_list(k, "attention.head_count_kv", &v, e))
        return -1;
    if (!v)
        return 0;
    if (get_common(k, v, true, &slide, e) || get_common(k, v, false, &full, e))
        return -1;
    kv_gguf_set_int(k->config, "num_key_value_heads", slide ? slide : full);
    if (full)
        kv_gguf_set_int(k->config, "num_global_key_value_heads", full);
    return 0;
}

/* Layers that share keys and values may have MLPs of twice the width. */
static int set_widths(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const size_t n = n_layers(k);
    const size_t shared = (size_t)kv_gguf_maker_int(k, "num_kv_shared_layers");
    const struct kv_gguf_value *v;
    bool twice;

    if (kv_gguf_maker_list(k, "feed_forward_length", &v, e))
        return -1;
    if (!v)
        return 0;
    twice = kv_gguf_int(v, n - 1) == 2 * kv_gguf_int(v, 0);
    for (size_t i = 0; i < n; i++) {
        const bool wide = twice && i + shared >= n;

        if (kv_gguf_int(v, i) != (wide ? 2 : 1) * kv_gguf_int(v, 0))
            return kv_fail(e,
                           "%s: key %s: layer %zu has %lld, the first %lld: "
                           "only twice as many in the %zu layers that share "
                           "keys and values are implemented",
                           k->g->path, v->key, i, (long long)kv_gguf_int(v, i),
                           (long long)kv_gguf_int(v, 0), shared);
    }
    kv_gguf_set_int(k->config, "intermediate_size", kv_gguf_int(v, 0));
    json_object_set_new(k->config, "use_double_wide_mlp", json_boolean(twice));
    return 0;
}

/* A layer that does not slide and has no matrix of values takes its values from
 * the matrix of keys. */
static void set_values(const struct kv_gguf_maker *k)
{
    const size_t n =
        n_layers(k) - (size_t)kv_gguf_maker_int(k, "num_kv_shared_layers");
    char name[48];
    size_t i = 0;

    while (i < n && slides(k, i))
        i++;
    snprintf(name, sizeof(name), "blk.%zu.attn_v.weight", i);
    json_object_set_new(k->config, "attention_k_eq_v",
                        json_boolean(i < n && !kv_gguf_tensor(k->m, name)));
}

/* *turning: the number of pairs that RoPE rotates in layers that do not slide.
 * The file divides their frequencies by 1, and the other pairs' frequencies by
 * 1e30 or more, so that the other pairs stay. */
static int count_turning(const struct kv_gguf_maker *k, int64_t pairs,
                         int64_t *turning, struct kv_err *e)
{
    static const char name[] = "rope_freqs.weight";
    const struct kv_weight *w = kv_gguf_tensor(k->m, name);
    float x;

    if (!w || w->type == KV_STORED_OTHER || (int64_t)w->n != pairs)
        return kv_fail(
            e, "%s: tensor %s %s; %lld numbers were expected", k->g->path, name,
            w ? "has another count or type" : "is missing", (long long)pairs);
    *turning = pairs;
    for (int64_t i = 0; i < pairs; i++) {
        kv_weight_dequantize(w, (size_t)i, 1, &x);
        if (*turning == pairs && x >= 1e30F)
            *turning = i;
        if (!(*turning == pairs ? x == 1 : x >= 1e30F))
            return kv_fail(e,
                           "%s: tensor %s: value %lld is %g; only 1, and from "
                           "some pair on 1e30, are implemented",
                           k->g->path, name, (long long)i, (double)x);
    }
    return 0;
}

/* Checks that RoPE rotates all channels of a head and is not scaled. */
static int check_rope(const struct kv_gguf_maker *k, struct kv_err *e)
{
    static const char *const of[][2] = {
        {"rope.dimension_count", "global_head_dim"},
        {"rope.dimension_count_swa", "head_dim"},
        {"attention.value_length_swa", "head_dim"}};
    const struct kv_gguf_value *v;
    double factor = 1;

    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
        if (kv_gguf_maker_get(k, of[i][0], KV_GGUF_COUNT, &v, e))
            return -1;
        if (v && kv_gguf_int(v, 0) != kv_gguf_maker_int(k, of[i][1]))
            return kv_fail(e,
                           "%s: key %s is %lld; only the %lld channels of a "
                           "head are implemented",
                           k->g->path, v->key, (long long)kv_gguf_int(v, 0),
                           (long long)kv_gguf_maker_int(k, of[i][1]));
    }
    if (kv_gguf_maker_real(k, "rope.scaling.factor", &factor, e))
        return -1;
    return factor == 0 || factor == 1
               ? 0
               : kv_fail(e,
                         "%s: key gemma4.rope.scaling.factor is %g; only 1 "
                         "is implemented",
                         k->g->path, factor);
}

static int set_rope(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const int64_t dim = kv_gguf_maker_int(k, "global_head_dim");
    double full = 10000, slide = 10000;
    int64_t turning = 0;

    if (check_rope(k, e) || kv_gguf_maker_real(k, "rope.freq_base", &full, e) ||
        kv_gguf_maker_real(k, "rope.freq_base_swa", &slide, e) ||
        count_turning(k, dim / 2, &turning, e))
        return -1;
    json_object_set_new(k->config, "rope_parameters",
                        json_pack("{s:{s:s,s:f,s:f},s:{s:s,s:f}}",
                                  "full_attention", "rope_type", "proportional",
                                  "rope_theta", full, "partial_rotary_factor",
                                  2 * (double)turning / (double)dim,
                                  "sliding_attention", "rope_type", "default",
                                  "rope_theta", slide));
    return 0;
}

static int set_gemma4(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const int64_t shared = kv_gguf_maker_int(k, "num_kv_shared_layers");
    int64_t n;

    if (!n_layers(k) || shared < 0 || (size_t)shared >= n_layers(k))
        return kv_fail(e,
                       "%s: %lld of %zu layers share keys and values: "
                       "expected fewer than all",
                       k->g->path, (long long)shared, n_layers(k));
    if (kv_gguf_maker_size(k, "attention.key_length", &n, e) ||
        kv_gguf_maker_size(k, "attention.key_length_swa", &n, e) ||
        set_heads(k, e) || set_widths(k, e) || set_rope(k, e))
        return -1;
    set_values(k);
    json_object_set_new(k->config, "enable_moe_block",
                        json_boolean(kv_gguf_maker_int(k, "num_experts") > 0));
    return 0;
}

int kv_gguf_kind(const struct kv_gguf_maker *k, struct kv_err *e)
{
    if (!k->arch->by_kind)
        return 0;
    set_rows(k, "vocab_size_per_layer_input", "per_layer_token_embd.weight");
    if (k->arch->altup)
        set_rows(k, "laurel_rank", "blk.0.laurel_l.weight");
    return kv_gguf_by_kind(k) ? set_gemma4(k, e) : set_sparse(k, e);
}
