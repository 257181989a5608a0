/* lib/model/config: fields whose meaning depends on the architecture. */
#include "lib/model/config.h"
#include "tests/test.h"

#include <math.h>

/* A config of small sizes, its quotes ', and more. */
static int read_arch(const char *arch, const char *model_type, const char *more,
                     struct kv_config *c, struct kv_err *e)
{
    char text[2048];
    json_t *json;
    int rc;

    snprintf(text, sizeof(text),
             "{'architectures': ['%s'], 'model_type': '%s', 'hidden_size': 48, "
             "'intermediate_size': 40, 'num_hidden_layers': 4, "
             "'num_attention_heads': 6, %s"
             "'vocab_size': 61, 'max_position_embeddings': 512%s%s}",
             arch, model_type,
             strcmp(model_type, "falcon") ? "'num_key_value_heads': 2," : "",
             *more ? ", " : "", more);
    for (char *quote = text; (quote = strchr(quote, '\''));)
        *quote = '"';
    json = json_loads(text, 0, NULL);
    assert_non_null(json);
    rc = kv_config_parse(c, json, "config.json", e);
    json_decref(json);
    return rc;
}

static void test_windows(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        read_arch("Starcoder2ForCausalLM", "starcoder2", "", &c, &e), 0);
    assert_int_equal(c.shape.slide_window, 0);
    assert_int_equal(read_arch("Phi3ForCausalLM", "phi3", "", &c, &e), 0);
    assert_int_equal(c.shape.slide_window, 0);
    assert_int_equal(
        read_arch("Phi3ForCausalLM", "phi3", "'sliding_window': 64", &c, &e),
        0);
    assert_int_equal(c.shape.slide_window, 64);
}

/* Gemma 3n: a layer's numbers may be lists. */
static void test_streams(void **state)
{
    static const char *const bad[][2] = {
        {"'activation_sparsity_pattern': [0.5, 0.9, 0, 0]",
         "activation_sparsity_pattern has 0.5 and 0.9: one share and 0 are"},
        {"'activation_sparsity_pattern': [0.5, 1, 0, 0]",
         "entry 1 is no share from 0 to below 1"},
        {"'activation_sparsity_pattern': 0.5", "is not a list of 4 numbers"},
        {"'intermediate_size': [40, 40, 40, 44]",
         "entry 3 is not as the first"},
        {"'intermediate_size': [40]", "is not a list of 4 numbers"},
        {"'altup_active_idx': 1", "altup_active_idx is 1; only 0"},
        {"'altup_num_inputs': 9", "is not a whole number from 2 to 8"},
        {"'vocab_size_per_layer_input': 62", "is 62, but vocab_size is 61"}};
    const char *name = "Gemma3nForCausalLM", *type = "gemma3n_text";
    const char *base = "'vocab_size_per_layer_input': 60, "
                       "'num_kv_shared_layers': 0, 'intermediate_size': ";
    struct kv_config c;
    struct kv_err e = {""};
    char more[256];

    (void)state;
    snprintf(more, sizeof(more), "%s[40, 40, 40, 40]", base);
    assert_int_equal(read_arch(name, type, more, &c, &e), 0);
    assert_int_equal(c.inter, 40);
    assert_int_equal(c.layer_vocab, 60);
    assert_int_equal(c.n_streams, 4);
    assert_int_equal(c.sparse[0], 0);
    snprintf(more, sizeof(more),
             "%s40, 'activation_sparsity_pattern': "
             "[0.95, 0, 0.95, 0]",
             base);
    assert_int_equal(read_arch(name, type, more, &c, &e), 0);
    assert_int_equal(c.sparse[0], 5);
    assert_true(fabs((double)c.sparse_cut - 1.6448536269514722) < 1e-6);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        snprintf(more, sizeof(more), "%s40, %s", base, bad[i][0]);
        assert_int_equal(read_arch(name, type, more, &c, &e), -1);
        assert_says(e, bad[i][1]);
    }
}

