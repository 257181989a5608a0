/* Names of tensors and fields of models with experts (arch_experts.c). */
#include "lib/model/arch_names.h"
#include "lib/model/arch_parts.h"

const struct kv_tensor_names kv_names_mixtral = {
    KV_ARCH_FRAME,
    .experts = "block_sparse_moe.experts.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "block_sparse_moe.gate.weight",
            [KV_P_GATE] = "w1.weight",
            [KV_P_UP] = "w3.weight",
            [KV_P_DOWN] = "w2.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_mixtral[] = {
    {"num_local_experts", "num_experts", NULL},
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {"router_jitter_noise", NULL, NULL}, /* for training */
    {0},
};

const struct kv_tensor_names kv_names_qwen3_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "mlp.gate.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

const struct kv_tensor_names kv_names_qwen3_vl_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .gate_up = "gate_up_proj",
    .down = "down_proj",
    .gates_first = true,
    .stacked = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "mlp.gate.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

const struct kv_own_field kv_fields_of_qwen3_moe[] = {
    {"num_experts", "num_experts", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"decoder_sparse_step", "decoder_sparse_step", NULL},
    {"mlp_only_layers", "mlp_only_layers", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    /* other classes' names, with this class's values: */
    {"qkv_bias", NULL, "false"},
    {"shared_expert_intermediate_size", NULL, "0"},
    {"use_qk_norm", NULL, "true"},
    {0},
};

const struct kv_tensor_names kv_names_qwen2_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "mlp.gate.weight",
            [KV_P_SHARED_MIX] = "mlp.shared_expert_gate.weight",
            [KV_P_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
            [KV_P_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_qwen2_moe[] = {
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"shared_expert_intermediate_size", "shared_expert_intermediate_size",
     NULL},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"decoder_sparse_step", "decoder_sparse_step", NULL},
    {"mlp_only_layers", "mlp_only_layers", NULL},
    {"qkv_bias", "qkv_bias", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {0},
};

const struct kv_own_field kv_fields_of_olmoe[] = {
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {"clip_qkv", NULL, "null"},
    {0},
};

const struct kv_tensor_names kv_names_glm4_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "mlp.gate.weight",
            [KV_P_CHOICE_BIAS] = "mlp.gate.e_score_correction_bias",
            [KV_P_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
            [KV_P_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

const struct kv_own_field kv_fields_of_glm4_moe[] = {
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"use_qk_norm", "use_qk_norm", NULL},
    {"n_routed_experts", "num_experts", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"n_shared_experts", "n_shared_experts", NULL},
    {"routed_scaling_factor", "routed_scaling_factor", NULL},
    {"first_k_dense_replace", "first_k_dense_replace", NULL},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"n_group", NULL, "1"},
    {"topk_group", NULL, "1"},
    {"num_nextn_predict_layers", NULL, NULL}, /* not read: more_layers */
    {"num_mtp_layers", NULL, NULL},
    {"output_router_logits", NULL, NULL},
    {0},
};

const struct kv_own_field kv_fields_of_dots1[] = {
    {"n_routed_experts", "num_experts", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"n_shared_experts", "n_shared_experts", NULL},
    {"routed_scaling_factor", "routed_scaling_factor", NULL},
    {"first_k_dense_replace", "first_k_dense_replace", NULL},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {"n_group", NULL, NULL},
    {"topk_group", NULL, NULL},
    {"output_router_logits", NULL, NULL},
    /* its own code's names, with transformers' values: */
    {"moe_layer_freq", NULL, "1"},
    {"scoring_func", NULL, "\"noaux_tc\""}, /* as the model was released */
    {"topk_method", NULL, "\"noaux_tc\""},
    {0},
};

const struct kv_tensor_names kv_names_hunyuan_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "mlp.gate.wg.weight",
            [KV_P_SHARED_GATE] = "mlp.shared_mlp.gate_proj.weight",
            [KV_P_SHARED_UP] = "mlp.shared_mlp.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mlp.shared_mlp.down_proj.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.query_layernorm.weight",
            [KV_P_K_NORM] = "self_attn.key_layernorm.weight",
        },
};

