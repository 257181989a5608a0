/* Names of models with layers without attention. */
#include "lib/model/arch_names.h"
#include "lib/model/arch_parts.h"

#define LFM2_PARTS                                                            \
    [KV_P_Q] = "self_attn.q_proj.weight",                                     \
    [KV_P_K] = "self_attn.k_proj.weight",                                     \
    [KV_P_V] = "self_attn.v_proj.weight",                                     \
    [KV_P_O] = "self_attn.out_proj.weight",                                   \
    [KV_P_MIX] = "conv.in_proj.weight", [KV_P_MIX_CONV] = "conv.conv.weight", \
    [KV_P_MIX_OUT] = "conv.out_proj.weight",                                  \
    [KV_P_ATTN_NORM] = "operator_norm.weight",                                \
    [KV_P_MLP_NORM] = "ffn_norm.weight",                                      \
    [KV_P_Q_NORM] = "self_attn.q_layernorm.weight",                           \
    [KV_P_K_NORM] = "self_attn.k_layernorm.weight"

const struct kv_tensor_names kv_names_lfm2 = {
    .prefix = "model.",
    .embed = "embed_tokens.weight",
    .norm = "embedding_norm.weight",
    .head = "lm_head.weight",
    .layers = "layers.",
    .part =
        {
            LFM2_PARTS,
            [KV_P_GATE] = "feed_forward.w1.weight",
            [KV_P_UP] = "feed_forward.w3.weight",
            [KV_P_DOWN] = "feed_forward.w2.weight",
        },
};

const struct kv_own_field kv_fields_of_lfm2[] = {
    {"norm_eps", "rms_norm_eps", NULL},
    {"block_ff_dim", "intermediate_size", NULL},
    {"intermediate_size", "intermediate_size", NULL},
    {"tie_embedding", "tie_word_embeddings", NULL},
    {"tie_word_embeddings", "tie_word_embeddings", NULL},
    {"conv_L_cache", "conv_L_cache", NULL},
    {"conv_bias", NULL, "false"},
    {"full_attn_idxs", "full_attn_idxs", NULL},
    {"block_auto_adjust_ff_dim", "block_auto_adjust_ff_dim", NULL},
    {"block_ffn_dim_multiplier", "block_ffn_dim_multiplier", NULL},
    {"block_multiple_of", "block_multiple_of", NULL},
    /* not read by transformers: */
    {"block_dim", "hidden_size", kv_unread},
    {"conv_dim", "hidden_size", kv_unread},
    {"conv_dim_out", "hidden_size", kv_unread},
    {"num_heads", "num_attention_heads", kv_unread},
    {"block_norm_eps", "rms_norm_eps", kv_unread},
    {"block_use_swiglu", NULL, "true"},
    {"use_pos_enc", NULL, "true"},
    {"block_mlp_init_scale", NULL, NULL},
    {"block_out_init_scale", NULL, NULL},
    {"block_use_xavier_init", NULL, NULL},
    {"conv_use_xavier_init", NULL, NULL},
    {0},
};

/* Names that many architectures share. */
#define QWEN_PARTS                                       \
    [KV_P_Q] = "self_attn.q_proj.weight",                \
    [KV_P_OUT_GATE] = "self_attn.q_proj.weight",         \
    [KV_P_K] = "self_attn.k_proj.weight",                \
    [KV_P_V] = "self_attn.v_proj.weight",                \
    [KV_P_O] = "self_attn.o_proj.weight",                \
    [KV_P_MIX_OUT] = "linear_attn.out_proj.weight",      \
    [KV_P_MIX_CONV] = "linear_attn.conv1d.weight",       \
    [KV_P_MIX_DECAY] = "linear_attn.A_log",              \
    [KV_P_MIX_STEP] = "linear_attn.dt_bias",             \
    [KV_P_MIX_NORM] = "linear_attn.norm.weight",         \
    [KV_P_ATTN_NORM] = "input_layernorm.weight",         \
    [KV_P_MLP_NORM] = "post_attention_layernorm.weight", \
    [KV_P_Q_NORM] = "self_attn.q_norm.weight",           \
    [KV_P_K_NORM] = "self_attn.k_norm.weight"