/* SmolLM3: layers without RoPE. */
static void test_still(void **state)
{
    static const char *const no_rope[] = {"", "'no_rope_layers': [1, 1, 1, 0]"};
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            read_arch("SmolLM3ForCausalLM", "smollm3", no_rope[i], &c, &e), 0);
        for (size_t l = 0; l < 4; l++)
            assert_int_equal(kv_shape_layer(&c.shape, l).n_rot, l < 3 ? 4 : 0);
    }
    assert_int_equal(read_arch("SmolLM3ForCausalLM", "smollm3",
                               "'no_rope_layers': [1, 0]", &c, &e),
                     -1);
    assert_says(e, "no_rope_layers is not a list of 4 numbers");
    assert_int_equal(read_arch("SmolLM3ForCausalLM", "smollm3",
                               "'no_rope_layers': [1, 2, 1, 0]", &c, &e),
                     -1);
    assert_says(e, "no_rope_layers: layer 1 is neither 0 nor 1");
}

/* SmolLM3: these layers slide if the config opts for a window. */
static void test_still_slides(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_arch("SmolLM3ForCausalLM", "smollm3",
                               "'no_rope_layer_interval': 2, 'sliding_window': "
                               "16, 'use_sliding_window': true",
                               &c, &e),
                     0);
    for (size_t l = 0; l < 4; l++) {
        const struct kv_shape s = kv_shape_layer(&c.shape, l);

        assert_int_equal(s.window, l % 2 ? 16 : 0);
        assert_int_equal(s.n_rot, l % 2 ? 0 : 4);
    }
}

/* Qwen3 MoE: all layers slide if the config opts for a window. */
static void test_all_slide(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        read_arch("Qwen3MoeForCausalLM", "qwen3_moe",
                  "'num_experts': 8, 'num_experts_per_tok': 2, "
                  "'moe_intermediate_size': 8, 'use_sliding_window': true",
                  &c, &e),
        0);
    for (size_t l = 0; l < 4; l++)
        assert_int_equal(kv_shape_layer(&c.shape, l).window, 4096);
}

/* Phi 3's lists of divisors: of short windows, of long ones; the scale. */
static void test_longrope(void **state)
{
    static const char text[] =
        "'original_max_position_embeddings': 64, 'rope_scaling': {'type': "
        "'su', 'short_factor': [1, 1, 1, 2], 'long_factor': [1, 1, 1, 4]}";
    struct kv_config c;
    struct kv_err e = {""};
    float near;

    (void)state;
    assert_int_equal(read_arch("Phi3ForCausalLM", "phi3", text, &c, &e), 0);
    near = c.shape.inv_freq[3];
    assert_true(near == (float)(pow(1e4, -0.75) / 2));
    assert_true(c.rope.scale == (float)sqrt(1.5)); /* 512 of 64 tokens */
    kv_config_set_window(&c, 65);
    assert_true(c.shape.inv_freq[3] == near / 2);
    kv_config_set_window(&c, 64);
    assert_true(c.shape.inv_freq[3] == near);
    assert_int_equal(
        read_arch("Phi3ForCausalLM", "phi3",
                  "'rope_scaling': {'type': 'longrope', 'short_factor': [1]}",
                  &c, &e),
        -1);
    assert_says(e, "rope_scaling.long_factor is not a list of 4 numbers");
}

static void test_yarn(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        read_arch("Qwen2ForCausalLM", "qwen2",
                  "'rms_norm_eps': 1e-6, 'rope_scaling': {'type': 'yarn', "
                  "'factor': 4.0, 'original_max_position_embeddings': 128}",
                  &c, &e),
        0);
    assert_true(c.rope.scale == (float)(0.1 * log(4) + 1));
    assert_true(c.shape.inv_freq[0] == 1);
    assert_true(c.shape.inv_freq[3] == (float)(pow(1e4, -0.75) / 4));
    assert_int_equal(
        read_arch("Qwen2ForCausalLM", "qwen2",
                  "'rms_norm_eps': 1e-6, 'rope_scaling': {'type': 'yarn', "
                  "'factor': 4.0, 'truncate': 1}",
                  &c, &e),
        -1);
    assert_says(e, "rope_scaling.truncate is neither true nor false");
    assert_int_equal(
        read_arch("Qwen2ForCausalLM", "qwen2",
                  "'rms_norm_eps': 1e-6, 'rope_scaling': {'type': 'dynamic', "
                  "'factor': 0.5}",
                  &c, &e),
        -1);
    assert_says(e, "rope_scaling.factor: dynamic RoPE wants a factor from 1");
}

