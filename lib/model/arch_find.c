#include "lib/model/arch_names.h"

#include <stdio.h>
#include <string.h>

static const struct kv_wrapper wrappers[] = {
    {"Gemma3ForConditionalGeneration", "gemma3", "gemma3_text",
     "Gemma3ForCausalLM", NULL, false},
    {"Gemma3nForConditionalGeneration", "gemma3n", "gemma3n_text",
     "Gemma3nForCausalLM", kv_fields_of_gemma3n, false},
    {"Gemma4ForConditionalGeneration", "gemma4", "gemma4_text",
     "Gemma4ForCausalLM", kv_fields_of_gemma4, false},
    {"Glm4vForConditionalGeneration", "glm4v", "glm4v_text", "Glm4vForCausalLM",
     kv_fields_of_glm4v, false},
    {"Glm4vMoeForConditionalGeneration", "glm4v_moe", "glm4v_moe_text",
     "Glm4MoeForCausalLM", kv_fields_of_glm4_moe, false},
    {"InternVLForConditionalGeneration", "internvl", "qwen3",
     "Qwen3ForCausalLM", NULL, false},
    {"InternVLForConditionalGeneration", "internvl", "qwen2",
     "Qwen2ForCausalLM", NULL, false},
    {"InternVLForConditionalGeneration", "internvl", "qwen3_moe",
     "Qwen3MoeForCausalLM", kv_fields_of_qwen3_moe, false},
    {"KimiVLForConditionalGeneration", "kimi_vl", "deepseek_v3",
     "DeepseekV3ForCausalLM", kv_fields_of_deepseek_v3, false},
    {"KimiK25ForConditionalGeneration", "kimi_k25", "kimi_k2",
     "DeepseekV3ForCausalLM", kv_fields_of_deepseek_v3, false},
    {"KimiK25ForConditionalGeneration", "kimi_k25", "deepseek_v3",
     "DeepseekV3ForCausalLM", kv_fields_of_deepseek_v3, false},
    {"Lfm2VlForConditionalGeneration", "lfm2_vl", "lfm2", "Lfm2ForCausalLM",
     kv_fields_of_lfm2, false},
    {"Mistral3ForConditionalGeneration", "mistral3", "mistral",
     "MistralForCausalLM", NULL, false},
    {"Mistral3ForConditionalGeneration", "mistral3", "ministral3",
     "Ministral3ForCausalLM", NULL, false},
    {"Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl_text",
     "Qwen2ForCausalLM", NULL, true},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2_5_vl_text",
     "Qwen2ForCausalLM", NULL, true},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl_text",
     "Qwen3ForCausalLM", NULL, false},
    {"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe_text",
     "Qwen3VLMoeForCausalLM", kv_fields_of_qwen3_moe, false},
    {"Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5_text",
     "Qwen3_5ForCausalLM", kv_fields_of_qwen3_5, false},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe_text",
     "Qwen3_5MoeForCausalLM", kv_fields_of_qwen3_5_moe, false},
};

const struct kv_wrapper *kv_arch_wrapper(const char *name, const char *text)
{
    const struct kv_wrapper *first = NULL;

    for (size_t i = sizeof(wrappers) / sizeof(*wrappers); i-- > 0;)
        if (!strcmp(wrappers[i].name, name)) {
            first = &wrappers[i];
            if (text && !strcmp(wrappers[i].text, text))
                return first;
        }
    return first;
}

/* Whether the class has a form of multi-head latent attention that is not
 * implemented; its cache holds neither K nor V. */
static bool is_latent(const char *name)
{
    static const char *const names[] = {"MiniCPM3ForCausalLM",
                                        "DeepseekV32ForCausalLM"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

static bool is_set(const json_t *variant)
{
    return json_is_true(variant) || json_integer_value(variant) == 1;
}

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);

    return n >= m && !strcmp(name + n - m, with);
}

static const struct kv_arch *const tables[] = {kv_archs, kv_archs_later};
enum { TABLES = sizeof(tables) / sizeof(*tables) };

/* The row of this name, or of config's model_type; NULL: there is none. */
static const struct kv_arch *find(const char *name, const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const bool by_type = type && ends(name, "ForCausalLM");

    for (size_t t = 0; t < TABLES; t++)
        for (const struct kv_arch *a = tables[t]; a->name; a++)
            if (!strcmp(a->name, name))
                return a;
    for (size_t t = 0; by_type && t < TABLES; t++)
        for (const struct kv_arch *a = tables[t]; a->name; a++)
            if (!strcmp(a->model_type, type))
                return a;
    return NULL;
}

static int fail_unknown(const char *name, struct kv_err *e)
{
    char known[3072] = "";

    for (size_t t = 0; t < TABLES; t++)
        for (const struct kv_arch *a = tables[t]; a->name; a++)
            if (a == tables[t] || !a[-1].variant)
                snprintf(known + strlen(known), sizeof(known) - strlen(known),
                         "%s%s", *known ? ", " : "", a->name);
    return kv_fail(e, "unknown architecture %s (known: %s)", name, known);
}

int kv_arch_find(const struct kv_arch **arch, const char *name,
                 const json_t *config, struct kv_err *e)
{
    *arch = find(name, config);
    while (*arch && (*arch)->variant &&
           is_set(json_object_get(config, (*arch)->variant)))
        ++*arch;
    if (*arch)
        return 0;
    if (is_latent(name))
        return kv_fail(e,
                       "%s is multi-head latent attention, whose cache holds a "
                       "latent and not keys and values: not implemented",
                       name);
    return fail_unknown(name, e);
}
