#include "lib/model/arch.h"
#include "lib/model/gguf_maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A key after "llama.", and the equivalent field of config.json by its usual
 * name.  family: NULL for all families without an earlier row of their own.
 * field NULL: read below, or without effect on the numbers. */
static const struct row {
    const char *key, *family, *field;
    enum kv_gguf_kind kind;
} rows[] = {
    {"block_count", NULL, "num_hidden_layers", KV_GGUF_COUNT},
    {"context_length", NULL, "max_position_embeddings", KV_GGUF_COUNT},
    {"embedding_length", NULL, "hidden_size", KV_GGUF_COUNT},
    {"feed_forward_length", NULL, "intermediate_size", KV_GGUF_COUNT},
    {"vocab_size", NULL, "vocab_size", KV_GGUF_COUNT},
    {"attention.head_count", NULL, "num_attention_heads", KV_GGUF_COUNT},
    {"attention.head_count_kv", NULL, "num_key_value_heads", KV_GGUF_COUNT},
    {"attention.key_length", NULL, "head_dim", KV_GGUF_COUNT},
    {"attention.layer_norm_rms_epsilon", NULL, "rms_norm_eps", KV_GGUF_REAL},
    {"attention.sliding_window", NULL, "sliding_window", KV_GGUF_COUNT},
    {"attention.causal", NULL, "is_causal", KV_GGUF_BOOL},
    {"attn_logit_softcapping", NULL, "attn_logit_softcapping", KV_GGUF_REAL},
    {"final_logit_softcapping", NULL, "final_logit_softcapping", KV_GGUF_REAL},
    {"rope.freq_base", NULL, "rope_theta", KV_GGUF_REAL},
    {"rope.freq_base_swa", NULL, "rope_local_base_freq", KV_GGUF_REAL},
    {"attention.layer_norm_epsilon", NULL, "rms_norm_eps", KV_GGUF_REAL},
    {"use_parallel_residual", NULL, "use_parallel_residual", KV_GGUF_BOOL},
    {"expert_count", NULL, "num_experts", KV_GGUF_COUNT},
    {"expert_used_count", NULL, "num_experts_per_tok", KV_GGUF_COUNT},
    {"expert_feed_forward_length", "qwen3moe", "moe_intermediate_size",
     KV_GGUF_COUNT},
    {"expert_feed_forward_length", "gpt-oss", "intermediate_size",
     KV_GGUF_COUNT},
    {"expert_feed_forward_length", "deepseek2", "moe_intermediate_size",
     KV_GGUF_COUNT},
    {"expert_shared_count", "deepseek2", "n_shared_experts", KV_GGUF_COUNT},
    {"expert_weights_scale", "deepseek2", "routed_scaling_factor",
     KV_GGUF_REAL},
    {"expert_weights_norm", "deepseek2", "norm_topk_prob", KV_GGUF_BOOL},
    {"expert_group_count", "deepseek2", "n_group", KV_GGUF_COUNT},
    {"expert_group_used_count", "deepseek2", "topk_group", KV_GGUF_COUNT},
    {"leading_dense_block_count", "deepseek2", "first_k_dense_replace",
     KV_GGUF_COUNT},
    {"attention.q_lora_rank", "deepseek2", "q_lora_rank", KV_GGUF_COUNT},
    {"attention.kv_lora_rank", "deepseek2", "kv_lora_rank", KV_GGUF_COUNT},
    {"shortconv.l_cache", "lfm2", "conv_L_cache", KV_GGUF_COUNT},
    {"logit_scale", "granite", "logits_scaling", KV_GGUF_REAL},
    {"logit_scale", "command-r", "logit_scale", KV_GGUF_REAL},
    {"logit_scale", "cohere2", "logit_scale", KV_GGUF_REAL},
    {"attention.scale", "granite", "attention_multiplier", KV_GGUF_REAL},
    {"residual_scale", "granite", "residual_multiplier", KV_GGUF_REAL},
    {"embedding_scale", "granite", "embedding_multiplier", KV_GGUF_REAL},

    {"attention.value_length", NULL, NULL, KV_GGUF_COUNT},
    {"attention.max_alibi_bias", "mpt", NULL, KV_GGUF_REAL},
    {"attention.clamp_kqv", "mpt", NULL, KV_GGUF_REAL},
    {"attention.sliding_window_pattern", NULL, NULL, KV_GGUF_COUNT},
    {"rope.dimension_count", NULL, NULL, KV_GGUF_COUNT},
    {"rope.scaling.type", NULL, NULL, KV_GGUF_TEXT},
    {"rope.scaling.factor", NULL, NULL, KV_GGUF_REAL},
    {"rope.scaling.attn_factor", NULL, NULL, KV_GGUF_REAL},
    {"rope.scaling.original_context_length", NULL, NULL, KV_GGUF_COUNT},
    {"rope.scaling.yarn_beta_fast", NULL, NULL, KV_GGUF_REAL},
    {"rope.scaling.yarn_beta_slow", NULL, NULL, KV_GGUF_REAL},
    {"rope.scaling.yarn_attn_factor", NULL, NULL, KV_GGUF_REAL},
    {"rope.scaling.yarn_ext_factor", NULL, NULL, KV_GGUF_REAL},
    {"rope.scale_linear", NULL, NULL, KV_GGUF_REAL},
    {"rope.scaling.yarn_log_multiplier", "deepseek2", NULL, KV_GGUF_REAL},
    {"attention.key_length_mla", "deepseek2", NULL, KV_GGUF_COUNT},
    {"attention.value_length_mla", "deepseek2", NULL, KV_GGUF_COUNT},
    {"expert_gating_func", "deepseek2", NULL, KV_GGUF_COUNT},

    {"rope.scaling.finetuned", NULL, NULL, KV_GGUF_BOOL},
    {"tensor_data_layout", NULL, NULL, KV_GGUF_TEXT},
    {"pooling_type", NULL, NULL, KV_GGUF_COUNT},
};