static void refused(const char *arch, const char *model_type, const char *more,
                    const char *says)
{
    struct kv_config c;
    struct kv_err e = {""};

    assert_int_equal(read_arch(arch, model_type, more, &c, &e), -1);
    assert_says(e, says);
}

/* Which of the three decoders a Falcon model has, and which fields it lacks. */
static void test_falcon(void **state)
{
    static const char arch[] = "FalconForCausalLM", type[] = "falcon";
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_arch(arch, type, "'num_kv_heads': 6", &c, &e), 0);
    assert_int_equal(c.shape.n_kv_heads, 1);
    assert_int_equal(read_arch(arch, type,
                               "'num_kv_heads': 3, 'new_decoder_architecture': "
                               "true",
                               &c, &e),
                     0);
    assert_int_equal(c.shape.n_kv_heads, 3);
    assert_int_equal(read_arch(arch, type,
                               "'alibi': true, 'multi_query': false, "
                               "'parallel_attn': false, 'bias': true",
                               &c, &e),
                     0);
    assert_int_equal(c.positions, KV_ALIBI);
    assert_int_equal(c.shape.n_kv_heads, c.shape.n_heads);
    assert_true(!c.parallel && c.qkv_bias && c.mlp_bias);
    refused(arch, type,
            "'new_decoder_architecture': true, 'parallel_attn': false",
            "parallel_attn is false; only true is implemented");
    assert_int_equal(read_arch(arch, type,
                               "'num_kv_heads': 3, 'new_decoder_architecture': "
                               "true, 'num_ln_in_parallel_attn': 1",
                               &c, &e),
                     0);
    assert_true(c.arch->one_norm && c.parallel);
    assert_int_equal(c.shape.n_kv_heads, 3);
    refused(arch, type,
            "'new_decoder_architecture': true, 'num_ln_in_parallel_attn': 3",
            "num_ln_in_parallel_attn is 3; only 2");
}

/* A model of several parts: only the text part counts. */
static void test_wrapped(void **state)
{
    static const char arch[] = "Gemma3ForConditionalGeneration";
    static const char text[] = "'text_config': {'model_type': 'gemma3_text', "
                               "'hidden_size': 24, 'intermediate_size': 8, "
                               "'num_hidden_layers': 6";
    struct kv_config c;
    struct kv_err e = {""};
    char more[512];

    (void)state;
    snprintf(more, sizeof(more), "%s, 'sliding_window': 64}", text);
    assert_int_equal(read_arch(arch, "gemma3", more, &c, &e), 0);
    assert_int_equal(c.hidden, 24);
    assert_int_equal(c.shape.n_heads, 8);
    assert_int_equal(c.shape.head_dim, 256);
    assert_int_equal(c.shape.slide_window, 64);
    assert_true(c.wrapped && c.tied_unless);
    snprintf(more, sizeof(more), "%s, 'kv_lora_rank': 1}", text);
    refused(arch, "gemma3", more, "text_config.kv_lora_rank is not known");
    refused(arch, "gemma3", "", "field text_config is missing");
    refused(arch, "gemma3", "'text_config': {'model_type': 'llama'}",
            "text_config.model_type is llama, but architectures is Gemma3");
    refused("Qwen3ForCausalLM", "qwen3", "'vision_config': {}",
            "field vision_config is not known");
    for (size_t i = 0; i < 2; i++) { /* the text part chooses the row */
        snprintf(more, sizeof(more),
                 "'text_config': {'model_type': '%s', 'hidden_size': 24, "
                 "'num_attention_heads': 6, 'num_key_value_heads': 2, "
                 "'intermediate_size': 8, "
                 "'rms_norm_eps': 1e-6, 'num_hidden_layers': 2, "
                 "'vocab_size': 61, 'max_position_embeddings': 64}",
                 i ? "qwen3" : "qwen2");
        if (read_arch("InternVLForConditionalGeneration", "internvl", more, &c,
                      &e))
            fail_msg("%s", e.msg);
        assert_string_equal(c.arch->name,
                            i ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM");
    }
    refused("InternVLForConditionalGeneration", "internvl",
            "'text_config': {'model_type': 'llama'}",
            "text_config.model_type is llama, but architectures is InternVL");
}

/* EXAONE 4: most layers have a window, and only those have RoPE. */
static void test_exaone(void **state)
{
    static const char arch[] = "Exaone4ForCausalLM", type[] = "exaone4";
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_arch(arch, type, "", &c, &e), 0);
    assert_int_equal(c.shape.slide_window, 4096);
    assert_int_equal(kv_shape_layer(&c.shape, 2).n_rot, 4);
    assert_int_equal(kv_shape_layer(&c.shape, 3).n_rot, 0);
    assert_int_equal(
        read_arch(arch, type,
                  "'sliding_window': null, 'sliding_window_pattern': 0", &c,
                  &e),
        0);
    assert_int_equal(c.shape.slide_window, 0);
    assert_int_equal(kv_shape_layer(&c.shape, 3).n_rot, 4);
    refused(arch, type, "'sliding_window_pattern': 'LLLG'",
            "sliding_window_pattern is not a whole number");
}

