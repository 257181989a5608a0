#include "lib/model/arch_names.h"
#include "lib/model/arch_parts.h"

const char kv_unread[] = "";

/* The names that most architectures use. */
const struct kv_tensor_names kv_names_llama = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

const struct kv_tensor_names kv_names_stablelm = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_layernorm.norms.",
            [KV_P_K_NORM] = "self_attn.k_layernorm.norms.",
        },
};

const struct kv_tensor_names kv_names_sandwich = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "pre_feedforward_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
            [KV_P_ATTN_OUT_NORM] = "post_attention_layernorm.weight",
            [KV_P_MLP_OUT_NORM] = "post_feedforward_layernorm.weight",
        },
};

const struct kv_tensor_names kv_names_gemma4 = {
    KV_ARCH_FRAME,
    .dense = "",
    .stacked = {"experts.gate_up_proj", "experts.down_proj"},
    .layer_embed = "embed_tokens_per_layer.weight",
    .layer_in = "per_layer_model_projection.weight",
    .layer_in_norm = "per_layer_projection_norm.weight",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_LAYER_IN] = "",
            [KV_P_LAYER_GATE] = "per_layer_input_gate.weight",
            [KV_P_LAYER_OUT] = "per_layer_projection.weight",
            [KV_P_LAYER_SCALE] = "layer_scalar",
            [KV_P_ROUTER] = "router.proj.weight",
            [KV_P_ROUTER_NORM] = "router.scale",
            [KV_P_EXPERT_SCALE] = "router.per_expert_scale",
            [KV_P_SHARED_GATE] = "mlp.gate_proj.weight",
            [KV_P_SHARED_UP] = "mlp.up_proj.weight",
            [KV_P_SHARED_DOWN] = "mlp.down_proj.weight",
            [KV_P_EXPERTS_NORM] = "pre_feedforward_layernorm_2.weight",
            [KV_P_SHARED_OUT_NORM] = "post_feedforward_layernorm_1.weight",
            [KV_P_EXPERTS_OUT_NORM] = "post_feedforward_layernorm_2.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "pre_feedforward_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
            [KV_P_ATTN_OUT_NORM] = "post_attention_layernorm.weight",
            [KV_P_MLP_OUT_NORM] = "post_feedforward_layernorm.weight",
            [KV_P_LAYER_IN_NORM] = "",
            [KV_P_LAYER_OUT_NORM] = "post_per_layer_input_norm.weight",
        },
};

/* One tensor holds q, k and v: for each KV head the rows of its query heads, of
 * its key, of its value. */
const struct kv_tensor_names kv_names_internlm2 = {
    .prefix = "model.",
    .embed = "tok_embeddings.weight",
    .norm = "norm.weight",
    .head = "output.weight",
    .layers = "layers.",
    .part =
        {
            [KV_P_Q] = "attention.wqkv.weight",
            [KV_P_K] = "attention.wqkv.weight",
            [KV_P_V] = "attention.wqkv.weight",
            [KV_P_O] = "attention.wo.weight",
            [KV_P_GATE] = "feed_forward.w1.weight",
            [KV_P_UP] = "feed_forward.w3.weight",
            [KV_P_DOWN] = "feed_forward.w2.weight",
            [KV_P_ATTN_NORM] = "attention_norm.weight",
            [KV_P_MLP_NORM] = "ffn_norm.weight",
        },
};

/* Only the model's own code, not transformers, reads sparse_config. */
const struct kv_own_field kv_fields_of_minicpm[] = {
    {"scale_emb", NULL, NULL},
    {"scale_depth", NULL, NULL},
    {"dim_model_base", NULL, NULL},
    {"sparse_config", NULL, "null"},
    {"mup_denominator", NULL, NULL}, /* of training */
    {0},
};

const struct kv_own_field kv_fields_of_mimo[] = {
    {"attention_bias", "", "true"}, /* as Qwen2 without the field */
    {"use_mrope", NULL, "false"},
    {"num_nextn_predict_layers", NULL, NULL}, /* not read: more_layers */
    {0},
};