enum { N_ROWS = sizeof(rows) / sizeof(*rows) };

int kv_gguf_maker_get(const struct kv_gguf_maker *k, const char *key,
                      enum kv_gguf_kind kind, const struct kv_gguf_value **v,
                      struct kv_err *e)
{
    char full[128];

    snprintf(full, sizeof(full), "%s.%s", k->f->name, key);
    return kv_gguf_get(k->g, full, kind, false, v, e);
}

int kv_gguf_maker_real(const struct kv_gguf_maker *k, const char *key,
                       double *out, struct kv_err *e)
{
    const struct kv_gguf_value *v;

    if (kv_gguf_maker_get(k, key, KV_GGUF_REAL, &v, e))
        return -1;
    if (!v)
        return 0;
    *out = kv_gguf_real(v, 0);
    return isfinite(*out) && *out >= 0
               ? 0
               : kv_fail(e, "%s: key %s is %g; a number from 0 on was expected",
                         k->g->path, v->key, *out);
}

void kv_gguf_set_int(json_t *to, const char *field, int64_t x)
{
    json_object_set_new(to, field, json_integer((json_int_t)x));
}

void kv_gguf_set_real(json_t *to, const char *field, double x)
{
    json_t *j = json_real(x);

    json_object_set_new(to, field, j ? j : json_integer(0));
}

int64_t kv_gguf_maker_int(const struct kv_gguf_maker *k, const char *field)
{
    return json_integer_value(json_object_get(k->config, field));
}

/* ---- keys that are a field each ------------------------------------------ */

static const struct row *find_row(const char *key, const char *family)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (!strcmp(rows[i].key, key) &&
            (!rows[i].family || !strcmp(rows[i].family, family)))
            return &rows[i];
    return NULL;
}

/* For an array with one value for each layer: the common value. */
static int check_layers(const struct kv_gguf_value *v, const char *path,
                        struct kv_err *e)
{
    for (size_t i = 1; i < v->n; i++)
        if (kv_gguf_int(v, i) != kv_gguf_int(v, 0))
            return kv_fail(e,
                           "%s: key %s: layers differ, which is not "
                           "implemented: the first is %lld, layer %zu is %lld",
                           path, v->key, (long long)kv_gguf_int(v, 0), i,
                           (long long)kv_gguf_int(v, i));
    return 0;
}