#define QWEN_MOE                                                    \
    [KV_P_ROUTER] = "mlp.gate.weight",                              \
    [KV_P_SHARED_MIX] = "mlp.shared_expert_gate.weight",            \
    [KV_P_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",      \
    [KV_P_SHARED_UP] = "mlp.shared_expert.up_proj.weight",          \
    [KV_P_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",      \
    [KV_P_GATE] = "gate_proj.weight", [KV_P_UP] = "up_proj.weight", \
    [KV_P_DOWN] = "down_proj.weight"
#define QWEN_FIELDS                                                   \
    {"partial_rotary_factor", "partial_rotary_factor", NULL},         \
        {"full_attention_interval", "full_attention_interval", NULL}, \
        {"linear_conv_kernel_dim", "linear_conv_kernel_dim", NULL},   \
        {"linear_key_head_dim", "linear_key_head_dim", NULL},         \
        {"linear_value_head_dim", "linear_value_head_dim", NULL},     \
        {"linear_num_key_heads", "linear_num_key_heads", NULL},       \
    {                                                                 \
        "linear_num_value_heads", "linear_num_value_heads", NULL      \
    }

const struct kv_tensor_names kv_names_qwen3_next = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .stacked = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
    .part =
        {
            QWEN_PARTS,
            [KV_P_MIX] = "linear_attn.in_proj_qkvz.weight",
            [KV_P_MIX_B] = "linear_attn.in_proj_ba.weight",
            /* in GGUF files, where the inputs are apart: */
            [KV_P_MIX_A] = "linear_attn.in_proj_ba.weight",
            [KV_P_MIX_Z] = "linear_attn.in_proj_z.weight",
            QWEN_MOE,
        },
};