static void test_experts(void **state)
{
    static const char arch[] = "MixtralForCausalLM", type[] = "mixtral";

    (void)state;
    refused(arch, type, "'num_local_experts': 4, 'num_experts_per_tok': 5",
            "num_experts_per_tok is not a whole number from 1 to 4");
    refused(arch, type, "'num_experts_per_tok': 5",
            "field num_local_experts is missing");
    refused("Qwen3MoeForCausalLM", "qwen3_moe",
            "'num_experts': 4, 'num_experts_per_tok': 2, "
            "'moe_intermediate_size': 8, 'mlp_only_layers': [0, 99]",
            "field mlp_only_layers: entry 1 is no layer below");
}

/* Fields of released models that say nothing of the numbers in these. */
static void test_released(void **state)
{
    static const struct {
        const char *arch, *model_type, *more;
    } cases[] = {
        {"Phi3ForCausalLM", "phi3",
         "'auto_map': {'AutoConfig': 'configuration_phi3.Phi3Config'}, "
         "'full_attn_mod': 1, 'interpolate_factor': 1, 'lm_head_bias': false, "
         "'mlp_bias': false, 'attention_bias': false, "
         "'partial_rotary_factor': 0.75, 'embd_pdrop': 0.0, "
         "'sliding_window': 262144"},
        {"SmolLM3ForCausalLM", "smollm3",
         "'pretraining_tp': 2, 'max_window_layers': 28, 'sliding_window': "
         "null, 'use_sliding_window': false, 'no_rope_layer_interval': 4"},
        {"FalconForCausalLM", "falcon",
         "'alibi': false, 'bias': false, 'parallel_attn': true, "
         "'multi_query': true, 'apply_residual_connection_post_layernorm': "
         "false, 'auto_map': {}, 'hidden_dropout': 0.0"},
        {"Cohere2ForCausalLM", "cohere2",
         "'layer_switch': 4, 'order_of_interleaved_layers': "
         "'local_attn_first', 'position_embedding_type': 'rope_gptj', "
         "'rotary_pct': 1.0, 'use_gated_activation': true"},
        {"MixtralForCausalLM", "mixtral",
         "'num_local_experts': 8, 'num_experts_per_tok': 2, "
         "'output_router_logits': false, 'router_aux_loss_coef': 0.02"},
        {"Qwen3MoeForCausalLM", "qwen3_moe",
         "'num_experts': 8, 'num_experts_per_tok': 2, 'moe_intermediate_size': "
         "8, 'sliding_window': 4096, 'use_sliding_window': false, "
         "'max_window_layers': 48, 'decoder_sparse_step': 1"},
        {"MPTForCausalLM", "mpt",
         "'d_model': 48, 'n_heads': 6, 'n_layers': 4, 'expansion_ratio': 4, "
         "'attn_config': {'alibi': true, 'alibi_bias_max': 8, 'attn_impl': "
         "'torch', 'attn_pdrop': 0, 'attn_type': 'multihead_attention', "
         "'clip_qkv': null, 'prefix_lm': false, 'qk_ln': false}, 'auto_map': "
         "{'AutoConfig': 'configuration_mpt.MPTConfig'}, 'tokenizer_name': "
         "'EleutherAI/gpt-neox-20b', 'init_config': {'gain': 0}, 'verbose': 0"},
        {"GPT2LMHeadModel", "gpt2",
         "'n_embd': 48, 'n_head': 6, 'n_layer': 4, 'n_positions': 512, "
         "'n_ctx': 512, 'n_special': 0, 'predict_special_tokens': true, "
         "'output_past': true, '_num_labels': 1"},
        {"OPTForCausalLM", "opt",
         "'ffn_dim': 40, 'output_projection': true, 'prefix': '</s>', "
         "'word_embed_proj_dim': 48, 'activation_dropout': 0.0"},
        {"GemmaForCausalLM", "gemma",
         "'rms_norm_eps': 1e-6, 'hidden_act': 'gelu', 'hidden_activation': "
         "null, 'rope_scaling': null"},
        {"Gemma2ForCausalLM", "gemma2",
         "'rms_norm_eps': 1e-6, 'hidden_act': 'gelu_pytorch_tanh', "
         "'hidden_activation': 'gelu_pytorch_tanh', 'sliding_window': 4096, "
         "'sliding_window_size': 4096, 'cache_implementation': 'hybrid'"},
        {"GPTNeoXForCausalLM", "gpt_neox",
         "'rotary_pct': 1.0, 'rotary_emb_base': 10000, 'rope_theta': 10000, "
         "'partial_rotary_factor': 1.0, 'use_parallel_residual': false"},
        {"LlamaForCausalLM", "llama",
         "'rms_norm_eps': 1e-5, 'pretraining_tp': 2, 'auto_map': {}, "
         "'rope_scaling': {'type': 'yarn', 'factor': 16.0, 'finetuned': true, "
         "'original_max_position_embeddings': 64}"},
    };
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (read_arch(cases[i].arch, cases[i].model_type, cases[i].more, &c,
                      &e))
            fail_msg("%s: %s", cases[i].arch, e.msg);
}