/* KV heads of each layer; a layer without any has no attention. */
static int set_kv_heads(const struct kv_gguf_maker *k, const char *field,
                        const struct kv_gguf_value *v, struct kv_err *e)
{
    json_t *types = json_array();
    int64_t heads = 0;

    json_object_set_new(k->config, "layer_types", types);
    for (size_t i = 0; i < v->n; i++) {
        const int64_t n = kv_gguf_int(v, i);

        json_array_append_new(types,
                              json_string(n ? "full_attention" : "conv"));
        if (n && heads && n != heads)
            return kv_fail(e,
                           "%s: key %s: layers differ, which is not "
                           "implemented: one has %lld, layer %zu has %lld",
                           k->g->path, v->key, (long long)heads, i,
                           (long long)n);
        heads = n ? n : heads;
    }
    kv_gguf_set_int(k->config, field, heads);
    return 0;
}

static int set_field(const struct kv_gguf_maker *k, const struct row *row,
                     const struct kv_gguf_value *v, struct kv_err *e)
{
    const bool list = v->array && row->kind == KV_GGUF_COUNT && v->n;

    if (kv_gguf_get(k->g, v->key, row->kind, list, &v, e))
        return -1;
    if (list && k->arch->mixer && !strcmp(row->field, "num_key_value_heads"))
        return set_kv_heads(k, row->field, v, e);
    if (list && check_layers(v, k->g->path, e))
        return -1;
    if (row->kind == KV_GGUF_COUNT)
        kv_gguf_set_int(k->config, row->field, kv_gguf_int(v, 0));
    else if (row->kind == KV_GGUF_REAL)
        kv_gguf_set_real(k->config, row->field, kv_gguf_real(v, 0));
    else
        json_object_set_new(k->config, row->field,
                            json_boolean(kv_gguf_bool(v, 0)));
    return 0;
}

/* All keys of the family; others say nothing of the numbers. */
static int set_fields(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const size_t n = strlen(k->f->name);

    for (size_t i = 0; i < k->g->n_values; i++) {
        const struct kv_gguf_value *v = &k->g->value[i];
        const struct row *row;

        if (strncmp(v->key, k->f->name, n) != 0 || v->key[n] != '.')
            continue;
        row = find_row(v->key + n + 1, k->f->name);
        if (!row &&
            !(v->kind == KV_GGUF_INT && !v->array && !kv_gguf_int(v, 0)))
            return kv_fail(e,
                           "%s: key %s is not known: it could change the "
                           "numbers",
                           k->g->path, v->key);
        if (row && row->field && set_field(k, row, v, e))
            return -1;
    }
    return 0;
}

/* ---- what has a default -------------------------------------------------- */

static int need(const struct kv_gguf_maker *k, const char *field,
                const char *key, struct kv_err *e)
{
    return json_object_get(k->config, field)
               ? 0
               : kv_fail(e, "%s: key %s.%s is missing", k->g->path, k->f->name,
                         key);
}

