/* config.json */
#include "lib/model/config.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kv_config c;
    struct kv_err e = {""};
    const int rc = kv_config_read(&c, fuzz_file("config.json", data, n), &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    fuzz_expect(c.shape.n_heads % c.shape.n_kv_heads == 0, "heads in groups");
    fuzz_expect(c.norm_eps > 0 && isfinite(c.norm_eps), "epsilon");
    for (size_t i = 0; i < c.shape.n_rot; i++)
        fuzz_expect(c.shape.inv_freq[i] > 0 && isfinite(c.shape.inv_freq[i]),
                    "frequencies");
    return 0;
}

void fuzz_make_seeds(void)
{
    static const char *const more[] = {
        "\"rope_theta\": 10000.0",
        "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": "
        "5e5}",
        "\"rope_parameters\": {\"full_attention\": {\"rope_type\": "
        "\"default\", "
        "\"rope_theta\": 5e5}}",
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", "
        "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}",
        "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}",
        "\"partial_rotary_factor\": 1.0, \"sliding_window\": null",
        "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
        "\"beta_fast\": 16, \"mscale\": 1, \"mscale_all_dim\": 2, "
        "\"original_max_position_embeddings\": 128}",
        "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4.0}",
        "\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 4.0, "
        "\"short_factor\": [1, 1, 1, 1, 1, 1, 1, 2], \"long_factor\": [1, 2, "
        "3, 4, 5, 6, 7, 8]}",
        "\"num_experts_per_tok\": 2, \"num_local_experts\": 4",
        "\"no_rope_layers\": [1, 0], \"no_rope_layer_interval\": 2",
        "\"use_sliding_window\": true, \"sliding_window\": 64, "
        "\"max_window_layers\": 2, \"layer_types\": [\"full_attention\", "
        "\"full_attention\"]"};
    static const char *const archs[][2] = {
        {"LlamaForCausalLM", "llama"},     {"MistralForCausalLM", "mistral"},
        {"Qwen2ForCausalLM", "qwen2"},     {"Qwen3ForCausalLM", "qwen3"},
        {"MixtralForCausalLM", "mixtral"}, {"SmolLM3ForCausalLM", "smollm3"},
        {"Exaone4ForCausalLM", "exaone4"}};
    char text[2048], name[32];

    for (size_t a = 0; a < sizeof(archs) / sizeof(*archs); a++)
        for (size_t i = 0; i < sizeof(more) / sizeof(*more); i++) {
            snprintf(text, sizeof(text),
                     "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", "
                     "\"hidden_size\": 64, \"intermediate_size\": 96, "
                     "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                     "\"num_key_value_heads\": 2, \"head_dim\": 16, "
                     "\"vocab_size\": 256, \"max_position_embeddings\": 512, "
                     "\"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", "
                     "\"tie_word_embeddings\": false, \"attention_bias\": "
                     "false, \"torch_dtype\": \"bfloat16\", %s}",
                     archs[a][0], archs[a][1], more[i]);
            snprintf(name, sizeof(name), "%zu-%zu", a, i);
            fuzz_seed(name, text, strlen(text));
        }
}
