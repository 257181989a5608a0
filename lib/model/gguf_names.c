#include "lib/base/alloc.h"
#include "lib/model/arch.h"
#include "lib/model/gguf_model.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_gguf_family families[] = {
    {.name = "llama",
     .arch = "LlamaForCausalLM",
     .model_type = "llama",
     .sliding = {"MistralForCausalLM", "mistral"},
     .interleaved = true,
     .bias = "attention_bias"},
    {.name = "qwen2", .arch = "Qwen2ForCausalLM", .model_type = "qwen2"},
    {.name = "qwen3",
     .arch = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .bias = "attention_bias"},
    {.name = "gemma",
     .arch = "GemmaForCausalLM",
     .model_type = "gemma",
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "gemma2",
     .arch = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .pattern = 2,
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "gemma3",
     .arch = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .pattern = 6,
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "phi3", .arch = "Phi3ForCausalLM", .model_type = "phi3"},
    {.name = "granite",
     .arch = "GraniteForCausalLM",
     .model_type = "granite",
     .interleaved = true,
     .bias = "attention_bias"},
    {.name = "smollm3",
     .arch = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .interleaved = true,
     .bias = "attention_bias"},
    {.name = "olmo2",
     .arch = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .sliding = {"Olmo3ForCausalLM", "olmo3"},
     .pattern = 4,
     .bias = "attention_bias"},
    {.name = "exaone4",
     .arch = "Exaone4ForCausalLM",
     .model_type = "exaone4",
     .pattern = 4},
    {.name = "stablelm",
     .arch = "StableLmForCausalLM",
     .model_type = "stablelm",
     .bias = "use_qkv_bias",
     .qk_norm = "qk_layernorm"},
    {.name = "starcoder2",
     .arch = "Starcoder2ForCausalLM",
     .model_type = "starcoder2",
     .bias = "use_bias"},
    {.name = "nemotron",
     .arch = "NemotronForCausalLM",
     .model_type = "nemotron",
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "command-r",
     .arch = "CohereForCausalLM",
     .model_type = "cohere",
     .bias = "attention_bias",
     .qk_norm = "use_qk_norm"},
    {.name = "cohere2",
     .arch = "Cohere2ForCausalLM",
     .model_type = "cohere2",
     .pattern = 4,
     .bias = "attention_bias"},
    {.name = "qwen3moe",
     .arch = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .bias = "attention_bias"},
    {.name = "gpt2", .arch = "GPT2LMHeadModel", .model_type = "gpt2"},
    {.name = "bloom", .arch = "BloomForCausalLM", .model_type = "bloom"},
    {.name = "mpt", .arch = "MptForCausalLM", .model_type = "mpt"},
    {.name = "gptneox", .arch = "GPTNeoXForCausalLM", .model_type = "gpt_neox"},
    {.name = "falcon", .arch = "FalconForCausalLM", .model_type = "falcon"},
    {.name = "phi2", .arch = "PhiForCausalLM", .model_type = "phi"},
    {.name = "glm4",
     .arch = "Glm4ForCausalLM",
     .model_type = "glm4",
     .bias = "attention_bias"},
    {.name = "gpt-oss",
     .arch = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .pattern = 2,
     .bias = "attention_bias"},
    {.name = "hunyuan-dense",
     .arch = "HunYuanDenseV1ForCausalLM",
     .model_type = "hunyuan_v1_dense",
     .bias = "attention_bias"},
    {.name = "deepseek2",
     .arch = "DeepseekV2ForCausalLM",
     .model_type = "deepseek_v2"},
    {.name = "lfm2", .arch = "Lfm2ForCausalLM", .model_type = "lfm2"},
};

enum { N_FAMILIES = sizeof(families) / sizeof(*families) };

bool kv_gguf_interleaves(const char *arch)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
        const struct kv_gguf_family *f = &families[i];

        if (f->interleaved && (!strcmp(f->arch, arch) ||
                               (f->sliding[0] && !strcmp(f->sliding[0], arch))))
            return true;
    }
    /* llama's family too, with experts */
    return !strcmp(arch, "MixtralForCausalLM");
}

