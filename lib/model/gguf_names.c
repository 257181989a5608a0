#include "lib/base/alloc.h"
#include "lib/model/arch.h"
#include "lib/model/gguf_model.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names before .weight or .bias; in a layer, after blk.N.  family: names
 * between blanks; NULL for all families without an earlier row of their own. */
static const struct {
    const char *from, *family;
    enum kv_part part;
} parts[] = {
    {"attn_norm", "falcon", KV_P_MLP_NORM}, /* it is also attention's norm, if
                                             * there is only one */
    {"attn_norm", NULL, KV_P_ATTN_NORM},
    {"attn_norm_2", NULL, KV_P_ATTN_NORM},
    {"attn_q", NULL, KV_P_Q},
    {"attn_k", NULL, KV_P_K},
    {"attn_v", NULL, KV_P_V},
    {"attn_qkv", NULL, KV_P_Q},
    {"attn_output", NULL, KV_P_O},
    {"attn_q_norm", NULL, KV_P_Q_NORM},
    {"attn_k_norm", NULL, KV_P_K_NORM},
    {"attn_sinks", NULL, KV_P_SINKS},
    {"attn_q_a", NULL, KV_P_Q_DOWN},
    {"attn_q_a_norm", NULL, KV_P_Q_DOWN_NORM},
    {"attn_q_b", NULL, KV_P_Q_UP},
    {"attn_kv_a_mqa", NULL, KV_P_KV_DOWN},
    {"attn_kv_a_norm", NULL, KV_P_KV_DOWN_NORM},
    {"attn_kv_b", NULL, KV_P_KV_UP},
    {"post_attention_norm", "gpt-oss qwen3next qwen35 qwen35moe",
     KV_P_MLP_NORM},
    {"post_attention_norm", NULL, KV_P_ATTN_OUT_NORM},
    {"ffn_norm", NULL, KV_P_MLP_NORM},
    {"post_ffw_norm", NULL, KV_P_MLP_OUT_NORM},
    {"ffn_gate", NULL, KV_P_GATE},
    {"ffn_up", NULL, KV_P_UP},
    {"ffn_down", NULL, KV_P_DOWN},
    {"shortconv.conv", NULL, KV_P_MIX_CONV},
    {"shortconv.in_proj", NULL, KV_P_MIX},
    {"shortconv.out_proj", NULL, KV_P_MIX_OUT},
    {"ssm_in", NULL, KV_P_MIX},
    {"ssm_ba", NULL, KV_P_MIX_B},
    {"ssm_beta", NULL, KV_P_MIX_B},
    {"ssm_alpha", NULL, KV_P_MIX_A},
    {"attn_gate", NULL, KV_P_MIX_Z},
    {"ssm_out", NULL, KV_P_MIX_OUT},
    {"ssm_conv1d", NULL, KV_P_MIX_CONV},
    {"ssm_a", NULL, KV_P_MIX_DECAY},
    {"ssm_dt", NULL, KV_P_MIX_STEP},
    {"ssm_d", NULL, KV_P_MIX_SKIP},
    {"ssm_norm", NULL, KV_P_MIX_NORM},
    {"inp_gate", NULL, KV_P_LAYER_GATE},
    {"proj", NULL, KV_P_LAYER_OUT},
    {"post_norm", NULL, KV_P_LAYER_OUT_NORM},
    {"layer_output_scale", NULL, KV_P_LAYER_SCALE},
    {"laurel_l", NULL, KV_P_LAUREL_DOWN},
    {"laurel_r", NULL, KV_P_LAUREL_UP},
    {"laurel_post_norm", NULL, KV_P_LAUREL_NORM},
    {"altup_router", NULL, KV_P_ALTUP_ROUTER},
    {"altup_router_norm", NULL, KV_P_ALTUP_NORM},
    {"altup_predict_coef", NULL, KV_P_ALTUP_PREDICT},
    {"altup_correct_coef", NULL, KV_P_ALTUP_CORRECT},
    {"altup_correct_scale", NULL, KV_P_ALTUP_SCALE},
    {"pre_ffw_norm_2", NULL, KV_P_EXPERTS_NORM},
    {"post_ffw_norm_1", NULL, KV_P_SHARED_OUT_NORM},
    {"post_ffw_norm_2", NULL, KV_P_EXPERTS_OUT_NORM},
    {"ffn_gate_inp.scale", NULL, KV_P_ROUTER_NORM},
    {"ffn_down_exps.scale", NULL, KV_P_EXPERT_SCALE},
    {"ffn_gate_inp", NULL, KV_P_ROUTER},
    {"ffn_gate_inp_shexp", NULL, KV_P_SHARED_MIX},
    {"exp_probs_b", NULL, KV_P_CHOICE_BIAS},
    {"ffn_gate_shexp", NULL, KV_P_SHARED_GATE},
    {"ffn_up_shexp", NULL, KV_P_SHARED_UP},
    {"ffn_down_shexp", NULL, KV_P_SHARED_DOWN},
    {"ffn_gate_exps", NULL, KV_P_GATE},
    {"ffn_up_exps", NULL, KV_P_UP},
    {"ffn_down_exps", NULL, KV_P_DOWN},
};

