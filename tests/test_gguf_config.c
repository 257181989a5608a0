/* lib/model/gguf_config: what config.json of the same model would say. */
#include "lib/base/file.h"
#include "lib/model/gguf_model.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"

#include <math.h>

static const char *family;

/* A key of the family's. */
static const char *key(const char *name)
{
    static char full[96];

    snprintf(full, sizeof(full), "%s.%s", family, name);
    return full;
}

/* A file with sizes that all have, and no tensors but the embedding.  wide: of
 * the MLPs of 3 layers; NULL: 16, for all. */
static struct tiny_gguf begin_wide(const char *name, const uint32_t *wide)
{
    const float x[8] = {0};
    struct tiny_gguf g = {0};

    family = name;
    tiny_key_text(&g, "general.architecture", family);
    tiny_key_u32(&g, key("block_count"), 3);
    tiny_key_u32(&g, key("context_length"), 512);
    tiny_key_u32(&g, key("embedding_length"), 8);
    if (wide)
        tiny_key_array(&g, key("feed_forward_length"), TINY_U32, 3, wide,
                       3 * sizeof(*wide));
    else
        tiny_key_u32(&g, key("feed_forward_length"), 16);
    tiny_key_u32(&g, key("attention.head_count"), 2);
    tiny_tensor(&g, "token_embd.weight", 0, 2, (size_t[]){1, 8}, x, 32);
    return g;
}

static struct tiny_gguf begin(const char *name)
{
    return begin_wide(name, NULL);
}

/* Checks that the config equals this text, whose ' become "; clears g. */
static void check_text(struct tiny_gguf *g, char *text)
{
    char *path = kv_path_join(test_folder(), "m.gguf"), *got;
    struct kv_gguf_model m;
    struct kv_err e = {""};
    json_t *is = NULL, *should;

    for (char *quote = text; (quote = strchr(quote, '\''));)
        *quote = '"';
    should = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(should);
    tiny_gguf_write(g, path);
    if (!kv_gguf_model_open(&m, path, &e))
        is = kv_gguf_config(&m, &e);
    if (!is)
        fail_msg("%s", e.msg);
    got = json_dumps(is, JSON_SORT_KEYS);
    if (!json_equal(is, should))
        fail_msg("%s", got);
    free(got);
    json_decref(should);
    json_decref(is);
    kv_gguf_model_clear(&m);
    tiny_gguf_clear(g);
    free(path);
}

/* Checks that the config.json has the fields of begin() and `more`; clears
 * g. */
static void check(struct tiny_gguf *g, const char *arch, const char *model_type,
                  const char *more)
{
    char text[2048];

    snprintf(text, sizeof(text),
             "{'architectures': ['%s'], 'model_type': '%s', "
             "'num_hidden_layers': 3, 'max_position_embeddings': 512, "
             "'hidden_size': 8, 'intermediate_size': 16, 'vocab_size': 1, "
             "'num_attention_heads': 2, 'num_key_value_heads': 2, "
             "'tie_word_embeddings': true, %s}",
             arch, model_type, more);
    check_text(g, text);
}