int kv_gguf_family(const struct kv_gguf_model *m,
                   const struct kv_gguf_family **family, struct kv_err *e)
{
    static const char key[] = "general.architecture";
    const struct kv_gguf *g = &m->part[0];
    const struct kv_gguf_value *v;
    const struct kv_arch *arch;
    char known[512] = "";
    const char *name;
    size_t n;

    if (kv_gguf_get(g, key, KV_GGUF_TEXT, false, &v, e))
        return -1;
    if (!v)
        return kv_fail(e, "%s: key %s is missing", g->path, key);
    name = kv_gguf_text(v, 0, &n);
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const size_t at = strlen(known);

        *family = &families[i];
        if (strlen(families[i].name) == n && !memcmp(families[i].name, name, n))
            return 0;
        if (!kv_arch_find(&arch, families[i].arch, NULL, NULL))
            snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "",
                     families[i].name);
    }
    return kv_fail(e, "%s: unknown architecture %.*s (known: %s)", g->path,
                   (int)(n < 64 ? n : 64), name, known);
}

const char *kv_gguf_mixture(const struct kv_gguf_model *m)
{
    static const char *const mixtures[] = {
        [0] = "f32",      [1] = "f16",     [2] = "q4_0",    [3] = "q4_1",
        [7] = "q8_0",     [8] = "q5_0",    [9] = "q5_1",    [10] = "q2_k",
        [11] = "q3_k_s",  [12] = "q3_k_m", [13] = "q3_k_l", [14] = "q4_k_s",
        [15] = "q4_k_m",  [16] = "q5_k_s", [17] = "q5_k_m", [18] = "q6_k",
        [19] = "iq2_xxs", [20] = "iq2_xs", [21] = "q2_k_s", [22] = "iq3_xs",
        [23] = "iq3_xxs", [24] = "iq1_s",  [25] = "iq4_nl", [26] = "iq3_s",
        [27] = "iq3_m",   [28] = "iq2_s",  [29] = "iq2_m",  [30] = "iq4_xs",
        [31] = "iq1_m",   [32] = "bf16",   [36] = "tq1_0",  [37] = "tq2_0",
        [38] = "mxfp4",   [39] = "nvfp4",
    };
    const struct kv_gguf_value *v =
        kv_gguf_find(&m->part[0], "general.file_type");
    const int64_t type =
        v && v->kind == KV_GGUF_INT && v->n ? kv_gguf_int(v, 0) : -1;
    const int64_t n = sizeof(mixtures) / sizeof(*mixtures);

    return type >= 0 && type < n ? mixtures[type] : NULL;
}

/* Names before .weight or .bias; in a layer, after blk.N.  family: NULL for all
 * families without an earlier row of their own. */
static const struct {
    const char *from, *family;
    enum kv_part part;
} parts[] = {
    {"attn_norm", "falcon", KV_P_MLP_NORM}, /* the norm of attention, if it is
                                             * the only one */
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
    {"post_attention_norm", "gpt-oss", KV_P_MLP_NORM},
    {"post_attention_norm", NULL, KV_P_ATTN_OUT_NORM},
    {"ffn_norm", NULL, KV_P_MLP_NORM},
    {"post_ffw_norm", NULL, KV_P_MLP_OUT_NORM},
    {"ffn_gate", NULL, KV_P_GATE},
    {"ffn_up", NULL, KV_P_UP},
    {"ffn_down", NULL, KV_P_DOWN},
    {"shortconv.conv", NULL, KV_P_MIX_CONV},
    {"shortconv.in_proj", NULL, KV_P_MIX},
    {"shortconv.out_proj", NULL, KV_P_MIX_OUT},
    {"ffn_gate_inp", NULL, KV_P_ROUTER},
    {"exp_probs_b", NULL, KV_P_CHOICE_BIAS},
    {"ffn_gate_shexp", NULL, KV_P_SHARED_GATE},
    {"ffn_up_shexp", NULL, KV_P_SHARED_UP},
    {"ffn_down_shexp", NULL, KV_P_SHARED_DOWN},
    {"ffn_gate_exps", NULL, KV_P_GATE},
    {"ffn_up_exps", NULL, KV_P_UP},
    {"ffn_down_exps", NULL, KV_P_DOWN},
};

/* Those outside of layers: which member of struct kv_tensor_names; family: as
 * above. */
static const struct {
    const char *from, *family;
    size_t member;
} tops[] = {
    {"token_embd", NULL, offsetof(struct kv_tensor_names, embed)},
    {"token_embd_norm", "lfm2", offsetof(struct kv_tensor_names, norm)},
    {"token_embd_norm", NULL, offsetof(struct kv_tensor_names, embed_norm)},
    {"position_embd", NULL, offsetof(struct kv_tensor_names, positions)},
    {"output_norm", NULL, offsetof(struct kv_tensor_names, norm)},
    {"output", NULL, offsetof(struct kv_tensor_names, head)},
};

/* Read with the keys. */
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

static bool is_norm(const char *part, size_t n)
{
    return n >= 4 && !memcmp(part + n - 4, "norm", 4);
}

