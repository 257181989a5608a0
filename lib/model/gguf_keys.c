/* The keys of GGUF files, and the fields of config.json that they become. */
#include "lib/model/gguf_maker.h"

#include <stdio.h>
#include <string.h>

/* Families that share rows. */
#define DELTA "qwen3next qwen35 qwen35moe"
#define MAMBA "granitehybrid nemotron_h nemotron_h_moe"
#define GRANITE "granite granitehybrid granitemoe"
#define GROUPED "deepseek2 nemotron_h_moe dots1"
#define KINDS "gemma3n gemma4"
#define VISION "qwen2vl qwen3vl qwen3vlmoe" /* their text part */

static const struct kv_gguf_row rows[] = {
    {"block_count", NULL, "num_hidden_layers", KV_GGUF_COUNT},
    {"context_length", NULL, "max_position_embeddings", KV_GGUF_COUNT},
    {"embedding_length", NULL, "hidden_size", KV_GGUF_COUNT},
    {"feed_forward_length", NULL, "intermediate_size", KV_GGUF_COUNT},
    {"vocab_size", NULL, "vocab_size", KV_GGUF_COUNT},
    {"attention.head_count", NULL, "num_attention_heads", KV_GGUF_COUNT},
    {"attention.head_count_kv", NULL, "num_key_value_heads", KV_GGUF_COUNT},
    {"attention.key_length", "gemma4", "global_head_dim", KV_GGUF_COUNT},
    {"attention.key_length_swa", "gemma4", "head_dim", KV_GGUF_COUNT},
    {"attention.key_length", NULL, "head_dim", KV_GGUF_COUNT},
    {"attention.layer_norm_rms_epsilon", NULL, "rms_norm_eps", KV_GGUF_REAL},
    {"attention.sliding_window", NULL, "sliding_window", KV_GGUF_COUNT},
    {"attention.causal", NULL, "is_causal", KV_GGUF_BOOL},
    {"attn_logit_softcapping", NULL, "attn_logit_softcapping", KV_GGUF_REAL},
    {"final_logit_softcapping", NULL, "final_logit_softcapping", KV_GGUF_REAL},
    {"rope.freq_base", "gemma4", NULL, KV_GGUF_REAL},
    {"rope.freq_base_swa", "gemma4", NULL, KV_GGUF_REAL},
    {"rope.freq_base", NULL, "rope_theta", KV_GGUF_REAL},
    {"rope.freq_base_swa", NULL, "rope_local_base_freq", KV_GGUF_REAL},
    {"attention.layer_norm_epsilon", NULL, "rms_norm_eps", KV_GGUF_REAL},
    {"use_parallel_residual", NULL, "use_parallel_residual", KV_GGUF_BOOL},
    {"expert_count", NULL, "num_experts", KV_GGUF_COUNT},
    {"expert_used_count", NULL, "num_experts_per_tok", KV_GGUF_COUNT},
    {"expert_feed_forward_length", "gpt-oss", "intermediate_size",
     KV_GGUF_COUNT},
    {"expert_feed_forward_length",
     "qwen3moe qwen3vlmoe deepseek2 lfm2moe nemotron_h_moe qwen3next qwen35moe "
     "gemma4 dots1",
     "moe_intermediate_size", KV_GGUF_COUNT},
    {"expert_shared_feed_forward_length", "qwen3next qwen35moe",
     "shared_expert_intermediate_size", KV_GGUF_COUNT},
    {"expert_shared_feed_forward_length", "granitehybrid",
     "shared_intermediate_size", KV_GGUF_COUNT},
    {"expert_shared_feed_forward_length", "nemotron_h_moe",
     "moe_shared_expert_intermediate_size", KV_GGUF_COUNT},
    {"expert_shared_count", GROUPED, "n_shared_experts", KV_GGUF_COUNT},
    {"expert_weights_scale", GROUPED, "routed_scaling_factor", KV_GGUF_REAL},
    {"expert_weights_norm", GROUPED, "norm_topk_prob", KV_GGUF_BOOL},
    {"expert_group_count", GROUPED, "n_group", KV_GGUF_COUNT},
    {"expert_group_used_count", GROUPED, "topk_group", KV_GGUF_COUNT},
    {"leading_dense_block_count", "deepseek2 lfm2moe dots1",
     "first_k_dense_replace", KV_GGUF_COUNT},
    {"attention.q_lora_rank", "deepseek2", "q_lora_rank", KV_GGUF_COUNT},
    {"attention.kv_lora_rank", "deepseek2", "kv_lora_rank", KV_GGUF_COUNT},
    {"shortconv.l_cache", "lfm2 lfm2moe", "conv_L_cache", KV_GGUF_COUNT},
    {"full_attention_interval", DELTA, "full_attention_interval",
     KV_GGUF_COUNT},
    {"ssm.conv_kernel", DELTA, "linear_conv_kernel_dim", KV_GGUF_COUNT},
    {"ssm.state_size", DELTA, "linear_key_head_dim", KV_GGUF_COUNT},
    {"ssm.group_count", DELTA, "linear_num_key_heads", KV_GGUF_COUNT},
    {"ssm.time_step_rank", DELTA, "linear_num_value_heads", KV_GGUF_COUNT},
    {"ssm.conv_kernel", MAMBA, "mamba_d_conv", KV_GGUF_COUNT},
    {"ssm.state_size", MAMBA, "mamba_d_state", KV_GGUF_COUNT},
    {"ssm.group_count", MAMBA, "mamba_n_groups", KV_GGUF_COUNT},
    {"ssm.time_step_rank", MAMBA, "mamba_n_heads", KV_GGUF_COUNT},
    {"logit_scale", GRANITE, "logits_scaling", KV_GGUF_REAL},
    {"logit_scale", "command-r cohere2", "logit_scale", KV_GGUF_REAL},
    {"attention.scale", GRANITE, "attention_multiplier", KV_GGUF_REAL},
    {"residual_scale", GRANITE, "residual_multiplier", KV_GGUF_REAL},
    {"embedding_scale", GRANITE, "embedding_multiplier", KV_GGUF_REAL},

    {"attention.shared_kv_layers", KINDS, "num_kv_shared_layers",
     KV_GGUF_COUNT},
    {"embedding_length_per_layer_input", KINDS, "hidden_size_per_layer_input",
     KV_GGUF_COUNT},
    {"altup.active_idx", "gemma3n", "altup_active_idx", KV_GGUF_COUNT},
    {"altup.num_inputs", "gemma3n", "altup_num_inputs", KV_GGUF_COUNT},

    {"activation_sparsity_scale", "gemma3n", NULL, KV_GGUF_REAL},
    {"attention.value_length_swa", "gemma4", NULL, KV_GGUF_COUNT},
    {"rope.dimension_count_swa", "gemma4", NULL, KV_GGUF_COUNT},
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
    {"expert_gating_func", "deepseek2 lfm2moe nemotron_h_moe dots1", NULL,
     KV_GGUF_COUNT},
    {"ssm.inner_size", DELTA " " MAMBA, NULL, KV_GGUF_COUNT},
    {"attention.recurrent_layers", DELTA, NULL, KV_GGUF_BOOL},
    {"nextn_predict_layers", NULL, NULL, KV_GGUF_COUNT},

    {"rope.scaling.finetuned", NULL, NULL, KV_GGUF_BOOL},
    {"rope.dimension_sections", "qwen35 qwen35moe " VISION, NULL,
     KV_GGUF_COUNT},
    {"n_deepstack_layers", VISION, NULL, KV_GGUF_COUNT},
    {"tensor_data_layout", NULL, NULL, KV_GGUF_TEXT},
    {"pooling_type", NULL, NULL, KV_GGUF_COUNT},
};

enum { N_ROWS = sizeof(rows) / sizeof(*rows) };

bool kv_gguf_of_family(const char *families, const char *family)
{
    const size_t n = strlen(family);

    for (const char *at = families; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (!strncmp(at, family, n) && (!at[n] || at[n] == ' '))
            return true;
    }
    return !families;
}

const struct kv_gguf_row *kv_gguf_row(const char *key, const char *family)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (!strcmp(rows[i].key, key) &&
            kv_gguf_of_family(rows[i].family, family))
            return &rows[i];
    return NULL;
}

/* The key that sets a field, whether the file has the key or not; NULL: no key
 * does. */
static const char *key_of(const struct kv_gguf_model *m, const char *family,
                          const char *field, size_t n, char key[96])
{
    const char *found = NULL;

    for (size_t i = 0; i < N_ROWS; i++) {
        if (!rows[i].field || strlen(rows[i].field) != n ||
            memcmp(rows[i].field, field, n) != 0 ||
            !kv_gguf_of_family(rows[i].family, family))
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