static void test_windows(void **state)
{
    struct tiny_gguf g = begin("llama");

    (void)state;
    tiny_key_u32(&g, key("attention.sliding_window"), 64);
    check(&g, "MistralForCausalLM", "mistral",
          "'head_dim': 4, 'attention_bias': false, 'rope_theta': 10000.0, "
          "'sliding_window': 64");
    g = begin("gemma3");
    tiny_key_u32(&g, key("attention.sliding_window"), 64);
    tiny_key_u32(&g, key("attention.sliding_window_pattern"), 2);
    tiny_key_u32(&g, key("attention.key_length"), 16);
    tiny_key_u32(&g, key("attention.value_length"), 16);
    tiny_key_f32(&g, key("rope.freq_base"), 1e6f);
    tiny_key_f32(&g, key("final_logit_softcapping"), 30);
    check(&g, "Gemma3ForCausalLM", "gemma3_text",
          "'head_dim': 16, 'attention_bias': false, 'rope_theta': 1000000.0, "
          "'rope_local_base_freq': 10000.0, 'sliding_window': 64, "
          "'final_logit_softcapping': 30.0, 'query_pre_attn_scalar': 16, "
          "'layer_types': ['sliding_attention', 'full_attention', "
          "'sliding_attention']");
    g = begin("exaone4");
    tiny_key_u32(&g, key("attention.sliding_window"), 64);
    tiny_key_array(&g, key("attention.sliding_window_pattern"), TINY_BOOL, 3,
                   "\0\1\0", 3);
    check(&g, "Exaone4ForCausalLM", "exaone4",
          "'head_dim': 4, 'rope_theta': 10000.0, 'sliding_window': 64, "
          "'layer_types': ['full_attention', 'sliding_attention', "
          "'full_attention']");
    g = begin("exaone4"); /* its class would have a window */
    check(&g, "Exaone4ForCausalLM", "exaone4",
          "'head_dim': 4, 'rope_theta': 10000.0, 'sliding_window': null");
}

static void test_rope(void **state)
{
    const float two[] = {1, 8}, more[] = {2, 16};
    struct tiny_gguf g = begin("qwen2");

    (void)state;
    tiny_key_text(&g, key("rope.scaling.type"), "yarn");
    tiny_key_f32(&g, key("rope.scaling.factor"), 4);
    tiny_key_u32(&g, key("rope.scaling.original_context_length"), 128);
    check(&g, "Qwen2ForCausalLM", "qwen2",
          "'head_dim': 4, 'rope_theta': 10000.0, 'rope_scaling': {'rope_type': "
          "'yarn', 'factor': 4.0, 'beta_fast': 32.0, 'beta_slow': 1.0, "
          "'original_max_position_embeddings': 128}");
    g = begin("llama");
    tiny_key_f32(&g, key("rope.freq_base"), 5e5f);
    tiny_tensor(&g, "rope_freqs.weight", 0, 1, (size_t[]){2}, two, 8);
    check(&g, "LlamaForCausalLM", "llama",
          "'head_dim': 4, 'attention_bias': false, 'rope_theta': 500000.0, "
          "'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1.0, "
          "8.0], 'long_factor': [1.0, 8.0], 'attention_factor': 1.0, "
          "'original_max_position_embeddings': 512}");
    g = begin("phi3");
    tiny_key_u32(&g, key("rope.scaling.original_context_length"), 128);
    tiny_key_u32(&g, key("rope.dimension_count"), 2);
    tiny_key_u32(&g, key("attention.sliding_window"), 0);
    tiny_key_f32(&g, key("rope.scaling.attn_factor"), 1.25f);
    tiny_tensor(&g, "rope_factors_long.weight", 0, 1, (size_t[]){1}, more, 4);
    tiny_tensor(&g, "rope_factors_short.weight", 0, 1, (size_t[]){1}, two, 4);
    check(&g, "Phi3ForCausalLM", "phi3",
          "'head_dim': 4, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5, "
          "'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1.0], "
          "'long_factor': [2.0], 'attention_factor': 1.25}, "
          "'original_max_position_embeddings': 128");
}

/* Refused with these words; g is cleared. */
static void refuse(struct tiny_gguf *g, const char *words)
{
    char *path = kv_path_join(test_folder(), "m.gguf");
    struct kv_gguf_model m;
    struct kv_err e = {""};

    tiny_gguf_write(g, path);
    assert_int_equal(kv_gguf_model_open(&m, path, &e), 0);
    assert_null(kv_gguf_config(&m, &e));
    assert_says(e, words);
    kv_gguf_model_clear(&m);
    tiny_gguf_clear(g);
    free(path);
}