const struct kv_tensor_names kv_names_deepseek = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .part =
        {
            [KV_P_Q] = "self_attn.q_proj.weight",
            [KV_P_Q_DOWN] = "self_attn.q_a_proj.weight",
            [KV_P_Q_UP] = "self_attn.q_b_proj.weight",
            [KV_P_KV_DOWN] = "self_attn.kv_a_proj_with_mqa.weight",
            [KV_P_KV_UP] = "self_attn.kv_b_proj.weight",
            [KV_P_O] = "self_attn.o_proj.weight",
            [KV_P_ROUTER] = "mlp.gate.weight",
            [KV_P_CHOICE_BIAS] = "mlp.gate.e_score_correction_bias",
            [KV_P_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
            [KV_P_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_DOWN_NORM] = "self_attn.q_a_layernorm.weight",
            [KV_P_KV_DOWN_NORM] = "self_attn.kv_a_layernorm.weight",
        },
};

/* Names that the three classes with latent attention share. */
#define LATENT                                                                \
    {"kv_lora_rank", NULL, NULL}, {"q_lora_rank", NULL, NULL},                \
        {"qk_nope_head_dim", NULL, NULL},                                     \
        {"qk_rope_head_dim", "qk_rope_head_dim", NULL},                       \
        {"qk_head_dim", NULL, NULL}, {"v_head_dim", NULL, NULL},              \
        {"attention_bias", NULL, "false"},                                    \
        {"n_routed_experts", "num_experts", NULL},                            \
        {"num_experts_per_tok", "num_experts_per_tok", NULL},                 \
        {"moe_intermediate_size", "intermediate_size", NULL},                 \
        {"n_shared_experts", "n_shared_experts", NULL},                       \
        {"routed_scaling_factor", "routed_scaling_factor", NULL},             \
        {"n_group", NULL, NULL}, {"topk_group", NULL, NULL},                  \
        {"moe_layer_freq", NULL, "1"}, {"ep_size", NULL, NULL},               \
        {"aux_loss_alpha", NULL, NULL}, {"seq_aux", NULL, NULL},              \
        {"output_router_logits", NULL, NULL}, {"num_mtp_layers", NULL, NULL}, \
    {                                                                         \
        "num_nextn_predict_layers", NULL, NULL                                \
    }

const struct kv_own_field kv_fields_of_deepseek_v2[] = {
    LATENT,
    {"head_dim", "", NULL},
    {"num_experts", "num_experts", NULL},
    {"first_k_dense_replace", "first_k_dense_replace", NULL},
    {"topk_method", NULL, NULL},
    {"scoring_func", NULL, "\"softmax\""},
    {"norm_topk_prob", "", "false"},
    {0},
};