const struct kv_tensor_names kv_names_gemma3n = {
    KV_ARCH_FRAME,
    .layer_embed = "embed_tokens_per_layer.weight",
    .layer_in = "per_layer_model_projection.weight",
    .layer_in_norm = "per_layer_projection_norm.weight",
    .spread = "altup_projections.",
    .gather = "altup_unembed_projections.",
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_LAYER_IN] = "",
            [KV_P_LAYER_GATE] = "per_layer_input_gate.weight",
            [KV_P_LAYER_OUT] = "per_layer_projection.weight",
            [KV_P_LAUREL_DOWN] = "laurel.linear_left.weight",
            [KV_P_LAUREL_UP] = "laurel.linear_right.weight",
            [KV_P_ALTUP_ROUTER] = "altup.modality_router.weight",
            [KV_P_ALTUP_PREDICT] = "altup.prediction_coefs.weight",
            [KV_P_ALTUP_CORRECT] = "altup.correction_coefs.weight",
            [KV_P_ALTUP_SCALE] = "altup.correct_output_scale",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "pre_feedforward_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
            [KV_P_ATTN_OUT_NORM] = "post_attention_layernorm.weight",
            [KV_P_MLP_OUT_NORM] = "post_feedforward_layernorm.weight",
            [KV_P_LAYER_IN_NORM] = "",
            [KV_P_LAYER_OUT_NORM] = "post_per_layer_input_norm.weight",
            [KV_P_LAUREL_NORM] = "laurel.post_laurel_norm.weight",
            [KV_P_ALTUP_NORM] = "altup.router_norm.weight",
        },
};

