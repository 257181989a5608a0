/* Architectures of llama.cpp. */
#include "lib/model/arch.h"
#include "lib/model/gguf_model.h"

#include <stdio.h>
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
    {.name = "gemma3n",
     .arch = "Gemma3nForCausalLM",
     .model_type = "gemma3n_text",
     .pattern = 5},
    {.name = "gemma4",
     .arch = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .pattern = 6},
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
    {.name = "qwen2vl", .arch = "Qwen2ForCausalLM", .model_type = "qwen2"},
    {.name = "qwen3vl",
     .arch = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .bias = "attention_bias"},
    {.name = "qwen3vlmoe",
     .arch = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .bias = "attention_bias"},
    {.name = "dots1",
     .arch = "Dots1ForCausalLM",
     .model_type = "dots1",
     .bias = "attention_bias"},
    {.name = "granitemoe",
     .arch = "GraniteMoeForCausalLM",
     .model_type = "granitemoe",
     .interleaved = true,
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
    {.name = "lfm2moe", .arch = "Lfm2MoeForCausalLM", .model_type = "lfm2_moe"},
    {.name = "qwen3next",
     .arch = "Qwen3NextForCausalLM",
     .model_type = "qwen3_next",
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "qwen35",
     .arch = "Qwen3_5ForCausalLM",
     .model_type = "qwen3_5_text",
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "qwen35moe",
     .arch = "Qwen3_5MoeForCausalLM",
     .model_type = "qwen3_5_moe_text",
     .norm_add = -1,
     .bias = "attention_bias"},
    {.name = "granitehybrid",
     .arch = "GraniteMoeHybridForCausalLM",
     .model_type = "granitemoehybrid",
     .interleaved = true,
     .apart = true,
     .bias = "attention_bias"},
    {.name = "nemotron_h",
     .arch = "NemotronHForCausalLM",
     .model_type = "nemotron_h",
     .interleaved = true},
    {.name = "nemotron_h_moe",
     .arch = "NemotronHForCausalLM",
     .model_type = "nemotron_h",
     .interleaved = true},
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
    /* in GGUF files Mixtral is a llama with experts */
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