/* A file with yarn of this factor and one more key. */
static struct tiny_gguf yarn(const char *type, const char *name, float x)
{
    struct tiny_gguf g = begin("qwen2");

    tiny_key_text(&g, key("rope.scaling.type"), type);
    tiny_key_f32(&g, key("rope.scaling.factor"), 4);
    tiny_key_f32(&g, key(name), x);
    return g;
}

/* llama.cpp multiplies the result of yarn's RoPE by 1 + 0.1 ln 4 =
 * 1.1386294. */
static void test_multipliers(void **state)
{
    static const struct {
        const char *type, *key, *words;
        float x;
    } cases[] = {
        {"yarn", "rope.scaling.yarn_attn_factor", NULL, 1.1386294f},
        {"yarn", "rope.scaling.yarn_attn_factor", "is 1; only 1.13863", 1},
        {"yarn", "rope.scaling.yarn_attn_factor", "is 1.5; only", 1.5f},
        {"yarn", "rope.scaling.yarn_ext_factor", NULL, -1},
        {"yarn", "rope.scaling.yarn_ext_factor", NULL, 1},
        {"yarn", "rope.scaling.yarn_ext_factor", "is 0; only 1", 0},
        {"yarn", "rope.scaling.yarn_ext_factor", "is nan; only 1", NAN},
        {"yarn", "rope.scaling.attn_factor", NULL, 1},
        {"yarn", "rope.scaling.attn_factor", "is 1.25; only 1 is", 1.25f},
        {"yarn", "rope.scaling.yarn_log_multiplier", "is not known", 0.1f},
        {"linear", "rope.scaling.yarn_attn_factor", "is 1.25; only 1", 1.25f},
        {"linear", "rope.scaling.yarn_ext_factor", "is 1; only 0", 1},
        {"linear", "rope.scaling.attn_factor", "is 1.25; only 1 is", 1.25f},
        {"none", "rope.scaling.attn_factor", "is 1.25; only 1 is", 1.25f},
        {"yarn", "rope.scaling.yarn_beta_fast", "is inf; a number", INFINITY},
        {"yarn", "rope.scaling.yarn_beta_slow", "is -1; a number", -1},
        {"yarn", "rope.scale_linear", "is -2; a number from 0 on", -2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct tiny_gguf g = yarn(cases[i].type, cases[i].key, cases[i].x);

        if (cases[i].words)
            refuse(&g, cases[i].words);
        else
            check(&g, "Qwen2ForCausalLM", "qwen2",
                  "'head_dim': 4, 'rope_theta': 10000.0, 'rope_scaling': "
                  "{'rope_type': 'yarn', 'factor': 4.0, 'beta_fast': 32.0, "
                  "'beta_slow': 1.0}");
    }
}

/* A head has 4 channels. */
static void test_turning(void **state)
{
    static const uint32_t bad[] = {0, 1, 3, 6, UINT32_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct tiny_gguf g = begin("qwen2");
        char words[128];

        tiny_key_u32(&g, key("rope.dimension_count"), bad[i]);
        snprintf(words, sizeof(words),
                 "key qwen2.rope.dimension_count is %u; an even number from 2 "
                 "to the 4 channels",
                 bad[i]);
        refuse(&g, words);
    }
}

/* Those that divide frequencies are read or refused, never passed over. */
static void test_factors(void **state)
{
    static const char *const names[] = {"rope_freqs.weight",
                                        "rope_factors_long.weight",
                                        "rope_factors_short.weight"};
    static const uint8_t blocks[292];
    const float one[] = {1, 1, 1}, bad[] = {1, 0}, worse[] = {NAN, 1};
    char words[128];

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 4; j++) {
            struct tiny_gguf g = begin("llama");

            if (i)
                tiny_tensor(&g, names[3 - i], 0, 1, (size_t[]){2}, one, 8);
            if (j < 2)
                tiny_tensor(&g, names[i], 0, 1, (size_t[]){2}, j ? worse : bad,
                            8);
            else if (j == 2)
                tiny_tensor(&g, names[i], 0, 1, (size_t[]){3}, one, 12);
            else
                tiny_tensor(&g, names[i], 15, 1, (size_t[]){256}, blocks,
                            sizeof(blocks));
            snprintf(words, sizeof(words), "tensor %s%s", names[i],
                     (const char *[]){
                         ": value 1 is 0, not above 0", ": value 0 is nan",
                         " has 3 values, but RoPE turns 2 pairs",
                         " has type Q8_K, which is not implemented"}[j]);
            refuse(&g, words);
        }
}

