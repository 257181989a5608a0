/* lib/model/config: pairs of fields of config.json that mean the same, or
 * contradict each other.  Which one counts was derived from tiny random models
 * of every class in transformers 5.24, with one field or pair changed at a
 * time. */
#include "tests/config_setup.h"

#include <math.h>

#define LLAMA3(rest)                                                     \
    "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, " \
    "\"high_freq_factor\": 4" rest
#define OLD_CTX "\"original_max_position_embeddings\": 64"
#define THETA(x) "\"rope_theta\": " #x
#define MISTRAL "[\"MistralForCausalLM\"]"
#define QWEN2 "[\"Qwen2ForCausalLM\"]"
#define QWEN3 "[\"Qwen3ForCausalLM\"]"
#define GEMMA "[\"GemmaForCausalLM\"]"
#define GEMMA2 "[\"Gemma2ForCausalLM\"]"
#define GEMMA3 "[\"Gemma3ForCausalLM\"]"
#define GPT2 "[\"GPT2LMHeadModel\"]"
#define MPT "[\"MPTForCausalLM\"], \"model_type\": \"mpt\""
#define OPT "[\"OPTForCausalLM\"], \"ffn_dim\": 40"
#define BLOOM "[\"BloomForCausalLM\"]"
#define FALCON "[\"FalconForCausalLM\"]"
#define NEOX "[\"GPTNeoXForCausalLM\"]"
#define PHI3 "[\"Phi3ForCausalLM\"]"
#define SMOLLM3 "[\"SmolLM3ForCausalLM\"]"
#define OLMO3 "[\"Olmo3ForCausalLM\"]"
#define MIXTRAL "[\"MixtralForCausalLM\"], \"num_experts_per_tok\": 2"
#define QWEN3_MOE                                     \
    "[\"Qwen3MoeForCausalLM\"], \"num_experts\": 4, " \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8"
#define LONGROPE(type, more)                                 \
    "\"rope_scaling\": {\"type\": \"" type                   \
    "\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [" \
    "1, 1, 1, 2]" more "}"
#define TYPES(a, b, c) "\"layer_types\": [\"" a "\", \"" b "\", \"" c "\"]"
#define FULL "full_attention"
#define SLIDES "sliding_attention"

/* Only sizes; each case adds the rest. */
static const struct pair sizes[MAX] = {
    {"hidden_size", "256"},
    {"intermediate_size", "40"},
    {"num_hidden_layers", "3"},
    {"num_attention_heads", "32"},
    {"vocab_size", "61"},
    {"max_position_embeddings", "512"},
    {"rms_norm_eps", "1e-5"},
    {"head_dim", "8"},
    {0},
};

static int read_case(const char *arch, const char *more, struct kv_config *c,
                     struct kv_err *e)
{
    char text[2048];

    snprintf(text, sizeof(text), "\"architectures\": %s%s%s",
             arch ? arch : "[\"LlamaForCausalLM\"]", *more ? ", " : "", more);
    return read_text(sizes, "", text, c, e);
}

