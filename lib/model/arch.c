#include "lib/model/arch.h"

#include <stdio.h>
#include <string.h>

static const struct kv_arch archs[] = {
    {.name = "LlamaForCausalLM",
     .model_type = "llama",
     .attention_bias = true,
     .mlp_bias = true},
    {.name = "MistralForCausalLM",
     .model_type = "mistral",
     .n_kv_heads = 8,
     .window = 4096},
    {.name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .n_kv_heads = 32,
     .qkv_bias = true,
     .window = 4096,
     .window_opted = true},
    {.name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .n_kv_heads = 32,
     .head_dim = 128,
     .attention_bias = true,
     .qk_norm = true,
     .window = 4096,
     .window_opted = true},
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