/* Every count, of every type that has a sign or more bits than llama.cpp's. */
static void test_counts(void **state)
{
    static const char *const counts[] = {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_count",
        "expert_used_count",
        "rope.dimension_count",
        "rope.scaling.original_context_length"};
    static const struct {
        uint32_t type;
        size_t bytes;
        int64_t x;
    } values[] = {{TINY_I8, 1, -1},         {TINY_I16, 2, -2},
                  {TINY_I32, 4, INT32_MIN}, {TINY_I64, 8, -1},
                  {TINY_I64, 8, INT64_MIN}, {TINY_I64, 8, INT64_MAX},
                  {TINY_U64, 8, -1},        {TINY_U64, 8, 1ll << 32}};

    (void)state;
    family = "gemma3";
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        for (size_t j = 0; j < 2 * sizeof(values) / sizeof(*values); j++) {
            static const char *const others[] = {"block_count",
                                                 "context_length",
                                                 "embedding_length",
                                                 "attention.head_count",
                                                 "attention.sliding_window",
                                                 "vocab_size"};
            struct tiny_gguf g = {0};
            char words[128];

            tiny_key_text(&g, "general.architecture", family);
            for (size_t k = 0; k < sizeof(others) / sizeof(*others); k++)
                if (strcmp(others[k], counts[i]))
                    tiny_key_u32(&g, key(others[k]), 8);
            if (j % 2 && i < 9) /* one for each layer */
                tiny_key_array(&g, key(counts[i]), values[j / 2].type, 1,
                               &values[j / 2].x, values[j / 2].bytes);
            else
                tiny_key(&g, key(counts[i]), values[j / 2].type,
                         &values[j / 2].x, values[j / 2].bytes);
            snprintf(words, sizeof(words), "key %s is ", key(counts[i]));
            refuse(&g, words);
        }
}

static void test_families(void **state)
{
    const float zero[8] = {0};
    struct tiny_gguf g = begin("granite");

    (void)state;
    tiny_key_f32(&g, key("logit_scale"), 8);
    tiny_key_f32(&g, key("attention.scale"), 0.25f);
    tiny_key_f32(&g, key("residual_scale"), 0.5f);
    tiny_key_f32(&g, key("embedding_scale"), 12);
    tiny_key_f32(&g, key("attention.layer_norm_rms_epsilon"), 0.5f);
    check(&g, "GraniteForCausalLM", "granite",
          "'head_dim': 4, 'attention_bias': false, 'rope_theta': 10000.0, "
          "'logits_scaling': 8.0, 'attention_multiplier': 0.25, "
          "'residual_multiplier': 0.5, 'embedding_multiplier': 12.0, "
          "'rms_norm_eps': 0.5");
    g = begin("starcoder2");
    tiny_key_f32(&g, key("attention.layer_norm_epsilon"), 0.5f);
    tiny_tensor(&g, "blk.0.attn_q.bias", 0, 1, (size_t[]){8}, zero, 32);
    check(&g, "Starcoder2ForCausalLM", "starcoder2",
          "'head_dim': 4, 'rope_theta': 10000.0, 'use_bias': true, "
          "'norm_epsilon': 0.5");
    g = begin("gptneox");
    tiny_key_f32(&g, key("attention.layer_norm_epsilon"), 0.5f);
    tiny_key(&g, key("use_parallel_residual"), TINY_BOOL, "", 1);
    check(&g, "GPTNeoXForCausalLM", "gpt_neox",
          "'head_dim': 4, 'rotary_emb_base': 10000.0, 'layer_norm_eps': 0.5, "
          "'rotary_pct': 1.0, 'use_parallel_residual': false");
    g = begin("command-r");
    tiny_key_f32(&g, key("attention.layer_norm_epsilon"), 0.5f);
    tiny_key_f32(&g, key("logit_scale"), 0.0625f);
    tiny_key_text(&g, key("rope.scaling.type"), "none");
    check(&g, "CohereForCausalLM", "cohere",
          "'head_dim': 4, 'attention_bias': false, 'use_qk_norm': false, "
          "'rope_theta': 10000.0, 'logit_scale': 0.0625, 'layer_norm_eps': "
          "0.5");
}