/* Pairs of configs that write the same numbers in two ways. */
static const struct {
    const char *arch, *a, *b;
} twins[] = {
    /* theta, in any of its places */
    {NULL, "", THETA(1e4)},
    {NULL, THETA(5e5), "\"rope_scaling\": {" THETA(5e5) "}"},
    {NULL, THETA(5e5), "\"rope_parameters\": {" THETA(500000) "}"},
    {NULL, THETA(5e5), THETA(5e5) ", \"rope_parameters\": {" THETA(5e5) "}"},
    {NULL, THETA(5e5), THETA(5e5) ", \"rope_parameters\": {}"},
    {NULL, THETA(5e5) ", \"rope_scaling\": {" LLAMA3(", " OLD_CTX) "}",
     "\"rope_scaling\": {" LLAMA3(", " OLD_CTX ", " THETA(5e5)) "}"},
    {NULL, THETA(5e5) ", \"rope_scaling\": {" LLAMA3(", " OLD_CTX) "}",
     THETA(5e5) ", \"rope_scaling\": {" LLAMA3(", " OLD_CTX) "}, " OLD_CTX},
    /* both blocks are given and agree */
    {NULL,
     THETA(5e5) ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
     "\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"linear\", "
     "\"factor\": 4.0}, \"rope_parameters\": {\"rope_type\": \"linear\", "
     "\"factor\": 4, " THETA(5e5) "}"},
    /* each class's default of an absent field */
    {NULL, "\"num_key_value_heads\": 32", ""},
    {NULL, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": null"},
    {MISTRAL, "\"num_key_value_heads\": 8", ""},
    {MISTRAL, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": null"},
    {QWEN2, "\"num_key_value_heads\": 32", ""},
    {QWEN3, "\"num_key_value_heads\": 32", ""},
    {MISTRAL, "\"sliding_window\": 4096", ""},
    {QWEN2, "\"use_sliding_window\": true, \"max_window_layers\": 1",
     "\"use_sliding_window\": true, \"max_window_layers\": 1, "
     "\"sliding_window\": 4096"},
    {NULL, "\"hidden_act\": \"silu\"", ""},
    {NULL, "\"tie_word_embeddings\": false", ""},
    {QWEN2, "\"tie_word_embeddings\": false", ""},
    {QWEN3, "\"attention_bias\": false", ""},
    /* windows in which no layer slides */
    {MISTRAL, "\"sliding_window\": null",
     "\"sliding_window\": null, " TYPES(FULL, FULL, FULL)},
    {QWEN2, "", "\"sliding_window\": 16"},
    {QWEN2, "", "\"sliding_window\": 16, \"use_sliding_window\": false"},
    {QWEN2, "", "\"sliding_window\": 16, \"use_sliding_window\": true"},
    {QWEN2, "", "\"sliding_window\": null, \"use_sliding_window\": true"},
    {QWEN2, "",
     "\"sliding_window\": 16, \"use_sliding_window\": true, "
     "\"max_window_layers\": 3"},
    {QWEN2, "",
     "\"sliding_window\": 16, \"use_sliding_window\": true, "
     "\"max_window_layers\": 0, " TYPES(FULL, FULL, FULL)},
    {NULL, "",
     "\"use_sliding_window\": false, \"max_window_layers\": 0, "
     "\"sliding_window\": null, " TYPES(FULL, FULL, FULL)},
    /* Gemma: caps, scale and RoPE by type, in both layouts */
    {GEMMA, "\"hidden_act\": \"gelu_pytorch_tanh\"",
     "\"tie_word_embeddings\": true, \"hidden_activation\": null"},
    {GEMMA, "", "\"hidden_act\": \"gelu\", \"hidden_activation\": null"},
    {GEMMA2, TYPES(SLIDES, FULL, SLIDES),
     "\"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30, "
     "\"query_pre_attn_scalar\": 256, \"sliding_window\": 4096"},
    {GEMMA3, "\"sliding_window_pattern\": 2",
     TYPES(SLIDES, FULL,
           SLIDES) ", \"_sliding_window_pattern\": 6, "
                   "\"rope_local_base_freq\": 10000, " THETA(1e6)},
    {GEMMA3,
     "\"sliding_window_pattern\": 2, \"rope_local_base_freq\": 500, " THETA(
         5e5) ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}",
     "\"sliding_window_pattern\": 2, "
     "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", "
     "\"factor\": 8, " THETA(5e5) "}, \"sliding_attention\": {" THETA(
         500) "}}"},
    {GEMMA3, THETA(5e5),
     "\"rope_parameters\": {\"full_attention\": {" THETA(5e5) "}}"},
    {OLMO3, "", "\"rope_local_base_freq\": 500000"},
    {GEMMA3, "", "\"_sliding_window_pattern\": 6"},
    {GEMMA3, "\"sliding_window_pattern\": 2",
     "\"sliding_window_pattern\": 2, \"_sliding_window_pattern\": 2"},
    /* transformers' class does not use these */
    {GEMMA3, "", "\"attn_logit_softcapping\": 5.0"},
    /* two names of one field */
    {GPT2, "",
     "\"n_embd\": 256, \"n_layer\": 3, \"n_head\": 32, "
     "\"n_positions\": 512"},
    {MPT, "", "\"d_model\": 256, \"n_layers\": 3, \"n_heads\": 32"},
    {BLOOM, "", "\"n_embed\": 256, \"n_layer\": 3, \"n_head\": 32"},
    {FALCON, "", "\"n_embed\": 256"},
    {MIXTRAL, "\"num_experts\": 4",
     "\"num_experts\": 4, \"num_local_experts\": 4"},
    {NEOX, "\"rotary_emb_base\": 500, \"rotary_pct\": 0.5",
     "\"rotary_emb_base\": 500, \"rotary_pct\": 0.5, " THETA(
         500) ", \"partial_rotary_factor\": 0.5"},
    {NEOX, "\"rotary_pct\": 0.5",
     "\"rotary_pct\": 0.5, \"rope_parameters\": "
     "{\"partial_rotary_factor\": 0.5}"},
    {NEOX, "", "\"use_parallel_residual\": true"},
    /* names that other classes read */
    {OPT, "", "\"num_key_value_heads\": 4"},
    {BLOOM, "", "\"hidden_act\": \"relu\", \"num_key_value_heads\": 4"},
    {MPT, "", "\"hidden_act\": \"relu\", \"num_key_value_heads\": 4"},
    {GPT2, "", "\"hidden_act\": \"relu\", \"num_key_value_heads\": 4"},
    {FALCON, "", "\"num_key_value_heads\": 4"},
    {FALCON, "", "\"num_key_value_heads\": null"},
    /* transformers uses model_type if the class is the model's own */
    {MPT, "", "\"auto_map\": {\"AutoConfig\": \"a.B\"}"},
    /* windows that are opted for */
    {QWEN3_MOE, "", "\"sliding_window\": 16, \"use_sliding_window\": false"},
    {QWEN3_MOE,
     "\"use_sliding_window\": true, \"sliding_window\": 16, " TYPES(
         SLIDES, SLIDES, SLIDES),
     "\"use_sliding_window\": true, \"sliding_window\": 16, "
     "\"max_window_layers\": 2"},
    {SMOLLM3, "", "\"sliding_window\": 16, \"use_sliding_window\": false"},
    {SMOLLM3,
     "\"use_sliding_window\": true, \"sliding_window\": 16, "
     "\"no_rope_layers\": [1, 0, 1]",
     "\"use_sliding_window\": true, \"sliding_window\": 16, "
     "\"no_rope_layer_interval\": 2, " TYPES(FULL, SLIDES, FULL)},
    {SMOLLM3, "", "\"use_sliding_window\": true"},
    /* RoPE: notes that change nothing, and what Phi 3 makes of its fields */
    {NULL, "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}",
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
     "\"finetuned\": true, \"attn_factor\": 2, \"extrapolation_factor\": 1}"},
    {NULL, "", "\"pretraining_tp\": 2, \"auto_map\": {}"},
    {PHI3, LONGROPE("longrope", ""),
     LONGROPE("yarn", ", \"original_max_position_embeddings\": 4096")},
    {PHI3, OLD_CTX ", " LONGROPE("longrope", ""),
     OLD_CTX ", " LONGROPE("su", ", " OLD_CTX)},
};