/* Names of tensors outside of layers, and their member of struct
 * kv_tensor_names; family: as above. */
static const struct {
    const char *from, *family;
    size_t member;
} tops[] = {
    {"token_embd", NULL, offsetof(struct kv_tensor_names, embed)},
    {"token_embd_norm", "lfm2 lfm2moe", offsetof(struct kv_tensor_names, norm)},
    {"token_embd_norm", NULL, offsetof(struct kv_tensor_names, embed_norm)},
    {"position_embd", NULL, offsetof(struct kv_tensor_names, positions)},
    {"output_norm", NULL, offsetof(struct kv_tensor_names, norm)},
    {"per_layer_token_embd", NULL,
     offsetof(struct kv_tensor_names, layer_embed)},
    {"per_layer_model_proj", NULL, offsetof(struct kv_tensor_names, layer_in)},
    {"per_layer_proj_norm", NULL,
     offsetof(struct kv_tensor_names, layer_in_norm)},
    {"altup_proj", NULL, offsetof(struct kv_tensor_names, spread)},
    {"altup_unembd_proj", NULL, offsetof(struct kv_tensor_names, gather)},
    {"output", NULL, offsetof(struct kv_tensor_names, head)},
};

/* Tensors that gguf_rope.c and gguf_kind.c read with the keys. */
static const char *const keys[] = {"rope_freqs", "rope_factors_long",
                                   "rope_factors_short"};

#define COUNT(x) (sizeof(x) / sizeof(*(x)))

/* Splits "blk.12.attn_q.weight" into 12, the layer as written, and the rest. */
static const char *skip_layer(const char *name, char layer[16])
{
    size_t digits;

    *layer = 0;
    if (strncmp(name, "blk.", 4) != 0)
        return name;
    digits = strspn(name + 4, "0123456789");
    if (!digits || digits > 9 || name[4 + digits] != '.')
        return name;
    snprintf(layer, 16, "%.*s", (int)digits, name + 4);
    return name + 4 + digits + 1;
}

static bool is(const char *name, const char *part, size_t n)
{
    return strlen(name) == n && !memcmp(name, part, n);
}

/* Whether the part is a norm that multiplies by 1 + weight in classes with such
 * norms. */
static bool is_norm(const char *part, size_t n)
{
    return n >= 4 && !memcmp(part + n - 4, "norm", 4) &&
           !is("ssm_norm", part, n);
}

/* Splits the name of one expert's part, such as "ffn_up.3", as older converters
 * wrote it: cuts n to "ffn_up" and sets expert to its number and a dot.  For
 * other names expert is "". */
static void skip_expert(const struct kv_arch *a, const char *part, size_t *n,
                        char expert[16])
{
    size_t at = *n;

    *expert = 0;
    while (at && part[at - 1] >= '0' && part[at - 1] <= '9')
        at--;
    if (!a->names->experts || at < 2 || part[at - 1] != '.' || at == *n ||
        *n - at > 9)
        return;
    snprintf(expert, 16, "%.*s.", (int)(*n - at), part + at);
    *n = at - 1;
}

/* Whether one tensor holds q, k and v; latent attention has no k. */
static bool one_qkv(const struct kv_arch *a)
{
    const char *q = a->names->part[KV_P_Q], *k = a->names->part[KV_P_K];

    return k && !strcmp(q, k);
}

/* The name, after the layer's, of a part that GGUF files store in another form
 * than a folder does; NULL: the part is not one of these. */
