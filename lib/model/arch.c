#include "lib/model/arch.h"

#include <stdio.h>
#include <string.h>

static const struct kv_arch archs[] = {
    {.name = "LlamaForCausalLM",
     .model_type = "llama",
     .attention_bias = true,
     .mlp_bias = true,
     .theta = 10000},
    {.name = "MistralForCausalLM",
     .model_type = "mistral",
     .n_kv_heads = 8,
     .window = 4096,
     .theta = 10000},
    {.name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .n_kv_heads = 32,
     .qkv_bias = true,
     .window = 4096,
     .window_opted = true,
     .theta = 10000},
    {.name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .n_kv_heads = 32,
     .head_dim = 128,
     .attention_bias = true,
     .qk_norm = true,
     .window = 4096,
     .window_opted = true,
     .theta = 10000},
    {.name = "GemmaForCausalLM",
     .model_type = "gemma",
     .n_kv_heads = 16,
     .head_dim = 256,
     .attention_bias = true,
     .gemma = true,
     .theta = 10000},
    {.name = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .n_kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .window = 4096,
     .pattern = 2,
     .gemma = true,
     .sandwich = true,
     .attn_cap = 50,
     .logit_cap = 30,
     .theta = 10000},
    {.name = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .n_kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .qk_norm = true,
     .window = 4096,
     .pattern = 6,
     .gemma = true,
     .sandwich = true,
     .theta = 1e6,
     .slide_theta = 10000},
};

enum { N_ARCHS = sizeof(archs) / sizeof(*archs) };

int kv_arch_find(const struct kv_arch **arch, const char *name,
                 struct kv_err *e)
{
    char known[256] = "";

    for (size_t i = 0; i < N_ARCHS; i++) {
        const size_t n = strlen(known);

        if (!strcmp(archs[i].name, name)) {
            *arch = &archs[i];
            return 0;
        }
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "",
                 archs[i].name);
    }
    return kv_fail(e, "unknown architecture %s (known: %s)", name, known);
}