static void test_twins(void **state)
{
    struct kv_config a, b;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(twins) / sizeof(*twins); i++) {
        if (read_case(twins[i].arch, twins[i].a, &a, &e) ||
            read_case(twins[i].arch, twins[i].b, &b, &e))
            fail_msg("%s", e.msg);
        if (!same(&a, &b))
            fail_msg("%s and %s differ", twins[i].a, twins[i].b);
    }
    assert_int_equal(read_case(NULL, THETA(5e5), &a, &e), 0);
    assert_true(a.shape.inv_freq[3] == (float)pow(5e5, -0.75));
    assert_int_equal(read_case(MISTRAL, "", &a, &e), 0);
    assert_int_equal(a.shape.slide_window, 4096);
    assert_int_equal(
        read_text(sizes, "head_dim", "\"architectures\": " QWEN3, &a, &e), 0);
    assert_int_equal(a.shape.head_dim, 128);
}

/* Refusals, and the fields that the sentence names. */
static const struct {
    const char *arch, *more, *says[2];
} refusals[] = {
    {NULL, "\"model_type\": \"mistral\"", {"model_type", "architectures"}},
    {NULL, "\"model_type\": \"granite\"", {"model_type", "architectures"}},
    {QWEN3, "\"model_type\": \"qwen2\"", {"model_type", "architectures"}},
    {NULL,
     THETA(1e6) ", \"rope_scaling\": {" THETA(5e5) "}",
     {"field rope_scaling.rope_theta is 500000", "rope_theta is 1e+06"}},
    {NULL,
     "\"rope_parameters\": {" THETA(1e6) "}, \"rope_scaling\": {" THETA(
         5e5) "}",
     {"rope_scaling.rope_theta is", "rope_parameters.rope_theta is"}},
    {NULL,
     "\"rope_parameters\": {\"rope_type\": \"default\"}, "
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
     {"rope_parameters and", "rope_scaling contradict"}},
    {NULL,
     "\"rope_parameters\": {\"rope_type\": \"default\"}, "
     "\"rope_scaling\": {\"type\": \"ntk\", \"factor\": 4}",
     {"rope_scaling.type", "ntk is not implemented"}},
    {NULL,
     "\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": "
     "\"default\", \"factor\": 4}",
     {"rope_scaling.rope_type", "rope_scaling.type"}},
    {NULL,
     "\"rope_scaling\": {" LLAMA3(
         ", " OLD_CTX) "}, "
                       "\"original_max_position_embeddings\": 32",
     {"field original_max_position_embeddings is 32",
      "goes by rope_scaling.original_max_position_embeddings, which is 64"}},
    {NULL,
     "\"rope_scaling\": {" LLAMA3("") "}, " OLD_CTX,
     {"rope_scaling.original_max_position_embeddings is missing", ""}},
    {NULL,
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, " OLD_CTX,
     {"original_max_position_embeddings is 64", "which is 512"}},
    {PHI3,
     LONGROPE("longrope", ", " OLD_CTX),
     {"rope_scaling.original_max_position_embeddings is 64",
      "goes by original_max_position_embeddings, which is 4096"}},
    {PHI3,
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
     {"rope_scaling.type: RoPE scaling linear is not", "(known: default, "}},
    {NULL,
     "\"rope_scaling\": {\"factor\": 1, \"beta_fast\": 32}",
     {"rope_scaling.beta_fast", "is not known"}},
    {NULL, "\"rope_scaling\": 4", {"rope_scaling", "is not an object"}},
    {NULL,
     "\"rope_parameters\": {\"sliding_attention\": {}}",
     {"rope_parameters is by type of layers",
      "LlamaForCausalLM does not read"}},
    {NULL,
     "\"rope_parameters\": {\"full_attention\": {" THETA(1e6) "}}",
     {"rope_parameters is by type of layers",
      "LlamaForCausalLM does not read"}},
    {QWEN2,
     "\"rope_parameters\": {\"full_attention\": {" THETA(1e6) "}}",
     {"rope_parameters is by type of layers",
      "Qwen2ForCausalLM does not read"}},
    {GEMMA3,
     "\"rope_scaling\": {\"full_attention\": {" THETA(1e6) "}}",
     {"rope_scaling is by type of layers", "Gemma3ForCausalLM does not read"}},
    {GEMMA3,
     "\"rope_parameters\": {\"full_attention\": 1}",
     {"rope_parameters.full_attention", "is not an object"}},
    {GEMMA3,
     "\"rope_parameters\": {\"full_attention\": {}, " THETA(5) "}",
     {"rope_parameters.rope_theta", "is not known"}},
    {GEMMA3,
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 8}",
     {"rope_scaling.type", "goes by rope_scaling.rope_type, which is missing"}},
    {OLMO3,
     "\"rope_local_base_freq\": 100",
     {"rope_local_base_freq is 100, but that of layers that slide is 500000",
      "contradict"}},
    {NULL,
     THETA(1e-37) ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": "
                  "1e-20}",
     {"rope_theta 1e-37", "which f32"}},
    {NULL,
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e37}",
     {"scaling linear", "which f32"}},
    {NULL, "\"sliding_window\": 16", {"sliding_window", "has none"}},
    {NULL,
     "\"query_pre_attn_scalar\": 8",
     {"query_pre_attn_scalar", "has none"}},
    {GEMMA,
     "\"final_logit_softcapping\": 8",
     {"final_logit_softcapping", "GemmaForCausalLM has none"}},
    {GEMMA,
     "\"hidden_activation\": \"gelu\"",
     {"hidden_activation is \"gelu\"", "only \"gelu_pytorch_tanh\""}},
    {GEMMA2,
     "\"hidden_act\": \"gelu\"",
     {"hidden_act is \"gelu\"", "only \"gelu_pytorch_tanh\""}},
    {GEMMA2,
     "\"sliding_window\": 16, \"sliding_window_size\": 8",
     {"sliding_window_size is 8, but sliding_window is 16", "contradict"}},
    {GEMMA3,
     "\"_sliding_window_pattern\": 3",
     {"_sliding_window_pattern is 3", "sliding_window_pattern, which is 6"}},
    {GEMMA3,
     "\"_sliding_window_pattern\": 3, \"sliding_window_pattern\": 2",
     {"_sliding_window_pattern is 3", "sliding_window_pattern, which is 2"}},
    {GPT2,
     "\"n_embd\": 36",
     {"field hidden_size is 256, but n_embd is 36", "contradict"}},
    {GPT2, "\"n_layer\": 2", {"num_hidden_layers is 3", "n_layer is 2"}},
    {GPT2, "\"n_head\": 4", {"num_attention_heads is 32", "n_head is 4"}},
    {GPT2,
     "\"n_positions\": 64",
     {"max_position_embeddings is 512", "n_positions is 64"}},
    {MPT, "\"d_model\": 36", {"hidden_size is 256", "d_model is 36"}},
    {MPT, "\"n_heads\": 4", {"num_attention_heads is 32", "n_heads is 4"}},
    {BLOOM, "\"n_embed\": 36", {"hidden_size is 256", "n_embed is 36"}},
    {BLOOM, "\"n_head\": 4", {"num_attention_heads is 32", "n_head is 4"}},
    {FALCON, "\"n_embed\": 36", {"hidden_size is 256", "n_embed is 36"}},
    {MIXTRAL,
     "\"num_experts\": 4, \"num_local_experts\": 8",
     {"num_experts is 4", "num_local_experts is 8"}},
    {QWEN3_MOE,
     "\"num_local_experts\": 8",
     {"num_local_experts is 8", "num_experts is 4"}},
    {NEOX,
     "\"rotary_emb_base\": 500, " THETA(5e5),
     {"rope_theta is 500000.0, but rotary_emb_base is 500", "contradict"}},
    {NEOX,
     THETA(5e5),
     {"rope_theta is 500000.0", "rotary_emb_base, which is missing"}},
    {NEOX,
     "\"partial_rotary_factor\": 0.5",
     {"partial_rotary_factor is 0.5", "rotary_pct, which is missing"}},
    {NEOX,
     "\"rotary_emb_base\": 500, \"rope_parameters\": {" THETA(5e5) "}",
     {"field rope_parameters.rope_theta is 500000", "rotary_emb_base is 500"}},
    {NEOX,
     "\"rotary_pct\": 0.5, \"rope_parameters\": "
     "{\"partial_rotary_factor\": 0.25}",
     {"rope_parameters.partial_rotary_factor is 0.25", "rotary_pct is 0.5"}},
    {NEOX,
     "\"use_parallel_residual\": 1",
     {"use_parallel_residual", "neither true nor false"}},
    {"[\"MPTForCausalLM\"]", "", {"unknown architecture MPTForCausalLM", ""}},
    {"[\"MPTModel\"], \"model_type\": \"mpt\"",
     "",
     {"unknown architecture MPTModel", ""}},
    {GEMMA2,
     "\"sliding_window_pattern\": 3",
     {"sliding_window_pattern", "has none"}},
    {GEMMA2,
     "\"rope_local_base_freq\": 3",
     {"rope_local_base_freq", "has none"}},
    {GEMMA2,
     "\"attn_logit_softcapping\": -1",
     {"attn_logit_softcapping", "above 0"}},
    {GEMMA3,
     "\"use_bidirectional_attention\": true",
     {"bidirectional", "only"}},
    {GEMMA3,
     "\"rope_parameters\": {" THETA(5e5) "}",
     {"rope_parameters is not by type", "Gemma3ForCausalLM has it"}},
    {NULL, "\"use_sliding_window\": true", {"use_sliding_window", "does not"}},
    {MISTRAL,
     "\"use_sliding_window\": false",
     {"use_sliding_window is false", "sliding_window this Mistral"}},
    {MISTRAL,
     TYPES(FULL, FULL, FULL),
     {"layer_types 0 layers slide", "sliding_window and use_sliding_window 3"}},
    {QWEN2,
     TYPES(FULL, FULL, SLIDES),
     {"layer_types 1 layers slide", "use_sliding_window 0"}},
    {NULL, TYPES(FULL, FULL, SLIDES), {"layer_types 1", "sliding_window"}},
    {QWEN2,
     TYPES(FULL, FULL, "chunked_attention"),
     {"layer_types: layer 2 is chunked_attention", "known"}},
    {QWEN2,
     "\"layer_types\": [\"full_attention\"]",
     {"layer_types is not a list of 3", ""}},
    {MISTRAL, "\"attention_bias\": true", {"attention_bias is true", "none"}},
    {QWEN2, "\"attention_bias\": true", {"attention_bias is true", "none"}},
    {QWEN3, "\"mlp_bias\": true", {"mlp_bias is true", "none"}},
    {NULL, "\"attention_multiplier\": 0.0156", {"attention_multiplier", ""}},
    {NULL,
     "\"final_logit_softcapping\": 30.0",
     {"final_logit_softcapping", ""}},
    {NULL, THETA(1e4) ", " THETA(1e4), {"duplicate", "rope_theta"}},
    {MISTRAL,
     "\"sliding_window\": 1000000000000000019884624838656",
     {"field sliding_window", "is not a whole number from 1"}},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
        struct kv_config c;
        struct kv_err e = {""};

        if (!read_case(refusals[i].arch, refusals[i].more, &c, &e))
            fail_msg("%s was taken", refusals[i].more);
        assert_says(e, "config.json: ");
        assert_says(e, refusals[i].says[0]);
        assert_says(e, refusals[i].says[1]);
    }
}