static const char *own_name(const struct kv_arch *a,
                            const struct kv_gguf_family *f, const char *part,
                            size_t n)
{
    static const char *const apart[] = {KV_GGUF_GATE, KV_GGUF_UP,
                                        KV_GGUF_SHARED_GATE, KV_GGUF_SHARED_UP},
                             *const experts[] = {KV_GGUF_GATES, KV_GGUF_UPS};
    const bool all = a->names->stacked[0] && !a->names->experts;

    if (is("attn_qkv", part, n) && !one_qkv(a))
        return KV_GGUF_QKV;
    if (a->latent.rank && is("attn_k_b", part, n))
        return KV_GGUF_K_UP;
    if (a->latent.rank && is("attn_v_b", part, n))
        return KV_GGUF_V_UP;
    for (size_t i = 0; i < COUNT(apart) && f->apart; i++)
        if (!strncmp(apart[i], part, n) && apart[i][n] == '.')
            return apart[i];
    for (size_t i = 0; i < COUNT(experts) && all; i++)
        if (!strncmp(experts[i], part, n) && experts[i][n] == '.')
            return experts[i];
    return is("ffn_gate_up_exps", part, n)       ? a->names->stacked[0]
           : all && is("ffn_down_exps", part, n) ? a->names->stacked[1]
                                                 : NULL;
}

/* The architecture's name for a part of a layer or, with layer "", for a part
 * outside of layers; NULL: it has none.  expert: the part belongs to
 * experts. */
static const char *find_name(const struct kv_arch *a,
                             const struct kv_gguf_family *f, const char *part,
                             size_t n, const char *layer, bool expert)
{
    const char *name;

    for (size_t i = 0; i < COUNT(tops) && !*layer; i++)
        if (is(tops[i].from, part, n) &&
            kv_gguf_of_family(tops[i].family, f->name)) {
            memcpy(&name, (const char *)a->names + tops[i].member,
                   sizeof(name));
            return name;
        }
    for (size_t i = 0; i < COUNT(parts) && *layer; i++) {
        const enum kv_part found = parts[i].part;

        if (is(parts[i].from, part, n) &&
            kv_gguf_of_family(parts[i].family, f->name) &&
            (!expert || a->names->experts))
            return a->names
                ->part[a->one_norm && a->parallel && found == KV_P_MLP_NORM
                           ? KV_P_ATTN_NORM
                           : found];
    }
    return NULL;
}

/* The words before a part's name in a layer: those of experts, those of an MLP
 * in models with experts, or "". */
static const char *before(const struct kv_arch *a, const char *part, size_t n,
                          bool expert)
{
    const bool mlp = is("ffn_gate", part, n) || is("ffn_up", part, n) ||
                     is("ffn_down", part, n);
    const char *name = expert ? a->names->experts : mlp ? a->names->dense : "";

    return name ? name : "";
}

/* Returns the ending, .weight or .bias, of a part's name; its end for parts
 * without an ending; and part itself for an ending that the part must not
 * have. */
static const char *skip_part(const char *part)
{
    static const char *const whole[] = {"ssm_a", "ssm_d", "ffn_gate_inp.scale",
                                        "ffn_down_exps.scale"};
    const char *dot = strrchr(part, '.');
    const bool ends = dot && (!strcmp(dot, ".weight") || !strcmp(dot, ".bias"));

    for (size_t i = 0; i < COUNT(whole); i++) {
        if (!strcmp(whole[i], part))
            return part + strlen(part);
        if (ends && is(whole[i], part, (size_t)(dot - part)))
            return part;
    }
    return ends ? dot : part;
}

/* to: w's name in transformers; empty for a tensor that was read with the
 * keys. */
static int new_name(const struct kv_weight *w, const struct kv_arch *a,
                    const struct kv_gguf_family *f, char *to, size_t bytes,
                    struct kv_err *e)
{
    char layer[16], number[16];
    const char *part = skip_layer(w->name, layer);
    const char *ending = skip_part(part), *own, *name, *end;
    size_t n = (size_t)(ending - part);
    bool expert;

    *to = 0;
    if (a->more_layers && !strncmp(part, "nextn.", 6)) {
        snprintf(to, bytes, "%s%s%s.%s", a->names->prefix, a->names->layers,
                 layer, part); /* tensors of a block that does not run */
        return 0;
    }
    for (size_t i = 0; i < COUNT(keys); i++)
        if (is(keys[i], part, n))
            return 0;
    skip_expert(a, part, &n, number);
    expert = *number || (n > 5 && !memcmp(part + n - 5, "_exps", 5));
    own = *layer ? own_name(a, f, part, n) : NULL;
    name = own ? own : find_name(a, f, part, n, layer, expert);
    if (!name)
        return kv_fail(e,
                       "%s: tensor %s is not known: it could change the "
                       "numbers",
                       w->path, w->name);
    end = strstr(name, ".weight"); /* the name of sinks lacks .weight */
    snprintf(to, bytes, "%s%s%s%s%s%s%.*s%s",
             name == a->names->head ? "" : a->names->prefix,
             *layer ? a->names->layers : "", layer, *layer ? "." : "",
             own ? "" : before(a, part, n, expert), number,
             (int)(end ? (size_t)(end - name) : strlen(name)), name,
             end ? ending : "");
    return 0;
}