/* llama.cpp's defaults, if the file has no key. */
static int set_sizes(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const struct kv_weight *embed = kv_gguf_tensor(k->m, "token_embd.weight");
    const struct kv_gguf_value *v;

    if (need(k, "num_hidden_layers", "block_count", e) ||
        need(k, "max_position_embeddings", "context_length", e) ||
        need(k, "hidden_size", "embedding_length", e) ||
        need(k, "num_attention_heads", "attention.head_count", e) ||
        (k->arch->mixer && need(k, "conv_L_cache", "shortconv.l_cache", e)) ||
        kv_gguf_maker_get(k, "attention.value_length", KV_GGUF_COUNT, &v, e) ||
        (k->arch->latent.rank && kv_gguf_latent(k, e)))
        return -1;
    if (k->arch->latent.rank)
        v = NULL; /* values have no heads */
    if (kv_gguf_maker_int(k, "num_attention_heads") < 1)
        return kv_fail(e, "%s: key %s.attention.head_count is %lld", k->g->path,
                       k->f->name,
                       (long long)kv_gguf_maker_int(k, "num_attention_heads"));
    if (!json_object_get(k->config, "num_key_value_heads"))
        kv_gguf_set_int(k->config, "num_key_value_heads",
                        kv_gguf_maker_int(k, "num_attention_heads"));
    if (!json_object_get(k->config, "head_dim"))
        kv_gguf_set_int(k->config, "head_dim",
                        kv_gguf_maker_int(k, "hidden_size") /
                            kv_gguf_maker_int(k, "num_attention_heads"));
    if (v && kv_gguf_int(v, 0) != kv_gguf_maker_int(k, "head_dim"))
        return kv_fail(
            e,
            "%s: key %s is %lld, but heads of keys have %lld values: "
            "that they differ is not implemented",
            k->g->path, v->key, (long long)kv_gguf_int(v, 0),
            (long long)kv_gguf_maker_int(k, "head_dim"));
    if (!json_object_get(k->config, "vocab_size") && embed && embed->n_dims)
        kv_gguf_set_int(k->config, "vocab_size", (int64_t)embed->dims[0]);
    return need(k, "vocab_size", "vocab_size", e);
}

static void set_flag(const struct kv_gguf_maker *k, const char *field, bool x)
{
    json_object_set_new(k->config, field, json_boolean(x));
}

/* Whether any layer has a bias of any of these parts, which end with NULL. */
static bool has_bias(const struct kv_gguf_maker *k, const char *const *part)
{
    for (; *part; part++)
        for (size_t p = 0; p < k->m->n_parts; p++)
            for (size_t i = 0; i < k->m->part[p].n_tensors; i++) {
                const char *name = k->m->part[p].tensor[i].name;
                const size_t n = strlen(*part);
                int at = 0;

                if (!sscanf(name, "blk.%*u.%n", &at) && at &&
                    !strncmp(name + at, *part, n) &&
                    !strcmp(name + at + n, ".bias"))
                    return true;
            }
    return false;
}

/* Fields derived from the tensors in the file. */
static void set_flags(const struct kv_gguf_maker *k)
{
    static const char *const attention[] = {"attn_q",   "attn_k",      "attn_v",
                                            "attn_qkv", "attn_output", NULL};
    static const char *const mlp[] = {"ffn_gate", "ffn_up", "ffn_down", NULL};

    set_flag(k, "tie_word_embeddings", !kv_gguf_tensor(k->m, "output.weight"));
    if (k->f->bias)
        set_flag(k, k->f->bias, has_bias(k, attention));
    if (k->f->qk_norm)
        set_flag(k, k->f->qk_norm,
                 kv_gguf_tensor(k->m, "blk.0.attn_q_norm.weight"));
    if (k->arch->mlp_bias && has_bias(k, mlp))
        set_flag(k, "mlp_bias", true);
}

/* ---- sliding windows ----------------------------------------------------- */

/* Every n-th layer does not slide, or there is a truth value for each layer. */
static int add_layer_types(const struct kv_gguf_maker *k, json_t *list,
                           struct kv_err *e)
{
    const size_t n_layers = (size_t)kv_gguf_maker_int(k, "num_hidden_layers");
    const struct kv_gguf_value *v;
    size_t pattern = k->f->pattern;
    char key[96];