static void test_experts(void **state)
{
    struct tiny_gguf g = begin("llama");

    (void)state;
    tiny_key_u32(&g, key("expert_count"), 0);
    check(&g, "LlamaForCausalLM", "llama",
          "'head_dim': 4, 'attention_bias': false, 'rope_theta': 10000.0");
    g = begin("llama");
    tiny_key_u32(&g, key("expert_count"), 8);
    tiny_key_u32(&g, key("expert_used_count"), 2);
    check(&g, "MixtralForCausalLM", "mixtral",
          "'head_dim': 4, 'attention_bias': false, 'rope_theta': 10000.0, "
          "'num_local_experts': 8, 'num_experts_per_tok': 2");
}

/* KV heads say which layers have attention. */
static void test_hybrid(void **state)
{
    char text[] =
        "{'architectures': ['Lfm2ForCausalLM'], 'model_type': 'lfm2', "
        "'num_hidden_layers': 3, 'max_position_embeddings': 512, "
        "'hidden_size': 8, 'block_ff_dim': 16, 'vocab_size': 1, "
        "'num_attention_heads': 2, 'num_key_value_heads': 1, 'head_dim': 4, "
        "'tie_embedding': true, 'rope_theta': 10000.0, 'conv_L_cache': 3, "
        "'block_auto_adjust_ff_dim': false, "
        "'layer_types': ['conv', 'full_attention', 'conv']}";
    const uint32_t heads[] = {0, 1, 0}, differ[] = {2, 1, 0};
    struct tiny_gguf g = begin("lfm2");

    (void)state;
    tiny_key_u32(&g, key("shortconv.l_cache"), 3);
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, heads,
                   sizeof(heads));
    check_text(&g, text);
    g = begin("lfm2");
    tiny_key_u32(&g, key("shortconv.l_cache"), 3);
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, differ,
                   sizeof(differ));
    refuse(&g, "lfm2.attention.head_count_kv: layers differ, which is not "
               "implemented: one has 2, layer 1 has 1");
    g = begin("lfm2");
    refuse(&g, "key lfm2.shortconv.l_cache is missing");
    g = begin("llama"); /* all have attention */
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, heads,
                   sizeof(heads));
    refuse(&g, "layers differ, which is not implemented");
}

/* The keys of a mixer. */
static struct tiny_gguf begin_ssm(const char *name, uint32_t inner)
{
    struct tiny_gguf g = begin(name);

    tiny_key_u32(&g, key("ssm.conv_kernel"), 4);
    tiny_key_u32(&g, key("ssm.state_size"), 6);
    tiny_key_u32(&g, key("ssm.group_count"), 2);
    tiny_key_u32(&g, key("ssm.time_step_rank"), 4);
    tiny_key_u32(&g, key("ssm.inner_size"), inner);
    return g;
}

/* Which layers have no attention: every fourth, or by a list; a block that
 * predicts further tokens is no layer. */