/* Names that the class does not read. */
static void test_foreign(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_arch("OPTForCausalLM", "opt",
                               "'ffn_dim': 40, 'rms_norm_eps': 0.01", &c, &e),
                     0);
    assert_true(c.norm_eps == 1e-5F);
    assert_int_equal(c.shape.n_kv_heads, 6);
    assert_int_equal(read_arch("BloomForCausalLM", "bloom",
                               "'hidden_act': 'relu', 'rms_norm_eps': 0.01, "
                               "'head_dim': 2",
                               &c, &e),
                     0);
    assert_int_equal(c.act, KV_ACT_GELU_TANH);
    assert_true(c.norm_eps == 1e-5F);
    assert_int_equal(c.inter, 4 * 48);
    assert_int_equal(c.shape.head_dim, 8);
    assert_int_equal(read_arch("FalconForCausalLM", "falcon",
                               "'num_key_value_heads': 3", &c, &e),
                     0);
    assert_int_equal(c.shape.n_kv_heads, 1);
}

/* Fields whose values only some classes accept. */
static void test_listed(void **state)
{
    static const char moe[] =
        "'num_experts': 4, 'moe_topk': %s, 'num_shared_expert': [1, 1, 1, 1]";
    static const char *const bad[] = {"[2, 2, 2, 3]", "[2, 2, 2]", "[0]",
                                      "[5, 5, 5, 5]", "[]",        "['2']"};
    const char *name = "HunYuanMoEV1ForCausalLM", *type = "hunyuan_v1_moe";
    struct kv_config c;
    struct kv_err e = {""};
    char more[128];

    (void)state;
    snprintf(more, sizeof(more), moe, "[2, 2, 2, 2]");
    assert_int_equal(read_arch(name, type, more, &c, &e), 0);
    assert_int_equal(c.n_used, 2);
    assert_int_equal(c.shared_inter, 40);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        snprintf(more, sizeof(more), moe, bad[i]);
        refused(name, type, more,
                "moe_topk is not a list with the same number from 1 to 4 for "
                "each of 4 layers");
    }
    refused("Qwen3MoeForCausalLM", "qwen3_moe",
            "'moe_intermediate_size': 8, 'rms_norm_eps': 1e-6, "
            "'num_experts': 4, 'num_experts_per_tok': [2, 2, 2, 2]",
            "num_experts_per_tok is not a whole number from 1 to 4");
}