const struct kv_own_field kv_fields_of_qwen3_next[] = {
    QWEN_FIELDS,
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"shared_expert_intermediate_size", "shared_expert_intermediate_size",
     NULL},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"decoder_sparse_step", "decoder_sparse_step", NULL},
    {"mlp_only_layers", "mlp_only_layers", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_qwen3_5 = {
    KV_ARCH_FRAME,
    .part =
        {
            QWEN_PARTS,
            [KV_P_MIX] = "linear_attn.in_proj_qkv.weight",
            [KV_P_MIX_B] = "linear_attn.in_proj_b.weight",
            [KV_P_MIX_A] = "linear_attn.in_proj_a.weight",
            [KV_P_MIX_Z] = "linear_attn.in_proj_z.weight",
            [KV_P_GATE] = "mlp.gate_proj.weight",
            [KV_P_UP] = "mlp.up_proj.weight",
            [KV_P_DOWN] = "mlp.down_proj.weight",
        },
};

/* Also used for the language model of a model with several parts. */
const struct kv_own_field kv_fields_of_qwen3_5[] = {
    QWEN_FIELDS,
    {"attn_output_gate", NULL, "true"},
    {"mamba_ssm_dtype", NULL, NULL},
    {"mtp_num_hidden_layers", NULL, NULL}, /* not read: more_layers */
    {"mtp_use_dedicated_embeddings", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_granite_hybrid = {
    KV_ARCH_FRAME,
    .dense = "",
    .stacked = {"block_sparse_moe.input_linear.weight",
                "block_sparse_moe.output_linear.weight"},
    .part =
        {
            [KV_P_Q] = "self_attn.q_proj.weight",
            [KV_P_K] = "self_attn.k_proj.weight",
            [KV_P_V] = "self_attn.v_proj.weight",
            [KV_P_O] = "self_attn.o_proj.weight",
            [KV_P_MIX] = "mamba.in_proj.weight",
            [KV_P_MIX_OUT] = "mamba.out_proj.weight",
            [KV_P_MIX_CONV] = "mamba.conv1d.weight",
            [KV_P_MIX_DECAY] = "mamba.A_log",
            [KV_P_MIX_STEP] = "mamba.dt_bias",
            [KV_P_MIX_SKIP] = "mamba.D",
            [KV_P_MIX_NORM] = "mamba.norm.weight",
            [KV_P_ROUTER] = "block_sparse_moe.router.layer.weight",
            [KV_P_SHARED_GATE] = "shared_mlp.input_linear.weight",
            [KV_P_SHARED_UP] = "shared_mlp.input_linear.weight",
            [KV_P_SHARED_DOWN] = "shared_mlp.output_linear.weight",
            [KV_P_GATE] = "shared_mlp.input_linear.weight",
            [KV_P_UP] = "shared_mlp.input_linear.weight",
            [KV_P_DOWN] = "shared_mlp.output_linear.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_granite_hybrid[] = {
    {"shared_intermediate_size", "shared_intermediate_size", NULL},
    {"layer_types", "layer_types", NULL},
    {"layers_block_type", "layer_types", NULL},
    {"position_embedding_type", "position_embedding_type", NULL},
    {"embedding_multiplier", "embedding_multiplier", NULL},
    {"residual_multiplier", "residual_multiplier", NULL},
    {"attention_multiplier", "attention_multiplier", NULL},
    {"logits_scaling", "logits_scaling", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"mamba_n_heads", "mamba_n_heads", NULL},
    {"mamba_n_groups", "mamba_n_groups", NULL},
    {"mamba_d_state", "mamba_d_state", NULL},
    {"mamba_d_head", "mamba_d_head", NULL},
    {"mamba_d_conv", "mamba_d_conv", NULL},
    {"mamba_expand", "mamba_expand", NULL},
    {"mamba_chunk_size", NULL, NULL},
    {"mamba_conv_bias", "mamba_conv_bias", NULL},
    {"mamba_proj_bias", NULL, "false"},
    {"time_step_limit", NULL, "[0.0, {\"__float__\": \"Infinity\"}]"},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    /* other classes' names, with this class's values: */
    {"normalization_function", NULL, "\"rmsnorm\""},
    {0},
};

const struct kv_tensor_names kv_names_qwen3_5_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .stacked = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
    .part =
        {
            QWEN_PARTS,
            QWEN_MOE,
            [KV_P_MIX] = "linear_attn.in_proj_qkv.weight",
            [KV_P_MIX_B] = "linear_attn.in_proj_b.weight",
            [KV_P_MIX_A] = "linear_attn.in_proj_a.weight",
            [KV_P_MIX_Z] = "linear_attn.in_proj_z.weight",
        },
};

const struct kv_own_field kv_fields_of_qwen3_5_moe[] = {
    QWEN_FIELDS,
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"shared_expert_intermediate_size", "shared_expert_intermediate_size",
     NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {"attn_output_gate", NULL, "true"},
    {"mamba_ssm_dtype", NULL, NULL},
    {"mtp_num_hidden_layers", NULL, NULL}, /* not read: more_layers */
    {"mtp_use_dedicated_embeddings", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_lfm2_moe = {
    .prefix = "model.",
    .embed = "embed_tokens.weight",
    .norm = "embedding_norm.weight",
    .head = "lm_head.weight",
    .layers = "layers.",
    .experts = "feed_forward.experts.",
    .dense = "feed_forward.",
    .part =
        {
            LFM2_PARTS,
            [KV_P_ROUTER] = "feed_forward.gate.weight",
            [KV_P_CHOICE_BIAS] = "feed_forward.expert_bias",
            [KV_P_GATE] = "w1.weight",
            [KV_P_UP] = "w3.weight",
            [KV_P_DOWN] = "w2.weight",
        },
};

const struct kv_own_field kv_fields_of_lfm2_moe[] = {
    {"norm_eps", "rms_norm_eps", NULL},
    {"tie_embedding", "tie_word_embeddings", NULL},
    {"tie_word_embeddings", "tie_word_embeddings", NULL},
    {"conv_L_cache", "conv_L_cache", NULL},
    {"conv_bias", NULL, "false"},
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"num_dense_layers", "first_k_dense_replace", NULL},
    {"use_expert_bias", NULL, "true"},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"routed_scaling_factor", "routed_scaling_factor", NULL},
    {"output_router_logits", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_nemotron_h = {
    .prefix = "backbone.",
    .embed = "embeddings.weight",
    .norm = "norm_f.weight",
    .head = "lm_head.weight",
    .layers = "layers.",
    .experts = "mixer.experts.",
    .dense = "mixer.",
    .part =
        {
            [KV_P_Q] = "mixer.q_proj.weight",
            [KV_P_K] = "mixer.k_proj.weight",
            [KV_P_V] = "mixer.v_proj.weight",
            [KV_P_O] = "mixer.o_proj.weight",
            [KV_P_MIX] = "mixer.in_proj.weight",
            [KV_P_MIX_OUT] = "mixer.out_proj.weight",
            [KV_P_MIX_CONV] = "mixer.conv1d.weight",
            [KV_P_MIX_DECAY] = "mixer.A_log",
            [KV_P_MIX_STEP] = "mixer.dt_bias",
            [KV_P_MIX_SKIP] = "mixer.D",
            [KV_P_MIX_NORM] = "mixer.norm.weight",
            [KV_P_ROUTER] = "mixer.gate.weight",
            [KV_P_CHOICE_BIAS] = "mixer.gate.e_score_correction_bias",
            [KV_P_SHARED_UP] = "mixer.shared_experts.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mixer.shared_experts.down_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "norm.weight",
            [KV_P_MLP_NORM] = "norm.weight",
        },
};

const struct kv_own_field kv_fields_of_nemotron_h[] = {
    {"hybrid_override_pattern", NULL, NULL},
    {"layers_block_type", NULL, NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    {"head_dim", "head_dim", NULL},
    {"attention_head_dim", "head_dim", NULL}, /* from the model's own code */
    {"mlp_hidden_act", "hidden_act", NULL},
    {"mamba_num_heads", "mamba_n_heads", NULL},
    {"mamba_head_dim", "mamba_d_head", NULL},
    {"n_groups", "mamba_n_groups", NULL},
    {"ssm_state_size", "mamba_d_state", NULL},
    {"conv_kernel", "mamba_d_conv", NULL},
    {"use_conv_bias", "mamba_conv_bias", NULL},
    {"time_step_min", NULL, NULL},
    {"mamba_hidden_act", NULL, "\"silu\""},
    {"mamba_proj_bias", NULL, "false"},
    {"n_routed_experts", "num_experts", NULL},
    {"num_experts_per_tok", NULL, NULL},
    {"moe_intermediate_size", NULL, NULL},
    {"moe_shared_expert_intermediate_size", NULL, NULL},
    {"moe_latent_size", NULL, "null"},
    {"n_shared_experts", NULL, "1"},
    {"n_group", NULL, NULL},
    {"topk_group", NULL, NULL},
    {"norm_topk_prob", NULL, NULL},
    {"routed_scaling_factor", NULL, NULL},
    {"attention_bias", NULL, "false"},
    {"mlp_bias", NULL, "false"},
    {"layer_types", NULL, "null"}, /* layers_block_type is read */
    /* not read by transformers, or without effect on a forward pass: */
    {"rms_norm_eps", "rms_norm_eps", kv_unread},
    {"norm_eps", "rms_norm_eps", kv_unread},
    {"chunk_size", NULL, NULL},
    {"expand", NULL, NULL},
    {"mamba_ssm_cache_dtype", NULL, NULL},
    {"moe_shared_expert_overlap", NULL, NULL},
    {"mtp_hybrid_override_pattern", NULL, NULL},
    {"mtp_layers_block_type", NULL, NULL},
    {"num_logits_to_keep", NULL, NULL},
    {"num_nextn_predict_layers", NULL, NULL}, /* not read: more_layers */
    {"output_router_logits", NULL, NULL},
    {"rescale_prenorm_residual", NULL, NULL},
    {"residual_in_fp32", NULL, NULL},
    {"time_step_floor", NULL, NULL},
    {"time_step_limit", NULL, NULL},
    {"time_step_max", NULL, NULL},
    {"time_step_rank", NULL, NULL},
    {"use_mamba_kernels", NULL, NULL},
    {0},
};