/* Renames one tensor; head_dim: the rows of a head in q and k. */
static int rename_one(struct kv_weight *w, const struct kv_arch *a,
                      const struct kv_gguf_family *f, size_t head_dim,
                      struct kv_err *e)
{
    char layer[16], to[160];
    const char *part = skip_layer(w->name, layer);
    const char *ending = skip_part(part);
    const size_t n = (size_t)(ending - part);

    if (new_name(w, a, f, to, sizeof(to), e))
        return -1;
    if (is_norm(part, n) && !strcmp(ending, ".weight"))
        w->add = f->norm_add;
    if (f->interleaved && (is("attn_q", part, n) || is("attn_k", part, n) ||
                           is("attn_qkv", part, n)))
        w->head = head_dim;
    if (w->head && (w->head % 2 || !w->n_dims || w->dims[0] % w->head))
        return kv_fail(e,
                       "%s: tensor %s has %zu rows, which are no heads of %zu",
                       w->path, w->name, w->n_dims ? w->dims[0] : 1, w->head);
    free((void *)(uintptr_t)w->name);
    w->name = kv_strdup(to);
    return 0;
}

static int find_both(const struct kv_gguf_model *m, const json_t *config,
                     const struct kv_gguf_family **family,
                     const struct kv_arch **arch, struct kv_err *e)
{
    const char *name = json_string_value(
        json_array_get(json_object_get(config, "architectures"), 0));

    return kv_gguf_family(m, family, e) || kv_arch_find(arch, name, config, e)
               ? -1
               : 0;
}

int kv_gguf_rename(struct kv_gguf_model *m, const json_t *config,
                   struct kv_err *e)
{
    const size_t head_dim =
        (size_t)json_integer_value(json_object_get(config, "head_dim"));
    const struct kv_gguf_family *family;
    const struct kv_arch *arch;

    if (find_both(m, config, &family, &arch, e))
        return -1;
    for (size_t p = 0; p < m->n_parts; p++)
        for (size_t i = 0; i < m->part[p].n_tensors; i++)
            if (rename_one(&m->part[p].tensor[i], arch, family, head_dim, e))
                return -1;
    return 0;
}

/* from: the file's name of the tensor that transformers names `to`, in this
 * layer or, with layer "", outside of layers.  Returns whether there is one. */
static bool old_name(const struct kv_arch *a, const struct kv_gguf_family *f,
                     const char *layer, const char *to, char *from,
                     size_t bytes)
{
    const size_t n = *layer ? COUNT(parts) : COUNT(tops);
    const bool fused = one_qkv(a);
    char made[160];

    for (size_t i = 0; i < 3 * n; i++) {
        static const char *const endings[] = {".weight", ".bias", ""};
        const char *part = *layer ? parts[i / 3].from : tops[i / 3].from;
        const struct kv_weight w = {.name = from, .path = ""};

        snprintf(from, bytes, "%s%s%s%s%s", *layer ? "blk." : "", layer,
                 *layer ? "." : "", part, endings[i % 3]);
        if (!(fused && !strcmp(part, "attn_q")) &&
            !new_name(&w, a, f, made, sizeof(made), NULL) && !strcmp(made, to))
            return true;
    }
    return false;
}

void kv_gguf_name_tensor(const struct kv_gguf_model *m, const json_t *config,
                         const char *path, struct kv_err *e)
{
    const size_t start = strlen(path) + strlen(": tensor ");
    const struct kv_gguf_family *f;
    const struct kv_arch *a;
    struct kv_err said = *e;
    char to[160], from[160], layer[16] = "";
    const char *at;
    size_t n;

    if (strncmp(said.msg, path, strlen(path)) != 0 ||
        strncmp(said.msg + strlen(path), ": tensor ", 9) != 0 ||
        find_both(m, config, &f, &a, NULL))
        return;
    n = strcspn(said.msg + start, " ,:");
    snprintf(to, sizeof(to), "%.*s", (int)n, said.msg + start);
    at = strstr(to, a->names->layers);
    if (at)
        snprintf(layer, sizeof(layer), "%.*s",
                 (int)strspn(at + strlen(a->names->layers), "0123456789"),
                 at + strlen(a->names->layers));
    if (old_name(a, f, layer, to, from, sizeof(from)))
        kv_fail(e, "%s: tensor %s (%s)%s", path, from, to,
                said.msg + start + n);
}
