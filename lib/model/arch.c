#include "lib/model/arch.h"

#include <stdio.h>
#include <string.h>

/* What many call alike. */
#define FRAME                                                                  \
    .prefix = "model.", .embed = "embed_tokens.weight", .norm = "norm.weight", \
    .head = "lm_head.weight", .layers = "layers."
#define Q_K_V_O                           \
    [KV_P_Q] = "self_attn.q_proj.weight", \
    [KV_P_K] = "self_attn.k_proj.weight", \
    [KV_P_V] = "self_attn.v_proj.weight", [KV_P_O] = "self_attn.o_proj.weight"
#define GATE_UP_DOWN                                                        \
    [KV_P_GATE] = "mlp.gate_proj.weight", [KV_P_UP] = "mlp.up_proj.weight", \
    [KV_P_DOWN] = "mlp.down_proj.weight"

/* What most use. */
static const struct kv_tensor_names llama = {
    FRAME,
    .part =
        {
            Q_K_V_O,
            GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

static const struct kv_tensor_names sandwich = {
    FRAME,
    .part =
        {
            Q_K_V_O,
            GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "pre_feedforward_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
            [KV_P_ATTN_OUT_NORM] = "post_attention_layernorm.weight",
            [KV_P_MLP_OUT_NORM] = "post_feedforward_layernorm.weight",
        },
};

static const struct kv_tensor_names gpt2_names = {
    .prefix = "transformer.",
    .embed = "wte.weight",
    .positions = "wpe.weight",
    .norm = "ln_f.weight",
    .head = "lm_head.weight",
    .layers = "h.",
    .part =
        {
            [KV_P_Q] = "attn.c_attn.weight",
            [KV_P_K] = "attn.c_attn.weight",
            [KV_P_V] = "attn.c_attn.weight",
            [KV_P_O] = "attn.c_proj.weight",
            [KV_P_UP] = "mlp.c_fc.weight",
            [KV_P_DOWN] = "mlp.c_proj.weight",
            [KV_P_ATTN_NORM] = "ln_1.weight",
            [KV_P_MLP_NORM] = "ln_2.weight",
        },
};

static const struct kv_own_field gpt2_fields[] = {
    {"n_embd", "hidden_size", NULL},
    {"n_inner", "intermediate_size", NULL},
    {"n_layer", "num_hidden_layers", NULL},
    {"n_head", "num_attention_heads", NULL},
    {"n_positions", "max_position_embeddings", NULL},
    {"n_ctx", NULL, NULL}, /* of old files: n_positions again */
    {"activation_function", "hidden_act", NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    {"scale_attn_weights", NULL, "true"},
    {"scale_attn_by_inverse_layer_idx", NULL, "false"},
    {"reorder_and_upcast_attn", NULL, NULL},
    {"summary_activation", NULL, NULL},
    {"summary_first_dropout", NULL, NULL},
    {"summary_proj_to_labels", NULL, NULL},
    {"summary_type", NULL, NULL},
    {"summary_use_proj", NULL, NULL},
    {0},
};

static const struct kv_tensor_names opt_names = {
    .prefix = "model.decoder.",
    .embed = "embed_tokens.weight",
    .positions = "embed_positions.weight",
    .norm = "final_layer_norm.weight",
    .head = "lm_head.weight",
    .layers = "layers.",
    .part =
        {
            [KV_P_Q] = "self_attn.q_proj.weight",
            [KV_P_K] = "self_attn.k_proj.weight",
            [KV_P_V] = "self_attn.v_proj.weight",
            [KV_P_O] = "self_attn.out_proj.weight",
            [KV_P_UP] = "fc1.weight",
            [KV_P_DOWN] = "fc2.weight",
            [KV_P_ATTN_NORM] = "self_attn_layer_norm.weight",
            [KV_P_MLP_NORM] = "final_layer_norm.weight",
        },
};

static const struct kv_own_field opt_fields[] = {
    {"ffn_dim", "intermediate_size", NULL},
    {"activation_function", "hidden_act", NULL},
    {"do_layer_norm_before", NULL, "true"},
    {"_remove_final_layer_norm", NULL, "false"},
    {"enable_bias", NULL, "true"},
    {"layer_norm_elementwise_affine", NULL, "true"},
    {"word_embed_proj_dim", NULL, NULL}, /* the embedding's shape tells */
    {"init_std", NULL, NULL},
    {"dropout", NULL, NULL},
    {"activation_dropout", NULL, NULL},
    {"layerdrop", NULL, NULL},
    {0},
};

static const struct kv_tensor_names bloom_names = {
    .prefix = "transformer.",
    .embed = "word_embeddings.weight",
    .embed_norm = "word_embeddings_layernorm.weight",
    .norm = "ln_f.weight",
    .head = "lm_head.weight",
    .layers = "h.",
    .part =
        {
            [KV_P_Q] = "self_attention.query_key_value.weight",
            [KV_P_K] = "self_attention.query_key_value.weight",
            [KV_P_V] = "self_attention.query_key_value.weight",
            [KV_P_O] = "self_attention.dense.weight",
            [KV_P_UP] = "mlp.dense_h_to_4h.weight",
            [KV_P_DOWN] = "mlp.dense_4h_to_h.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

static const struct kv_own_field bloom_fields[] = {
    {"n_embed", "hidden_size", NULL},
    {"n_layer", "num_hidden_layers", NULL},
    {"n_head", "num_attention_heads", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"seq_length", "max_position_embeddings", NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    {"apply_residual_connection_post_layernorm", NULL, "false"},
    {"pretraining_tp", NULL, NULL}, /* how a product was once split */
    {"slow_but_exact", NULL, NULL},
    {"offset_alibi", NULL, NULL},
    {"attention_softmax_in_fp32", NULL, NULL},
    {"masked_softmax_fusion", NULL, NULL},
    {"bias_dropout_fusion", NULL, NULL},
    {"skip_bias_add", NULL, NULL},
    {"skip_bias_add_qkv", NULL, NULL},
    {0},
};

static const struct kv_tensor_names mpt_names = {
    .prefix = "transformer.",
    .embed = "wte.weight",
    .norm = "norm_f.weight",
    .head = "lm_head.weight",
    .layers = "blocks.",
    .part =
        {
            [KV_P_Q] = "attn.Wqkv.weight",
            [KV_P_K] = "attn.Wqkv.weight",
            [KV_P_V] = "attn.Wqkv.weight",
            [KV_P_O] = "attn.out_proj.weight",
            [KV_P_UP] = "ffn.up_proj.weight",
            [KV_P_DOWN] = "ffn.down_proj.weight",
            [KV_P_ATTN_NORM] = "norm_1.weight",
            [KV_P_MLP_NORM] = "norm_2.weight",
        },
};

static const struct kv_own_field mpt_fields[] = {
    {"d_model", "hidden_size", NULL},
    {"n_layers", "num_hidden_layers", NULL},
    {"n_heads", "num_attention_heads", NULL},
    {"max_seq_len", "max_position_embeddings", NULL},
    {"expansion_ratio", NULL, "4"},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    {"no_bias", NULL, "true"},
    {"norm_type", NULL, "\"low_precision_layernorm\""},
    {"learned_pos_emb", NULL, NULL}, /* of no use beside ALiBi */
    {"embedding_fraction", NULL, NULL},
    {"emb_pdrop", NULL, NULL},
    {"init_device", NULL, NULL},
    {"init_config", NULL, NULL},
    {"verbose", NULL, NULL},
    {"attn_config", NULL, NULL},
    {"attn_config.alibi", NULL, "true"},
    {"attn_config.alibi_bias_max", NULL, "8"},
    {"attn_config.attn_impl", NULL, NULL},
    {"attn_config.attn_type", NULL, "\"multihead_attention\""},
    {"attn_config.attn_uses_sequence_id", NULL, "false"},
    {"attn_config.clip_qkv", NULL, "null"},
    {"attn_config.prefix_lm", NULL, "false"},
    {"attn_config.qk_ln", NULL, "false"},
    {"attn_config.softmax_scale", NULL, "null"},
    {0},
};

static const struct kv_tensor_names starcoder2_names = {
    FRAME,
    .part =
        {
            Q_K_V_O,
            [KV_P_UP] = "mlp.c_fc.weight",
            [KV_P_DOWN] = "mlp.c_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

static const struct kv_own_field starcoder2_fields[] = {
    {"norm_epsilon", "rms_norm_eps", NULL},
    {"use_bias", NULL, "true"},
    {"norm_type", NULL, "\"layer_norm\""},
    {"mlp_type", NULL, "\"default\""},
    {"residual_dropout", NULL, NULL},
    {"embedding_dropout", NULL, NULL},
    {0},
};

static const struct kv_tensor_names phi3_names = {
    FRAME,
    .part =
        {
            [KV_P_Q] = "self_attn.qkv_proj.weight",
            [KV_P_K] = "self_attn.qkv_proj.weight",
            [KV_P_V] = "self_attn.qkv_proj.weight",
            [KV_P_O] = "self_attn.o_proj.weight",
            [KV_P_GATE] = "mlp.gate_up_proj.weight",
            [KV_P_UP] = "mlp.gate_up_proj.weight",
            [KV_P_DOWN] = "mlp.down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

static const struct kv_tensor_names gpt_neox_names = {
    .prefix = "gpt_neox.",
    .embed = "embed_in.weight",
    .norm = "final_layer_norm.weight",
    .head = "embed_out.weight",
    .layers = "layers.",
    .part =
        {
            [KV_P_Q] = "attention.query_key_value.weight",
            [KV_P_K] = "attention.query_key_value.weight",
            [KV_P_V] = "attention.query_key_value.weight",
            [KV_P_O] = "attention.dense.weight",
            [KV_P_UP] = "mlp.dense_h_to_4h.weight",
            [KV_P_DOWN] = "mlp.dense_4h_to_h.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

static const struct kv_own_field gpt_neox_fields[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"rotary_pct", "partial_rotary_factor", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"rotary_emb_base", "rope_theta", NULL},
    {"rope_theta", "rope_theta", NULL},
    {"use_parallel_residual", NULL, "true"},
    {"attention_bias", NULL, "true"},
    {0},
};

static const struct kv_own_field stablelm_fields[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"use_qkv_bias", "qkv_bias", NULL},
    {"use_parallel_residual", NULL, "false"},
    {0},
};

static const struct kv_own_field granite_fields[] = {
    {"embedding_multiplier", "embedding_multiplier", NULL},
    {"residual_multiplier", "residual_multiplier", NULL},
    {"attention_multiplier", "attention_multiplier", NULL},
    {"logits_scaling", "logits_scaling", NULL},
    {0},
};

static const struct kv_tensor_names cohere_names = {
    FRAME,
    .part =
        {
            Q_K_V_O,
            GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "input_layernorm.weight",
        },
};

static const struct kv_own_field cohere_fields[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"logit_scale", "logit_scale", NULL},
    {"use_qk_norm", NULL, "false"},
    {0},
};

static const struct kv_arch archs[] = {
    {.name = "LlamaForCausalLM",
     .names = &llama,
     .model_type = "llama",
     .attention_bias = true,
     .mlp_bias = true,
     .theta = 10000},
    {.name = "MistralForCausalLM",
     .names = &llama,
     .model_type = "mistral",
     .n_kv_heads = 8,
     .window = 4096,
     .theta = 10000},
    {.name = "Qwen2ForCausalLM",
     .names = &llama,
     .model_type = "qwen2",
     .n_kv_heads = 32,
     .qkv_bias = true,
     .window = 4096,
     .window_opted = true,
     .theta = 10000},
    {.name = "Qwen3ForCausalLM",
     .names = &llama,
     .model_type = "qwen3",
     .n_kv_heads = 32,
     .head_dim = 128,
     .attention_bias = true,
     .qk_norm = true,
     .window = 4096,
     .window_opted = true,
     .theta = 10000},
    {.name = "GemmaForCausalLM",
     .names = &llama,
     .model_type = "gemma",
     .n_kv_heads = 16,
     .head_dim = 256,
     .attention_bias = true,
     .gemma = true,
     .tied = true,
     .act = KV_ACT_GELU_TANH,
     .theta = 10000},
    {.name = "Gemma2ForCausalLM",
     .names = &sandwich,
     .model_type = "gemma2",
     .n_kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .window = 4096,
     .pattern = 2,
     .gemma = true,
     .tied = true,
     .act = KV_ACT_GELU_TANH,
     .sandwich = true,
     .attn_cap = 50,
     .logit_cap = 30,
     .theta = 10000},
    {.name = "Gemma3ForCausalLM",
     .names = &sandwich,
     .model_type = "gemma3_text",
     .n_kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .qk_norm = true,
     .window = 4096,
     .pattern = 6,
     .gemma = true,
     .tied = true,
     .act = KV_ACT_GELU_TANH,
     .sandwich = true,
     .theta = 1e6,
     .slide_theta = 10000},
    {.name = "GPT2LMHeadModel",
     .names = &gpt2_names,
     .fields = gpt2_fields,
     .model_type = "gpt2",
     .inter_times = 4,
     .n_ctx = 1024,
     .norm_eps = 1e-5F,
     .tied = true,
     .biases = true,
     .layer_norm = true,
     .norm_bias = true,
     .plain_mlp = true,
     .act = KV_ACT_GELU_TANH,
     .transposed = true,
     .positions = KV_LEARNED},
    {.name = "OPTForCausalLM",
     .names = &opt_names,
     .fields = opt_fields,
     .model_type = "opt",
     .n_ctx = 2048,
     .norm_eps = 1e-5F,
     .tied = true,
     .biases = true,
     .layer_norm = true,
     .norm_bias = true,
     .plain_mlp = true,
     .act = KV_ACT_RELU,
     .positions = KV_LEARNED,
     .skip_positions = 2},
    {.name = "BloomForCausalLM",
     .names = &bloom_names,
     .fields = bloom_fields,
     .model_type = "bloom",
     .inter_times = 4,
     .n_ctx = 2048,
     .norm_eps = 1e-5F,
     .tied = true,
     .biases = true,
     .layer_norm = true,
     .norm_bias = true,
     .plain_mlp = true,
     .act = KV_ACT_GELU_TANH,
     .qkv_by_head = true,
     .positions = KV_ALIBI},
    {.name = "MptForCausalLM",
     .names = &mpt_names,
     .fields = mpt_fields,
     .model_type = "mpt",
     .inter_times = 4,
     .n_ctx = 2048,
     .norm_eps = 1e-5F,
     .tied = true,
     .layer_norm = true,
     .plain_mlp = true,
     .act = KV_ACT_GELU,
     .positions = KV_ALIBI},
    {.name = "Starcoder2ForCausalLM",
     .names = &starcoder2_names,
     .fields = starcoder2_fields,
     .model_type = "starcoder2",
     .n_kv_heads = 2,
     .norm_eps = 1e-5F,
     .tied = true,
     .biases = true,
     .window = 4096,
     .layer_norm = true,
     .norm_bias = true,
     .plain_mlp = true,
     .act = KV_ACT_GELU_TANH,
     .theta = 10000},
    {.name = "Phi3ForCausalLM",
     .names = &phi3_names,
     .model_type = "phi3",
     .norm_eps = 1e-5F,
     .window = 2047,
     .theta = 10000},
    {.name = "GPTNeoXForCausalLM",
     .names = &gpt_neox_names,
     .fields = gpt_neox_fields,
     .model_type = "gpt_neox",
     .attention_bias = true,
     .norm_eps = 1e-5F,
     .biases = true,
     .theta = 10000,
     .partial = 0.25,
     .layer_norm = true,
     .norm_bias = true,
     .plain_mlp = true,
     .act = KV_ACT_GELU,
     .parallel = true,
     .qkv_by_head = true},
    {.name = "StableLmForCausalLM",
     .names = &llama,
     .fields = stablelm_fields,
     .model_type = "stablelm",
     .norm_eps = 1e-5F,
     .theta = 10000,
     .partial = 0.25,
     .layer_norm = true,
     .norm_bias = true},
    {.name = "GraniteForCausalLM",
     .names = &llama,
     .fields = granite_fields,
     .model_type = "granite",
     .norm_eps = 1e-6F,
     .attention_bias = true,
     .mlp_bias = true,
     .theta = 10000,
     .scaled = true},
    {.name = "CohereForCausalLM",
     .names = &cohere_names,
     .fields = cohere_fields,
     .model_type = "cohere",
     .norm_eps = 1e-5F,
     .tied = true,
     .attention_bias = true,
     .theta = 10000,
     .layer_norm = true,
     .parallel = true,
     .interleaved = true,
     .logit_scale = 0.0625},
};

enum { N_ARCHS = sizeof(archs) / sizeof(*archs) };

int kv_arch_find(const struct kv_arch **arch, const char *name,
                 struct kv_err *e)
{
    char known[1024] = "";

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