const struct kv_own_field kv_fields_of_deepseek_v3[] = {
    LATENT,
    {"head_dim", "", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"first_k_dense_replace", "first_k_dense_replace", NULL},
    {"rope_interleave", NULL, NULL},
    {"topk_method", NULL, "\"noaux_tc\""},
    {"scoring_func", NULL, "\"sigmoid\""},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_glm4_moe_lite[] = {
    LATENT,
    {"head_dim", "qk_rope_head_dim", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"mlp_layer_types", NULL, NULL},
    {"first_k_dense_replace", "", "1"},
    {"rope_interleave", NULL, NULL},
    {"topk_method", NULL, "\"noaux_tc\""},
    {"scoring_func", NULL, "\"sigmoid\""},
    {"norm_topk_prob", "norm_topk_prob", NULL},
    {0},
};

const struct kv_tensor_names kv_names_ernie4_5_moe = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .dense = "mlp.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "mlp.gate.weight",
            [KV_P_CHOICE_BIAS] = "mlp.moe_statics.e_score_correction_bias",
            [KV_P_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
            [KV_P_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_ernie4_5_moe[] = {
    {"use_bias", NULL, "false"},
    {"moe_num_experts", "num_experts", NULL},
    {"num_experts", "num_experts", NULL},
    {"moe_k", "num_experts_per_tok", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", "intermediate_size", NULL},
    {"moe_num_shared_experts", "n_shared_experts", NULL},
    {"moe_layer_start_index", "moe_layer_start_index", NULL},
    {"moe_layer_end_index", "moe_layer_end_index", NULL},
    {"moe_layer_interval", "moe_layer_interval", NULL},
    {"moe_norm_min", NULL, "1e-12"},
    {"num_nextn_predict_layers", NULL, NULL}, /* not read: more_layers */
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_minimax_m2 = {
    KV_ARCH_FRAME,
    .experts = "block_sparse_moe.experts.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "block_sparse_moe.gate.weight",
            [KV_P_CHOICE_BIAS] = "block_sparse_moe.e_score_correction_bias",
            [KV_P_GATE] = "w1.weight",
            [KV_P_UP] = "w3.weight",
            [KV_P_DOWN] = "w2.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

const struct kv_own_field kv_fields_of_minimax_m2[] = {
    {"rotary_dim", "rotary_dim", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {"router_jitter_noise", NULL, NULL}, /* for training */
    /* other classes' names, with this class's values: */
    {"use_qk_norm", NULL, "true"},
    {"scoring_func", NULL, "\"sigmoid\""},
    {"shared_intermediate_size", NULL, "0"},
    {0},
};

const struct kv_tensor_names kv_names_gpt_oss = {
    KV_ARCH_FRAME,
    .experts = "mlp.experts.",
    .gate_up = "gate_up_proj",
    .down = "down_proj",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_SINKS] = "self_attn.sinks",
            [KV_P_ROUTER] = "mlp.router.weight",
            [KV_P_GATE] = "gate_proj.weight",
            [KV_P_UP] = "up_proj.weight",
            [KV_P_DOWN] = "down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_gpt_oss[] = {
    {"num_local_experts", "num_experts", NULL},
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"swiglu_limit", "swiglu_limit", NULL},
    {"swiglu_alpha", "swiglu_alpha", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {0},
};

const struct kv_own_field kv_fields_of_phimoe[] = {
    {"num_local_experts", "num_experts", NULL},
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", "2"},
    {"router_jitter_noise", "router_jitter_noise", NULL},
    {"input_jitter_noise", NULL, NULL}, /* for training */
    {"lm_head_bias", "lm_head_bias", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_granite_moe = {
    KV_ARCH_FRAME,
    .stacked = {"block_sparse_moe.input_linear.weight",
                "block_sparse_moe.output_linear.weight"},
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_ROUTER] = "block_sparse_moe.router.layer.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_granite_moe[] = {
    {"embedding_multiplier", "embedding_multiplier", NULL},
    {"residual_multiplier", "residual_multiplier", NULL},
    {"attention_multiplier", "attention_multiplier", NULL},
    {"logits_scaling", "logits_scaling", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"num_experts", "num_experts", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"output_router_logits", NULL, NULL},
    {"router_aux_loss_coef", NULL, NULL},
    {0},
};

const struct kv_own_field kv_fields_of_hunyuan_moe[] = {
    {"attention_head_dim", "head_dim", kv_unread},
    {"head_dim", "head_dim", NULL},
    {"num_experts", "num_experts", NULL},
    {"num_local_experts", "num_experts", NULL},
    {"moe_topk", "num_experts_per_tok", NULL},
    {"num_experts_per_tok", "num_experts_per_tok", NULL},
    {"eod_token_id", NULL, NULL},
    {"sep_token_id", NULL, NULL},
    {"output_router_logits", NULL, NULL},
    /* its own code's names, with transformers' values: */
    {"moe_intermediate_size", NULL, NULL}, /* the tensors' sizes show it */
    {"num_shared_expert", NULL, NULL},
    {"norm_type", NULL, "\"rms\""},
    {"use_cla", NULL, "false"},
    {"use_mla", NULL, "false"},
    {"use_mixed_mlp_moe", NULL, "true"},
    {"use_qk_norm", NULL, "true"},
    {"moe_layer_num_skipped", NULL, "0"},
    {0},
};