/* Fields of well-known models that say nothing of the numbers. */
static void test_harmless(void **state)
{
    static const char more[] =
        "\"_name_or_path\": \"a/b\", \"attention_dropout\": 0.1, "
        "\"bos_token_id\": 128000, \"eos_token_id\": [1, 2], "
        "\"initializer_range\": 0.02, \"pretraining_tp\": 1, "
        "\"torch_dtype\": \"bfloat16\", \"dtype\": \"float16\", "
        "\"transformers_version\": \"4.46.0\", \"use_cache\": false, "
        "\"rope_interleaved\": false, \"is_llama_config\": true, "
        "\"transformers.js_config\": {\"dtype\": {}}, \"use_mrope\": false, "
        "\"unsloth_fixed\": true, \"pad_token_id\": -1, "
        "\"_attn_implementation_autoset\": true, \"temperature\": 0.6, "
        "\"top_p\": 0.9, \"do_sample\": true, \"max_length\": 4096, "
        "\"model_max_length\": 1000000000000000019884624838656, "
        "\"id2label\": {\"0\": \"A\"}, \"task_specific_params\": {}, "
        "\"quantization_config\": null, \"max_sequence_length\": 2048";
    struct kv_config is, should;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_case(NULL, "", &should, &e), 0);
    if (read_case(NULL, more, &is, &e))
        fail_msg("%s", e.msg);
    assert_true(same(&is, &should));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_harmless),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