const struct kv_own_field kv_fields_of_gemma3n[] = {
    {"num_kv_shared_layers", "num_kv_shared_layers", NULL},
    {"hidden_size_per_layer_input", "hidden_size_per_layer_input", NULL},
    {"vocab_size_per_layer_input", "vocab_size_per_layer_input", NULL},
    {"activation_sparsity_pattern", NULL, NULL},
    {"altup_num_inputs", NULL, NULL},
    {"altup_active_idx", NULL, "0"},
    {"altup_correct_scale", NULL, "true"},
    {"altup_coef_clip", NULL, NULL}, /* of training */
    {"laurel_rank", NULL, NULL},
    {"query_pre_attn_scalar", "", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_gemma4[] = {
    {"global_head_dim", "global_head_dim", NULL},
    {"num_global_key_value_heads", "num_global_key_value_heads", NULL},
    {"per_layer_config", "per_layer_config", NULL},
    {"attention_k_eq_v", "attention_k_eq_v", NULL},
    {"num_kv_shared_layers", "num_kv_shared_layers", NULL},
    {"use_double_wide_mlp", "use_double_wide_mlp", NULL},
    {"hidden_size_per_layer_input", "hidden_size_per_layer_input", NULL},
    {"vocab_size_per_layer_input", "vocab_size_per_layer_input", NULL},
    {"use_bidirectional_attention", NULL, "\"vision\""}, /* vision tokens
                                                          * only */
    {"enable_moe_block", NULL, NULL},
    {"num_experts", NULL, NULL},
    {"top_k_experts", "num_experts_per_tok", NULL},
    {"moe_intermediate_size", NULL, NULL},
    {"expert_intermediate_size", NULL, NULL},
    /* the other parts' names: */
    {"vision_config", NULL, NULL},
    {"audio_config", NULL, NULL},
    {"image_token_id", NULL, NULL},
    {0},
};

const struct kv_own_field kv_fields_of_gemma2[] = {
    {"sliding_window", "sliding_window", NULL},
    {"sliding_window_size", "sliding_window", kv_unread}, /* 9B's, 27B's */
    {0},
};

const struct kv_tensor_names kv_names_starcoder2 = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_UP] = "mlp.c_fc.weight",
            [KV_P_DOWN] = "mlp.c_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_starcoder2[] = {
    {"norm_epsilon", "rms_norm_eps", NULL},
    {"use_bias", "enable_bias", NULL},
    /* not read by transformers: */
    {"activation_function", NULL, NULL},
    {"attention_bias", "", NULL},
    {"attention_softmax_in_fp32", NULL, NULL},
    {"layer_norm_epsilon", NULL, NULL},
    {"scale_attention_softmax_in_fp32", NULL, NULL},
    {"scale_attn_weights", NULL, NULL},
    {"norm_type", NULL, "\"layer_norm\""},
    {"mlp_type", NULL, "\"default\""},
    {"residual_dropout", NULL, NULL},
    {"embedding_dropout", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_phi3 = {
    KV_ARCH_FRAME,
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

const struct kv_own_field kv_fields_of_stablelm[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"use_qkv_bias", "qkv_bias", NULL},
    {"qk_layernorm", "use_qk_norm", NULL},
    {"use_parallel_residual", "use_parallel_residual", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_granite[] = {
    {"embedding_multiplier", "embedding_multiplier", NULL},
    {"residual_multiplier", "residual_multiplier", NULL},
    {"attention_multiplier", "attention_multiplier", NULL},
    {"logits_scaling", "logits_scaling", NULL},
    {0},
};

const struct kv_tensor_names kv_names_cohere = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "input_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_norm.weight",
            [KV_P_K_NORM] = "self_attn.k_norm.weight",
        },
};

const struct kv_own_field kv_fields_of_cohere[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"logit_scale", "logit_scale", NULL},
    {"use_qk_norm", "use_qk_norm", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_cohere2[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"logit_scale", "logit_scale", NULL},
    {"layer_switch", NULL, NULL}, /* repeats sliding_window_pattern */
    {"order_of_interleaved_layers", NULL, "\"local_attn_first\""},
    {"position_embedding_type", NULL, "\"rope_gptj\""},
    {"rotary_pct", NULL, "1"},
    {"use_embedding_sharing", NULL, "true"},
    {"use_gated_activation", NULL, "true"},
    {"use_parallel_block", NULL, "true"},
    {"use_parallel_embedding", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_phi = {
    .prefix = "model.",
    .embed = "embed_tokens.weight",
    .norm = "final_layernorm.weight",
    .head = "lm_head.weight",
    .layers = "layers.",
    .part =
        {
            [KV_P_Q] = "self_attn.q_proj.weight",
            [KV_P_K] = "self_attn.k_proj.weight",
            [KV_P_V] = "self_attn.v_proj.weight",
            [KV_P_O] = "self_attn.dense.weight",
            [KV_P_UP] = "mlp.fc1.weight",
            [KV_P_DOWN] = "mlp.fc2.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "input_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.q_layernorm.weight",
            [KV_P_K_NORM] = "self_attn.k_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_phi3[] = {
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"full_attn_mod", NULL, "1"},
    {"interpolate_factor", NULL, "1"},
    {"lm_head_bias", NULL, "false"},
    {0},
};

const struct kv_own_field kv_fields_of_phi[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"qk_layernorm", "use_qk_norm", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_smollm3[] = {
    {"no_rope_layers", NULL, NULL},
    {"no_rope_layer_interval", NULL, NULL},
    {0},
};

const struct kv_own_field kv_fields_of_olmo[] = {
    {"rms_norm_eps", "", NULL},
    {"clip_qkv", "clip_qkv", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_ernie4_5[] = {
    {"use_bias", NULL, "false"},
    {0},
};

const struct kv_own_field kv_fields_of_seed_oss[] = {
    {"attention_out_bias", NULL, "false"},
    {"residual_dropout", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_hunyuan = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            KV_ARCH_GATE_UP_DOWN,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_Q_NORM] = "self_attn.query_layernorm.weight",
            [KV_P_K_NORM] = "self_attn.key_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_hunyuan[] = {
    {"attention_head_dim", "head_dim", kv_unread},
    {"head_dim", "head_dim", NULL},
    {"eod_token_id", NULL, NULL},
    /* names from the model's own code, with transformers' values: */
    {"norm_type", NULL, "\"rms\""},
    {"num_experts", NULL, "1"},
    {"use_cla", NULL, "false"},
    {"use_qk_norm", NULL, "true"},
    {0},
};

/* Fields at the top level of a model with several parts. */
const struct kv_own_field kv_fields_of_wrapped[] = {
    {"vision_config", NULL, NULL},
    {"image_token_id", NULL, NULL},
    {"video_token_id", NULL, NULL},
    {"vision_token_id", NULL, NULL},
    {"vision_start_token_id", NULL, NULL},
    {"vision_end_token_id", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_glm4 = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_GATE] = "mlp.gate_up_proj.weight",
            [KV_P_UP] = "mlp.gate_up_proj.weight",
            [KV_P_DOWN] = "mlp.down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
            [KV_P_ATTN_OUT_NORM] = "post_self_attn_layernorm.weight",
            [KV_P_MLP_OUT_NORM] = "post_mlp_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_glm4v[] = {
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {"attention_bias", "", "true"}, /* as the class has it without the field */
    {"head_dim", "", NULL},
    {0},
};

const struct kv_tensor_names kv_names_glm = {
    KV_ARCH_FRAME,
    .part =
        {
            KV_ARCH_Q_K_V_O,
            [KV_P_GATE] = "mlp.gate_up_proj.weight",
            [KV_P_UP] = "mlp.gate_up_proj.weight",
            [KV_P_DOWN] = "mlp.down_proj.weight",
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_glm4[] = {
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {0},
};

const struct kv_own_field kv_fields_of_nemotron[] = {
    {"norm_eps", "rms_norm_eps", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", NULL},
    {0},
};