static void test_grows(void **state)
{
    static const char rope[] =
        "'rms_norm_eps': 1e-5, 'rope_parameters': {'rope_type': 'yarn', "
        "'factor': 4, 'rope_theta': "
        "1e6, 'original_max_position_embeddings': 128%s}";
    const char *name = "Ministral3ForCausalLM", *type = "ministral3";
    struct kv_config c;
    struct kv_err e = {""};
    char more[256];

    (void)state;
    snprintf(more, sizeof(more), rope, ", 'llama_4_scaling_beta': 0.1");
    assert_int_equal(read_arch(name, type, more, &c, &e), 0);
    assert_int_equal(c.rope.limit, 128);
    refused("MistralForCausalLM", "mistral", more, "llama_4_scaling_beta");
    snprintf(more, sizeof(more), rope, ", 'llama_4_scaling_beta': 0");
    assert_int_equal(read_arch(name, type, more, &c, &e), 0);
    assert_int_equal(c.rope.limit, 0);
    snprintf(more, sizeof(more), rope, ", 'llama_4_scaling_beta': -1");
    refused(name, type, more, "llama_4_scaling_beta is not a number from 0 on");
    snprintf(more, sizeof(more), rope, "");
    refused(name, type, more, "llama_4_scaling_beta is not a number from 0 on");
    refused(name, type, "'rms_norm_eps': 1e-5",
            "has a YaRN of its class's own");
}

static void test_unstretched(void **state)
{
    static const char rope[] =
        "'scale_emb': 12, 'scale_depth': 1.4, 'dim_model_base': 8, "
        "'rope_scaling': {'rope_type': '%s', 'short_factor': [1, 1, 1, 1], "
        "'long_factor': [2, 2, 2, 2], 'original_max_position_embeddings': %d}";
    const char *name = "MiniCPMForCausalLM", *type = "minicpm";
    struct kv_config c;
    struct kv_err e = {""};
    char more[512];

    (void)state;
    snprintf(more, sizeof(more), rope, "longrope", 512);
    assert_int_equal(read_arch(name, type, more, &c, &e), 0);
    assert_int_equal(c.rope.near, 512);
    assert_true(c.rope.scale == 1);
    snprintf(more, sizeof(more), rope, "longrope", 256);
    refused(name, type, more,
            "original_max_position_embeddings is 256; only 512, its "
            "max_position_embeddings, is implemented");
    snprintf(more, sizeof(more), rope, "linear", 512);
    refused(name, type, more, "RoPE scaling linear is not implemented");
}

static void test_unknown(void **state)
{
    (void)state;
    refused("MiniCPM3ForCausalLM", "minicpm3", "",
            "multi-head latent attention");
    refused("MambaForCausalLM", "mamba", "",
            "unknown architecture MambaForCausalLM (known: LlamaForCausalLM, ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_streams),
        cmocka_unit_test(test_still),     cmocka_unit_test(test_still_slides),
        cmocka_unit_test(test_all_slide), cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_yarn),      cmocka_unit_test(test_wrapped),
        cmocka_unit_test(test_falcon),    cmocka_unit_test(test_exaone),
        cmocka_unit_test(test_experts),   cmocka_unit_test(test_released),
        cmocka_unit_test(test_foreign),   cmocka_unit_test(test_listed),
        cmocka_unit_test(test_grows),     cmocka_unit_test(test_unstretched),
        cmocka_unit_test(test_unknown)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