    snprintf(key, sizeof(key), "%s.attention.sliding_window_pattern",
             k->f->name);
    v = kv_gguf_find(k->g, key);
    if (kv_gguf_get(k->g, key, v && v->array ? KV_GGUF_BOOL : KV_GGUF_COUNT,
                    v && v->array, &v, e))
        return -1;
    if (v && v->array && v->n != n_layers)
        return kv_fail(e, "%s: key %s has %zu values for %zu layers",
                       k->g->path, key, v->n, n_layers);
    if (v && !v->array)
        pattern = (size_t)kv_gguf_int(v, 0);
    for (size_t i = 0; i < n_layers; i++) {
        const bool slides =
            v && v->array ? kv_gguf_bool(v, i) : !pattern || (i + 1) % pattern;

        json_array_append_new(
            list, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    return 0;
}

static int set_windows(const struct kv_gguf_maker *k, struct kv_err *e)
{
    enum { MAX_LAYERS = 4096 };
    json_t *list;

    if (kv_gguf_maker_int(k, "sliding_window") < 1) {
        json_object_del(k->config, "sliding_window");
        if (k->arch->layers.still_full) /* its class would have one */
            json_object_set_new(k->config, "sliding_window", json_null());
        return 0;
    }
    if (k->f->sliding[0]) {
        json_object_set_new(k->config, "architectures",
                            json_pack("[s]", k->f->sliding[0]));
        json_object_set_new(k->config, "model_type",
                            json_string(k->f->sliding[1]));
    }
    if (!k->f->pattern ||
        kv_gguf_maker_int(k, "num_hidden_layers") > MAX_LAYERS)
        return 0;
    list = json_array();
    json_object_set_new(k->config, "layer_types", list);
    return add_layer_types(k, list, e);
}

/* ---- what families have of their own ------------------------------------- */

/* Scores are divided by the root of this; in the largest models it is not the
 * head's size. */
static void set_gemma(const struct kv_gguf_maker *k)
{
    const int64_t n_layers = kv_gguf_maker_int(k, "num_hidden_layers");
    const bool second = !strcmp(k->f->name, "gemma2");
    const bool largest = n_layers == (second ? 46 : 62);

    kv_gguf_set_int(k->config, "query_pre_attn_scalar",
                    largest ? kv_gguf_maker_int(k, "hidden_size") /
                                  kv_gguf_maker_int(k, "num_attention_heads")
                            : kv_gguf_maker_int(k, "head_dim"));
    if (!second && !json_object_get(k->config, "rope_local_base_freq"))
        kv_gguf_set_real(k->config, "rope_local_base_freq", 10000);
}

/* Some, ffn_gate_inp says which, if there are any. */
static void set_experts(struct kv_gguf_maker *k)
{
    if (kv_gguf_maker_int(k, "num_experts") < 1) {
        json_object_del(k->config, "num_experts");
        json_object_del(k->config, "num_experts_per_tok");
    } else if (!strcmp(k->f->name, "llama")) {
        json_object_set_new(k->config, "architectures",
                            json_pack("[s]", "MixtralForCausalLM"));
        json_object_set_new(k->config, "model_type", json_string("mixtral"));
    }
    if (!strcmp(k->f->name, "qwen3moe"))
        set_flag(k, "norm_topk_prob", true);
}

/* The new decoder has a norm for attention and one for the MLP, or one for both
 * and keys of several heads. */
static void set_falcon(const struct kv_gguf_maker *k)
{
    const bool two = kv_gguf_tensor(k->m, "blk.0.attn_norm_2.weight");
    const bool several = kv_gguf_maker_int(k, "num_key_value_heads") > 1;

    set_flag(k, "new_decoder_architecture", two || several);
    if (two || several)
        json_object_set_new(k->config, "num_ln_in_parallel_attn",
                            json_integer(two ? 2 : 1));
}

/* The contents of its one object. */
static int set_mpt(const struct kv_gguf_maker *k, struct kv_err *e)
{
    double alibi = 0, clip = 0;
    json_t *attention = json_object();

    json_object_set_new(k->config, "attn_config", attention);
    if (kv_gguf_maker_real(k, "attention.max_alibi_bias", &alibi, e) ||
        kv_gguf_maker_real(k, "attention.clamp_kqv", &clip, e))
        return -1;
    json_object_set_new(attention, "alibi", json_boolean(alibi > 0));
    kv_gguf_set_real(attention, "alibi_bias_max", alibi);
    if (clip != 0)
        kv_gguf_set_real(attention, "clip_qkv", clip);
    return 0;
}

/* Fields get the names that the architecture has for them. */
static void set_names(const struct kv_gguf_maker *k)
{
    for (const struct kv_own_field *o = k->arch->fields; o && o->name; o++) {
        const bool moves = o->means && o->only != kv_unread;
        json_t *value = moves ? json_object_get(k->config, o->means) : NULL;

        if (!value || json_object_get(k->config, o->name))
            continue;
        json_object_set(k->config, o->name, value);
        json_object_del(k->config, o->means);
    }
}

static int set_all(struct kv_gguf_maker *k, struct kv_err *e)
{
    const struct kv_gguf_family *f = k->f;

    if (set_fields(k, e) || set_sizes(k, e) || set_windows(k, e) ||
        (k->arch->positions == KV_ROPE && kv_gguf_rope(k, e)) ||
        (!strcmp(f->name, "mpt") && set_mpt(k, e)))
        return -1;
    set_flags(k);
    set_experts(k);
    if (!strcmp(f->name, "falcon"))
        set_falcon(k);
    if (!strcmp(f->name, "lfm2")) /* the MLP is as wide as it says */
        set_flag(k, "block_auto_adjust_ff_dim", false);
    if (!strncmp(f->name, "gemma", 5) && f->pattern)
        set_gemma(k);
    return 0;
}

json_t *kv_gguf_config(const struct kv_gguf_model *m, struct kv_err *e)
{
    struct kv_gguf_maker k = {.m = m, .g = &m->part[0]};
    const char *arch;

    const char *names[2];

    if (kv_gguf_family(m, &k.f, e))
        return NULL;
    names[0] = k.f->arch;
    names[1] = k.f->model_type;
    if ((!strcmp(k.f->name, "deepseek2") && kv_gguf_deepseek(&k, names, e)) ||
        kv_arch_find(&k.arch, names[0], NULL, e)) {
        kv_fail_in(e, "%s", k.g->path);
        return NULL;
    }
    k.config = json_pack("{s:[s],s:s}", "architectures", names[0], "model_type",
                         names[1]);
    if (set_all(&k, e))
        goto fail;
    arch = json_string_value(
        json_array_get(json_object_get(k.config, "architectures"), 0));
    if (kv_arch_find(&k.arch, arch, k.config, e)) {
        kv_fail_in(e, "%s", k.g->path);
        goto fail;
    }
    set_names(&k);
    return k.config;
fail:
    json_decref(k.config);
    return NULL;
}

/* The key of a field, present or not; NULL: the field has no key. */
static const char *key_of(const struct kv_gguf_model *m, const char *family,
                          const char *field, size_t n, char key[96])
{
    const char *found = NULL;

    for (size_t i = 0; i < N_ROWS; i++) {
        if (!rows[i].field || strlen(rows[i].field) != n ||
            memcmp(rows[i].field, field, n) != 0 ||
            (rows[i].family && strcmp(rows[i].family, family) != 0))
            continue;
        snprintf(key, 96, "%s.%s", family, rows[i].key);
        if (kv_gguf_find(&m->part[0], key))
            return key;
        found = found ? found : rows[i].key;
    }
    if (found)
        snprintf(key, 96, "%s.%s", family, found);
    return found ? key : NULL;
}

void kv_gguf_name_key(const struct kv_gguf_model *m, const char *path,
                      struct kv_err *e)
{
    const size_t start = strlen(path) + strlen(": field ");
    const struct kv_gguf_family *f;
    struct kv_err said = *e;
    char key[96];
    size_t n;

    if (strncmp(said.msg, path, strlen(path)) != 0 ||
        strncmp(said.msg + strlen(path), ": field ", 8) != 0 ||
        kv_gguf_family(m, &f, NULL))
        return;
    n = strcspn(said.msg + start, " ");
    if (key_of(m, f->name, said.msg + start, n, key))
        kv_fail(e, "%s: key %s (%.*s)%s", path, key, (int)n, said.msg + start,
                said.msg + start + n);
}