static void test_delta(void **state)
{
    static const char fields[] =
        "'head_dim': 4, 'attention_bias': false, 'rope_theta': 10000.0, "
        "'partial_rotary_factor': 0.5, 'linear_conv_kernel_dim': 4, "
        "'linear_key_head_dim': 6, 'linear_num_key_heads': 2, "
        "'linear_num_value_heads': 4, 'linear_value_head_dim': 5, ";
    char all[1024];
    struct tiny_gguf g = begin_ssm("qwen35", 20);

    (void)state;
    tiny_key_u32(&g, key("rope.dimension_count"), 2);
    tiny_key_u32(&g, key("full_attention_interval"), 3);
    snprintf(all, sizeof(all), "%s'full_attention_interval': 3", fields);
    check(&g, "Qwen3_5ForCausalLM", "qwen3_5_text", all);
    g = begin_ssm("qwen35", 20);
    tiny_key_u32(&g, key("rope.dimension_count"), 2);
    tiny_key_u32(&g, key("full_attention_interval"), 4);
    tiny_key_array(&g, key("attention.recurrent_layers"), TINY_BOOL, 3,
                   "\1\0\1", 3);
    snprintf(all, sizeof(all),
             "%s'layer_types': ['linear_attention', 'full_attention', "
             "'linear_attention']",
             fields);
    check(&g, "Qwen3_5ForCausalLM", "qwen3_5_text", all);
    g = begin_ssm("qwen35", 22);
    refuse(&g, "key qwen35.ssm.inner_size is 22, which is no multiple of "
               "ssm.time_step_rank 4");
    g = begin_ssm("qwen35", 20);
    tiny_key_array(&g, key("attention.recurrent_layers"), TINY_BOOL, 2, "\1\0",
                   2);
    refuse(&g, "qwen35.attention.recurrent_layers has 2 values for 3 layers");
    g = begin_ssm("qwen35", 20);
    tiny_key_u32(&g, key("nextn_predict_layers"), 3);
    refuse(&g, "qwen35.nextn_predict_layers is 3 of 3 blocks (block_count)");
    g = begin("llama");
    tiny_key_u32(&g, key("nextn_predict_layers"), 1);
    refuse(&g, "is 1 of 3 blocks (block_count), but there are none in a Llama");
    g = begin("qwen35");
    refuse(&g, "key qwen35.ssm.conv_kernel is missing");
}

/* Layers of a kind by lists. */
static void test_mamba(void **state)
{
    static const uint32_t heads[] = {0, 2, 0};
    struct tiny_gguf g = begin_ssm("granitehybrid", 16);

    (void)state;
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, heads,
                   sizeof(heads));
    tiny_key(&g, key("rope.scaling.finetuned"), TINY_BOOL, "", 1);
    check(&g, "GraniteMoeHybridForCausalLM", "granitemoehybrid",
          "'head_dim': 4, 'attention_bias': false, 'rope_theta': 10000.0, "
          "'layer_types': ['mamba', 'full_attention', 'mamba'], "
          "'mamba_d_conv': 4, 'mamba_d_state': 6, 'mamba_n_groups': 2, "
          "'mamba_n_heads': 4, 'mamba_d_head': 4, 'mamba_expand': 2, "
          "'mamba_conv_bias': false, 'position_embedding_type': 'nope', "
          "'num_local_experts': 0, 'shared_intermediate_size': 16");
    g = begin_ssm("granitehybrid", 20);
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, heads,
                   sizeof(heads));
    refuse(&g, "ssm.inner_size is 20, which is no multiple of "
               "embedding_length 8");
    g = begin_ssm("granitehybrid", 16);
    refuse(&g, "key granitehybrid.attention.head_count_kv is no list: it says "
               "which layers have attention");
    g = begin_ssm("nemotron_h", 16);
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, heads,
                   sizeof(heads));
    refuse(&g, "key nemotron_h.feed_forward_length is no list");
    g = begin_ssm("nemotron_h_moe", 16);
    tiny_key_u32(&g, key("expert_gating_func"), 1);
    refuse(&g, "expert_gating_func is 1; only 2 is implemented");
    g = begin("dots1");
    tiny_key_u32(&g, key("expert_gating_func"), 1);
    refuse(&g, "expert_gating_func is 1; only 2 is implemented");
}

