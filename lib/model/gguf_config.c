#include "lib/model/arch.h"
#include "lib/model/gguf_maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

int kv_gguf_maker_size(const struct kv_gguf_maker *k, const char *key,
                       int64_t *n, struct kv_err *e)
{
    const struct kv_gguf_value *v;

    if (kv_gguf_maker_get(k, key, KV_GGUF_COUNT, &v, e))
        return -1;
    *n = v ? kv_gguf_int(v, 0) : 0;
    return *n > 0 ? 0
                  : kv_fail(e, "%s: key %s.%s is %s", k->g->path, k->f->name,
                            key, v ? "0" : "missing");
}

int kv_gguf_maker_list(const struct kv_gguf_maker *k, const char *name,
                       const struct kv_gguf_value **v, struct kv_err *e)
{
    const int64_t n = kv_gguf_maker_int(k, "num_hidden_layers");
    char key[96];

    snprintf(key, sizeof(key), "%s.%s", k->f->name, name);
    *v = kv_gguf_find(k->g, key);
    if (!*v || !(*v)->array) {
        *v = NULL;
        return 0;
    }
    if (kv_gguf_get(k->g, key, KV_GGUF_COUNT, true, v, e))
        return -1;
    return (int64_t)(*v)->n >= n
               ? 0
               : kv_fail(e, "%s: key %s has %zu values for %lld layers",
                         k->g->path, key, (*v)->n, (long long)n);
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

bool kv_gguf_has_bias(const struct kv_gguf_model *m, const char *const *part)
{
    for (; *part; part++)
        for (size_t p = 0; p < m->n_parts; p++)
            for (size_t i = 0; i < m->part[p].n_tensors; i++) {
                const char *name = m->part[p].tensor[i].name;
                const size_t n = strlen(*part);
                int at = 0;

                if (!sscanf(name, "blk.%*u.%n", &at) && at &&
                    !strncmp(name + at, *part, n) &&
                    !strcmp(name + at + n, ".bias"))
                    return true;
            }
    return false;
}

/* ---- keys that map to one field each ------------------------------------- */

/* Fails unless an array with one value for each layer has equal values. */
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

/* Sets a field to the value that all layers have except those with 0, in a
 * model with several kinds of layers (gguf_mixer.c reads the kinds). */
static int set_common(const struct kv_gguf_maker *k, const char *field,
                      const struct kv_gguf_value *v, struct kv_err *e)
{
    int64_t common = 0;

    for (size_t i = 0; i < v->n; i++) {
        const int64_t n = kv_gguf_int(v, i);

        if (n && common && n != common)
            return kv_fail(e,
                           "%s: key %s: layers differ, which is not "
                           "implemented: one has %lld, layer %zu has %lld",
                           k->g->path, v->key, (long long)common, i,
                           (long long)n);
        common = n ? n : common;
    }
    kv_gguf_set_int(k->config, field, common);
    return 0;
}

static int set_field(const struct kv_gguf_maker *k,
                     const struct kv_gguf_row *row,
                     const struct kv_gguf_value *v, struct kv_err *e)
{
    const bool list = v->array && row->kind == KV_GGUF_COUNT && v->n;

    if (kv_gguf_get(k->g, v->key, row->kind, list, &v, e))
        return -1;
    if (list && kv_gguf_by_kind(k))
        return 0; /* gguf_kind.c reads it */
    if (list && k->arch->mixer)
        return set_common(k, row->field, v, e);
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

/* Sets the fields of all keys of the family; other keys do not affect the
 * numbers. */
static int set_fields(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const size_t n = strlen(k->f->name);

    for (size_t i = 0; i < k->g->n_values; i++) {
        const struct kv_gguf_value *v = &k->g->value[i];
        const struct kv_gguf_row *row;

        if (strncmp(v->key, k->f->name, n) != 0 || v->key[n] != '.')
            continue;
        row = kv_gguf_row(v->key + n + 1, k->f->name);
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

/* ---- fields with a default ----------------------------------------------- */

static int need(const struct kv_gguf_maker *k, const char *field,
                const char *key, struct kv_err *e)
{
    return json_object_get(k->config, field)
               ? 0
               : kv_fail(e, "%s: key %s.%s is missing", k->g->path, k->f->name,
                         key);
}

/* Takes the blocks at the end that predict further tokens out of
 * num_hidden_layers: block_count includes them, but they do not run. */
static int leave_out(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const int64_t all = kv_gguf_maker_int(k, "num_hidden_layers");
    const struct kv_gguf_value *v;

    if (kv_gguf_maker_get(k, "nextn_predict_layers", KV_GGUF_COUNT, &v, e))
        return -1;
    if (!v || !kv_gguf_int(v, 0))
        return 0;
    if (!k->arch->more_layers || kv_gguf_int(v, 0) >= all)
        return kv_fail(e, "%s: key %s is %lld of %lld blocks (block_count)%s%s",
                       k->g->path, v->key, (long long)kv_gguf_int(v, 0),
                       (long long)all,
                       k->arch->more_layers ? "" : ", but there are none in a ",
                       k->arch->more_layers ? "" : k->arch->name);
    kv_gguf_set_int(k->config, "num_hidden_layers", all - kv_gguf_int(v, 0));
    return 0;
}

/* Sets llama.cpp's defaults where the file has no key. */
static int set_sizes(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const struct kv_weight *embed = kv_gguf_tensor(k->m, "token_embd.weight");
    const char *dim = kv_gguf_by_kind(k) ? "global_head_dim" : "head_dim";
    const struct kv_gguf_value *v;

    if (need(k, "num_hidden_layers", "block_count", e) || leave_out(k, e) ||
        need(k, "max_position_embeddings", "context_length", e) ||
        need(k, "hidden_size", "embedding_length", e) ||
        need(k, "num_attention_heads", "attention.head_count", e) ||
        kv_gguf_maker_get(k, "attention.value_length", KV_GGUF_COUNT, &v, e) ||
        (k->arch->latent.rank && kv_gguf_latent(k, e)))
        return -1;
    if (k->arch->latent.rank)
        v = NULL; /* value_length is no head size here */
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
    if (v && kv_gguf_int(v, 0) != kv_gguf_maker_int(k, dim))
        return kv_fail(
            e,
            "%s: key %s is %lld, but heads of keys have %lld values: "
            "that they differ is not implemented",
            k->g->path, v->key, (long long)kv_gguf_int(v, 0),
            (long long)kv_gguf_maker_int(k, dim));
    if (!json_object_get(k->config, "vocab_size") && embed && embed->n_dims)
        kv_gguf_set_int(k->config, "vocab_size", (int64_t)embed->dims[0]);
    return need(k, "vocab_size", "vocab_size", e);
}

static void set_flag(const struct kv_gguf_maker *k, const char *field, bool x)
{
    json_object_set_new(k->config, field, json_boolean(x));
}

/* Fields derived from the tensors in the file. */
static void set_flags(const struct kv_gguf_maker *k)
{
    static const char *const attention[] = {"attn_q",   "attn_k",      "attn_v",
                                            "attn_qkv", "attn_output", NULL};
    static const char *const mlp[] = {"ffn_gate", "ffn_up", "ffn_down", NULL};

    set_flag(k, "tie_word_embeddings", !kv_gguf_tensor(k->m, "output.weight"));
    if (k->f->bias)
        set_flag(k, k->f->bias, kv_gguf_has_bias(k->m, attention));
    if (k->f->qk_norm)
        set_flag(k, k->f->qk_norm,
                 kv_gguf_tensor(k->m, "blk.0.attn_q_norm.weight"));
    if (k->arch->mlp_bias && kv_gguf_has_bias(k->m, mlp))
        set_flag(k, "mlp_bias", true);
}

/* ---- sliding windows ----------------------------------------------------- */

/* Fills list with the layers' types, from a truth value for each layer or from
 * the pattern: every n-th layer does not slide. */
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
        if (k->arch->layers.still_full) /* without the field, the class would
                                         * have a window */
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

/* ---- fields of single families ------------------------------------------- */

/* Sets query_pre_attn_scalar, by whose root attention scores are divided; only
 * in the largest models it is not head_dim. */
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

/* Corrects the fields about experts; llama's family with experts is Mixtral. */
static void set_experts(struct kv_gguf_maker *k)
{
    if (k->arch->shared_alone) {
        if (!kv_gguf_maker_int(k, "num_experts"))
            kv_gguf_set_int(k->config, "num_experts", 0);
    } else if (kv_gguf_maker_int(k, "num_experts") < 1) {
        json_object_del(k->config, "num_experts");
        json_object_del(k->config, "num_experts_per_tok");
    } else if (!strcmp(k->f->name, "llama")) {
        json_object_set_new(k->config, "architectures",
                            json_pack("[s]", "MixtralForCausalLM"));
        json_object_set_new(k->config, "model_type", json_string("mixtral"));
    }
    if (kv_gguf_of_family("qwen3moe qwen3vlmoe", k->f->name))
        set_flag(k, "norm_topk_prob", true);
}

/* Detects Falcon's new decoder: it has separate norms for attention and MLP, or
 * one norm for both and several KV heads. */
static void set_falcon(const struct kv_gguf_maker *k)
{
    const bool two = kv_gguf_tensor(k->m, "blk.0.attn_norm_2.weight");
    const bool several = kv_gguf_maker_int(k, "num_key_value_heads") > 1;

    set_flag(k, "new_decoder_architecture", two || several);
    if (two || several)
        json_object_set_new(k->config, "num_ln_in_parallel_attn",
                            json_integer(two ? 2 : 1));
}

/* Fills MPT's object attn_config. */
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

/* Whether this is the first name that the architecture reads for its field. */
static bool is_first(const struct kv_own_field *all,
                     const struct kv_own_field *o)
{
    for (; all < o; all++)
        if (all->means && all->only != kv_unread &&
            !strcmp(all->means, o->means))
            return false;
    return true;
}

/* Renames each field to the first name that the architecture has for it. */
static void set_names(const struct kv_gguf_maker *k)
{
    for (const struct kv_own_field *o = k->arch->fields; o && o->name; o++) {
        const bool moves = o->means && o->only != kv_unread;
        json_t *value = moves ? json_object_get(k->config, o->means) : NULL;

        if (!value || json_object_get(k->config, o->name) ||
            !is_first(k->arch->fields, o))
            continue;
        json_object_set(k->config, o->name, value);
        json_object_del(k->config, o->means);
    }
}

static int set_all(struct kv_gguf_maker *k, struct kv_err *e)
{
    const struct kv_gguf_family *f = k->f;

    if (set_fields(k, e) || set_sizes(k, e) || set_windows(k, e) ||
        kv_gguf_mixer(k, e) || kv_gguf_kind(k, e) ||
        (k->arch->positions == KV_ROPE && !kv_gguf_by_kind(k) &&
         !k->arch->halves && kv_gguf_rope(k, e)) ||
        (!strcmp(f->name, "mpt") && set_mpt(k, e)))
        return -1;
    set_flags(k);
    set_experts(k);
    if (!strcmp(f->name, "falcon"))
        set_falcon(k);
    if (!strcmp(f->name, "lfm2")) /* the key has the MLP's true size */
        set_flag(k, "block_auto_adjust_ff_dim", false);
    if (!strncmp(f->name, "gemma", 5) && f->pattern && !k->arch->by_kind)
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