static bool is(const char *name, const char *part, size_t n)
{
    return strlen(name) == n && !memcmp(name, part, n);
}

/* "ffn_up.3" of a model of experts, as older converters wrote it: cuts n to
 * "ffn_up" and gives the expert's number and a dot; else "". */
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

/* Whether q, k and v have one name; latent attention has no k. */
static bool one_qkv(const struct kv_arch *a)
{
    const char *q = a->names->part[KV_P_Q], *k = a->names->part[KV_P_K];

    return k && !strcmp(q, k);
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
            (!tops[i].family || !strcmp(tops[i].family, f->name))) {
            memcpy(&name, (const char *)a->names + tops[i].member,
                   sizeof(name));
            return name;
        }
    if (is("attn_qkv", part, n) && !one_qkv(a))
        return KV_GGUF_QKV;
    if (a->latent.rank && is("attn_k_b", part, n))
        return KV_GGUF_K_UP;
    if (a->latent.rank && is("attn_v_b", part, n))
        return KV_GGUF_V_UP;
    for (size_t i = 0; i < COUNT(parts) && *layer; i++)
        if (is(parts[i].from, part, n) &&
            (!parts[i].family || !strcmp(parts[i].family, f->name)) &&
            (!expert || a->names->experts))
            return a->names->part[a->one_norm && a->parallel &&
                                          parts[i].part == KV_P_MLP_NORM
                                      ? KV_P_ATTN_NORM
                                      : parts[i].part];
    return NULL;
}

/* The prefix of a part's name in a layer: for experts, and for the MLP that
 * other layers have instead. */
static const char *before(const struct kv_arch *a, const char *part, size_t n,
                          bool expert)
{
    const bool mlp = is("ffn_gate", part, n) || is("ffn_up", part, n) ||
                     is("ffn_down", part, n);
    const char *name = expert ? a->names->experts : mlp ? a->names->dense : "";

    return name ? name : "";
}

/* Its name in transformers; empty for one that the keys' reader has read. */
static int new_name(const struct kv_weight *w, const struct kv_arch *a,
                    const struct kv_gguf_family *f, char *to, size_t bytes,
                    struct kv_err *e)
{
    char layer[16], number[16];
    const char *part = skip_layer(w->name, layer);
    const char *dot = strrchr(part, '.'), *name, *end;
    size_t n = dot ? (size_t)(dot - part) : 0;
    bool expert;

    *to = 0;
    for (size_t i = 0; i < COUNT(keys); i++)
        if (is(keys[i], part, n))
            return 0;
    skip_expert(a, part, &n, number);
    expert = *number || (n > 5 && !memcmp(part + n - 5, "_exps", 5));
    name = find_name(a, f, part, n, layer, expert);
    if (!name || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return kv_fail(e,
                       "%s: tensor %s is not known: it could change the "
                       "numbers",
                       w->path, w->name);
    end = strstr(name, ".weight"); /* sinks have none */
    snprintf(to, bytes, "%s%s%s%s%s%s%.*s%s",
             name == a->names->head ? "" : a->names->prefix,
             *layer ? a->names->layers : "", layer, *layer ? "." : "",
             before(a, part, n, expert), number,
             (int)(end ? (size_t)(end - name) : strlen(name)), name,
             end ? dot : "");
    return 0;
}

/* head_dim: rows of a head of q and k. */
static int rename_one(struct kv_weight *w, const struct kv_arch *a,
                      const struct kv_gguf_family *f, size_t head_dim,
                      struct kv_err *e)
{
    char layer[16], to[160];
    const char *part = skip_layer(w->name, layer);
    const char *dot = strrchr(part, '.');
    const size_t n = dot ? (size_t)(dot - part) : 0;

    if (new_name(w, a, f, to, sizeof(to), e))
        return -1;
    if (is_norm(part, n) && !strcmp(dot, ".weight"))
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

/* The name that becomes `to` in transformers, of a part of this layer, or,
 * layer "", outside of them. */
static bool old_name(const struct kv_arch *a, const struct kv_gguf_family *f,
                     const char *layer, const char *to, char *from,
                     size_t bytes)
{
    const size_t n = *layer ? COUNT(parts) : COUNT(tops);
    const bool fused = one_qkv(a);
    char made[160];

    for (size_t i = 0; i < 2 * n; i++) {
        const char *part = *layer ? parts[i / 2].from : tops[i / 2].from;
        const struct kv_weight w = {.name = from, .path = ""};

        snprintf(from, bytes, "%s%s%s%s.%s", *layer ? "blk." : "", layer,
                 *layer ? "." : "", part, i % 2 ? "bias" : "weight");
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
