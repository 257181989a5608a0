/* Names of models without RMSNorm, from GPT-2 to Falcon. */
#include "lib/model/arch_names.h"

/* Multi-head attention with head_dim = hidden_size / heads. */
#define PLAIN_HEADS                    \
    {"num_key_value_heads", "", NULL}, \
    {                                  \
        "head_dim", "", NULL           \
    }

const struct kv_tensor_names kv_names_gpt2 = {
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

const struct kv_own_field kv_fields_of_gpt2[] = {
    {"n_embd", "hidden_size", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"n_inner", "intermediate_size", NULL},
    {"n_layer", "num_hidden_layers", NULL},
    {"num_hidden_layers", "num_hidden_layers", NULL},
    {"n_head", "num_attention_heads", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"n_positions", "max_position_embeddings", NULL},
    {"max_position_embeddings", "max_position_embeddings", NULL},
    {"n_ctx", NULL, NULL}, /* old files repeat n_positions here */
    {"activation_function", "hidden_act", NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    PLAIN_HEADS,
    {"scale_attn_weights", NULL, "true"},
    {"scale_attn_by_inverse_layer_idx", NULL, "false"},
    {"reorder_and_upcast_attn", NULL, NULL},
    {"n_special", NULL, NULL}, /* in files older than transformers 3 */
    {"predict_special_tokens", NULL, NULL},
    {"output_past", NULL, NULL},
    {"_num_labels", NULL, NULL},
    {"summary_activation", NULL, NULL},
    {"summary_first_dropout", NULL, NULL},
    {"summary_proj_to_labels", NULL, NULL},
    {"summary_type", NULL, NULL},
    {"summary_use_proj", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_opt = {
    .prefix = "model.decoder.",
    .embed = "embed_tokens.weight",
    .positions = "embed_positions.weight",
    .norm = "final_layer_norm.weight",
    .head = "lm_head.weight",
    .project_in = "project_in.weight",
    .project_out = "project_out.weight",
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

const struct kv_own_field kv_fields_of_opt[] = {
    {"ffn_dim", "intermediate_size", NULL},
    {"activation_function", "hidden_act", NULL},
    {"rms_norm_eps", "", NULL},
    PLAIN_HEADS,
    {"do_layer_norm_before", "do_layer_norm_before", NULL},
    {"_remove_final_layer_norm", "_remove_final_layer_norm", NULL},
    {"enable_bias", "enable_bias", NULL},
    {"layer_norm_elementwise_affine", "layer_norm_elementwise_affine", NULL},
    {"word_embed_proj_dim", "word_embed_proj_dim", NULL},
    {"output_projection", NULL, NULL}, /* read by nothing */
    {"init_std", NULL, NULL},
    {"dropout", NULL, NULL},
    {"activation_dropout", NULL, NULL},
    {"layerdrop", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_bloom = {
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

const struct kv_own_field kv_fields_of_bloom[] = {
    {"n_embed", "hidden_size", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"n_layer", "num_hidden_layers", NULL},
    {"num_hidden_layers", "num_hidden_layers", NULL},
    {"n_head", "num_attention_heads", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"seq_length", "max_position_embeddings", NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    {"hidden_act", "", NULL},
    {"intermediate_size", "", NULL},
    PLAIN_HEADS,
    {"apply_residual_connection_post_layernorm", NULL, "false"},
    {"slow_but_exact", NULL, NULL},
    {"offset_alibi", NULL, NULL},
    {"attention_softmax_in_fp32", NULL, NULL},
    {"masked_softmax_fusion", NULL, NULL},
    {"bias_dropout_fusion", NULL, NULL},
    {"skip_bias_add", NULL, NULL},
    {"skip_bias_add_qkv", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_mpt = {
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

const struct kv_own_field kv_fields_of_mpt[] = {
    {"d_model", "hidden_size", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"n_layers", "num_hidden_layers", NULL},
    {"num_hidden_layers", "num_hidden_layers", NULL},
    {"n_heads", "num_attention_heads", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"max_seq_len", "max_position_embeddings", NULL},
    {"expansion_ratio", NULL, "4"},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    {"hidden_act", "", NULL},
    {"intermediate_size", "", NULL},
    PLAIN_HEADS,
    {"no_bias", NULL, "true"},
    {"norm_type", NULL, "\"low_precision_layernorm\""},
    {"learned_pos_emb", NULL, NULL}, /* without effect under ALiBi */
    {"embedding_fraction", NULL, NULL},
    {"emb_pdrop", NULL, NULL},
    {"init_device", NULL, NULL},
    {"init_config", NULL, NULL},
    {"tokenizer_name", NULL, NULL},
    {"verbose", NULL, NULL},
    {"attn_config", NULL, NULL},
    {"attn_config.alibi", NULL, "true"},
    {"attn_config.alibi_bias_max", NULL, "8"}, /* the class ignores other
                                                * values */
    {"attn_config.attn_impl", NULL, NULL},
    {"attn_config.attn_type", NULL, "\"multihead_attention\""},
    {"attn_config.attn_uses_sequence_id", NULL, "false"},
    {"attn_config.clip_qkv", NULL, NULL},
    {"attn_config.prefix_lm", NULL, "false"},
    {"attn_config.qk_ln", NULL, "false"},
    {"attn_config.softmax_scale", NULL, "null"},
    {0},
};

const struct kv_tensor_names kv_names_gpt_neox = {
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

const struct kv_own_field kv_fields_of_gpt_neox[] = {
    {"layer_norm_eps", "rms_norm_eps", NULL},
    {"rotary_pct", "partial_rotary_factor", NULL},
    {"partial_rotary_factor", "partial_rotary_factor", kv_unread},
    {"rotary_emb_base", "rope_theta", NULL},
    {"rope_theta", "rope_theta", kv_unread},
    {"use_parallel_residual", "use_parallel_residual", NULL},
    {"num_key_value_heads", "", NULL},
    {"attention_bias", NULL, "true"},
    {0},
};

const struct kv_own_field kv_fields_of_gpt_bigcode[] = {
    {"n_embd", "hidden_size", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"n_inner", "intermediate_size", NULL},
    {"n_layer", "num_hidden_layers", NULL},
    {"num_hidden_layers", "num_hidden_layers", NULL},
    {"n_head", "num_attention_heads", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"n_positions", "max_position_embeddings", NULL},
    {"max_position_embeddings", "max_position_embeddings", NULL},
    {"activation_function", "hidden_act", NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    PLAIN_HEADS,
    {"multi_query", "multi_query", NULL},
    {"scale_attn_weights", NULL, "true"},
    {"attention_softmax_in_fp32", NULL, NULL},
    {"scale_attention_softmax_in_fp32", NULL, NULL},
    {"inference_runner", NULL, NULL},
    {"summary_activation", NULL, NULL},
    {"summary_first_dropout", NULL, NULL},
    {"summary_proj_to_labels", NULL, NULL},
    {"summary_type", NULL, NULL},
    {"summary_use_proj", NULL, NULL},
    {0},
};

const struct kv_tensor_names kv_names_gptj = {
    .prefix = "transformer.",
    .embed = "wte.weight",
    .norm = "ln_f.weight",
    .head = "lm_head.weight",
    .layers = "h.",
    .part =
        {
            [KV_P_Q] = "attn.q_proj.weight",
            [KV_P_K] = "attn.k_proj.weight",
            [KV_P_V] = "attn.v_proj.weight",
            [KV_P_O] = "attn.out_proj.weight",
            [KV_P_UP] = "mlp.fc_in.weight",
            [KV_P_DOWN] = "mlp.fc_out.weight",
            [KV_P_ATTN_NORM] = "ln_1.weight",
            [KV_P_MLP_NORM] = "ln_1.weight",
        },
};

const struct kv_own_field kv_fields_of_gptj[] = {
    {"n_embd", "hidden_size", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"n_inner", "intermediate_size", NULL},
    {"n_layer", "num_hidden_layers", NULL},
    {"num_hidden_layers", "num_hidden_layers", NULL},
    {"n_head", "num_attention_heads", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"n_positions", "max_position_embeddings", NULL},
    {"max_position_embeddings", "max_position_embeddings", NULL},
    {"activation_function", "hidden_act", NULL},
    {"layer_norm_epsilon", "rms_norm_eps", NULL},
    PLAIN_HEADS,
    {"rotary_dim", "rotary_dim", NULL},
    {"rotary", NULL, "true"},
    {"scale_attn_weights", NULL, NULL},
    {"summary_activation", NULL, NULL},
    {"summary_first_dropout", NULL, NULL},
    {"summary_proj_to_labels", NULL, NULL},
    {"summary_type", NULL, NULL},
    {"summary_use_proj", NULL, NULL},
    {"n_ctx", NULL, NULL},
    {0},
};

#define FALCON                                                   \
    .prefix = "transformer.", .embed = "word_embeddings.weight", \
    .norm = "ln_f.weight", .head = "lm_head.weight", .layers = "h."
#define FALCON_PARTS                                    \
    [KV_P_Q] = "self_attention.query_key_value.weight", \
    [KV_P_K] = "self_attention.query_key_value.weight", \
    [KV_P_V] = "self_attention.query_key_value.weight", \
    [KV_P_O] = "self_attention.dense.weight",           \
    [KV_P_UP] = "mlp.dense_h_to_4h.weight",             \
    [KV_P_DOWN] = "mlp.dense_4h_to_h.weight"
#define FALCON_FIELDS                                                       \
    {"n_embed", "hidden_size", NULL}, {"hidden_size", "hidden_size", NULL}, \
        {"ffn_hidden_size", "intermediate_size", NULL},                     \
        {"layer_norm_epsilon", "rms_norm_eps", NULL},                       \
        {"activation", "hidden_act", NULL},                                 \
        {"new_decoder_architecture", NULL, NULL},                           \
        {"bias", "enable_bias", NULL}, {"alibi", "alibi", NULL},            \
    {                                                                       \
        "apply_residual_connection_post_layernorm", NULL, "false"           \
    }

const struct kv_tensor_names kv_names_falcon = {
    FALCON,
    .part =
        {
            FALCON_PARTS,
            [KV_P_ATTN_NORM] = "input_layernorm.weight",
            [KV_P_MLP_NORM] = "post_attention_layernorm.weight",
        },
};

const struct kv_own_field kv_fields_of_falcon[] = {
    FALCON_FIELDS,
    {"parallel_attn", "use_parallel_residual", NULL},
    {"multi_query", "multi_query", NULL},
    {"num_kv_heads", NULL, NULL}, /* for the new decoder architecture */
    {"num_key_value_heads", "", NULL},
    {"num_ln_in_parallel_attn", NULL, "1"},
    {0},
};

/* Falcon 40B and 180B. */
const struct kv_tensor_names kv_names_falcon_new = {
    FALCON,
    .part =
        {
            FALCON_PARTS,
            [KV_P_ATTN_NORM] = "ln_attn.weight",
            [KV_P_MLP_NORM] = "ln_mlp.weight",
        },
};

const struct kv_own_field kv_fields_of_falcon_new[] = {
    FALCON_FIELDS,
    {"parallel_attn", NULL, "true"},
    {"multi_query", NULL, NULL},
    {"num_kv_heads", "num_key_value_heads", NULL},
    {"num_ln_in_parallel_attn", NULL, "2"},
    {0},
};

/* Falcon 11B: attention and MLP share one norm. */
const struct kv_own_field kv_fields_of_falcon_one_norm[] = {
    FALCON_FIELDS,
    {"parallel_attn", NULL, "true"},
    {"multi_query", NULL, NULL},
    {"num_kv_heads", "num_key_value_heads", NULL},
    {"num_ln_in_parallel_attn", NULL, "1"},
    {0},
};