/* Gemma 4: what goes by the kind of layer. */
static struct tiny_gguf begin_gemma4(size_t n, const float *factor,
                                     const uint32_t *wide)
{
    struct tiny_gguf g = begin_wide("gemma4", wide);

    tiny_key_u32(&g, key("attention.sliding_window"), 64);
    tiny_key_array(&g, key("attention.sliding_window_pattern"), TINY_BOOL, 3,
                   "\1\1\0", 3);
    tiny_key_u32(&g, key("attention.key_length"), 8);
    tiny_key_u32(&g, key("attention.value_length"), 8);
    tiny_key_u32(&g, key("attention.key_length_swa"), 4);
    tiny_tensor(&g, "rope_freqs.weight", 0, 1, (size_t[]){n}, factor, 4 * n);
    return g;
}

static void test_gemma4(void **state)
{
    static const float still[] = {1, 1, 1e30f, 1e30f}, odd[] = {1, 1e30f, 1, 1};
    const uint32_t heads[] = {2, 2, 1}, differ[] = {2, 1, 1};
    const uint32_t wide[] = {16, 16, 24};
    struct tiny_gguf g = begin_gemma4(4, still, NULL);

    (void)state;
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, heads,
                   sizeof(heads));
    tiny_key_f32(&g, key("rope.freq_base"), 1e6f);
    check(&g, "Gemma4ForCausalLM", "gemma4_text",
          "'head_dim': 4, 'global_head_dim': 8, 'sliding_window': 64, "
          "'num_global_key_value_heads': 1, 'attention_k_eq_v': true, "
          "'enable_moe_block': false, 'layer_types': ['sliding_attention', "
          "'sliding_attention', 'full_attention'], 'rope_parameters': "
          "{'full_attention': {'rope_type': 'proportional', 'rope_theta': "
          "1000000.0, 'partial_rotary_factor': 0.5}, 'sliding_attention': "
          "{'rope_type': 'default', 'rope_theta': 10000.0}}");
    g = begin_gemma4(4, odd, NULL);
    refuse(&g, "tensor rope_freqs.weight: value 2 is 1; only 1, and from some "
               "pair on 1e30");
    g = begin_gemma4(3, still, NULL);
    refuse(&g, "tensor rope_freqs.weight has another count or type; 4 numbers");
    g = begin_gemma4(4, still, NULL);
    tiny_key_array(&g, key("attention.head_count_kv"), TINY_U32, 3, differ,
                   sizeof(differ));
    refuse(&g, "attention.head_count_kv: layers of a kind differ");
    g = begin_gemma4(4, still, wide);
    refuse(&g, "gemma4.feed_forward_length: layer 2 has 24, the first 16: only "
               "twice as many in the 0 layers that share");
    g = begin_gemma4(4, still, NULL);
    tiny_key_u32(&g, key("rope.dimension_count_swa"), 2);
    refuse(&g, "rope.dimension_count_swa is 2; only the 4 channels of a head");
    g = begin_gemma4(4, still, NULL);
    tiny_key_f32(&g, key("rope.scaling.factor"), 2);
    refuse(&g, "gemma4.rope.scaling.factor is 2; only 1 is implemented");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),     cmocka_unit_test(test_rope),
        cmocka_unit_test(test_families),    cmocka_unit_test(test_experts),
        cmocka_unit_test(test_multipliers), cmocka_unit_test(test_factors),
        cmocka_unit_test(test_counts),      cmocka_unit_test(test_turning),
        cmocka_unit_test(test_hybrid),      cmocka_unit_test(test_delta),
        cmocka_unit_test(test_mamba),       cmocka_unit_test(test_gemma4),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
