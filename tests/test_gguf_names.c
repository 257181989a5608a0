/* lib/model/gguf_names: tensors of GGUF files by their names in transformers.
 */
#include "lib/base/alloc.h"
#include "lib/model/model.h"
#include "lib/model/weights.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A vector of two, 3 and 0.5, named as in the file. */
static void put(struct tiny_gguf *g, const char *name)
{
    tiny_tensor(g, name, 0, 1, (size_t[]){2}, (float[]){3, 0.5f}, 8);
}

static void check_weight(const struct kv_weights *w, const char *name,
                         float want)
{
    const struct kv_weight *found = kv_weights_find(w, name);
    float x;

    if (!found)
        fail_msg("no %s", name);
    kv_weight_dequantize(found, 0, 1, &x);
    assert_true(x == want);
}

static void open_weights(struct kv_weights *w, struct tiny_gguf *g)
{
    char *path = kv_path_join(test_folder(), "m.gguf");
    struct kv_err e = {""};

    tiny_gguf_write(g, path);
    if (kv_weights_open(w, path, &e))
        fail_msg("%s", e.msg);
    tiny_gguf_clear(g);
    free(path);
}

/* Norms of Gemma are stored with 1 added; frequencies of RoPE are no weight. */
static void test_names(void **state)
{
    struct tiny_gguf g = {0};
    struct kv_weights w;

    (void)state;
    tiny_key_text(&g, "general.architecture", "gemma3");
    tiny_key_u32(&g, "gemma3.block_count", 1);
    tiny_key_u32(&g, "gemma3.context_length", 8);
    tiny_key_u32(&g, "gemma3.embedding_length", 2);
    tiny_key_u32(&g, "gemma3.attention.head_count", 1);
    put(&g, "token_embd.weight");
    put(&g, "output_norm.weight");
    tiny_tensor(&g, "rope_freqs.weight", 0, 1, (size_t[]){1}, (float[]){3}, 4);
    put(&g, "blk.12.ffn_norm.weight");
    put(&g, "blk.12.post_attention_norm.weight");
    put(&g, "blk.12.post_ffw_norm.weight");
    put(&g, "blk.12.attn_k_norm.weight");
    put(&g, "blk.12.attn_k.bias");
    open_weights(&w, &g);
    assert_int_equal(w.n_weights, 7);
    check_weight(&w, "model.embed_tokens.weight", 3);
    check_weight(&w, "model.norm.weight", 2);
    check_weight(&w, "model.layers.12.pre_feedforward_layernorm.weight", 2);
    check_weight(&w, "model.layers.12.post_attention_layernorm.weight", 2);
    check_weight(&w, "model.layers.12.post_feedforward_layernorm.weight", 2);
    check_weight(&w, "model.layers.12.self_attn.k_norm.weight", 2);
    check_weight(&w, "model.layers.12.self_attn.k_proj.bias", 3);
    kv_weights_clear(&w);

    tiny_key_text(&g, "general.architecture", "starcoder2");
    tiny_key_u32(&g, "starcoder2.block_count", 1);
    tiny_key_u32(&g, "starcoder2.context_length", 8);
    tiny_key_u32(&g, "starcoder2.embedding_length", 2);
    tiny_key_u32(&g, "starcoder2.attention.head_count", 1);
    put(&g, "token_embd.weight");
    put(&g, "blk.0.ffn_up.weight");
    put(&g, "blk.0.ffn_down.bias");
    put(&g, "blk.0.attn_norm.weight");
    put(&g, "blk.0.attn_k.bias");
    open_weights(&w, &g);
    check_weight(&w, "model.layers.0.mlp.c_fc.weight", 3);
    check_weight(&w, "model.layers.0.mlp.c_proj.bias", 3);
    check_weight(&w, "model.layers.0.input_layernorm.weight", 3);
    kv_weights_clear(&w);
}

/* Sizes of a file of this family. */
static void put_sizes(struct tiny_gguf *g, const char *family)
{
    static const char *const sizes[] = {
        "block_count",     "context_length",     "embedding_length",
        "ssm.conv_kernel", "ssm.state_size",     "ssm.group_count",
        "ssm.inner_size",  "ssm.time_step_rank", "attention.head_count"};
    char key[64];

    tiny_key_text(g, "general.architecture", family);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        snprintf(key, sizeof(key), "%s.%s", family, sizes[i]);
        tiny_key_u32(g, key, i < 3 || i == 6 ? 2 : 1);
    }
    put(g, "token_embd.weight");
}

/* Both layouts of linear attention, a gated norm without the 1 of others, and a
 * block that predicts further tokens. */
static void test_hybrids(void **state)
{
    const uint32_t heads[] = {0, 1}, wide[] = {0, 0};
    struct tiny_gguf g = {0};
    struct kv_weights w;

    (void)state;
    put_sizes(&g, "qwen3next");
    tiny_key_u32(&g, "qwen3next.nextn_predict_layers", 1);
    put(&g, "blk.0.ssm_in.weight");
    put(&g, "blk.0.ssm_ba.weight");
    put(&g, "blk.0.attn_qkv.weight");
    put(&g, "blk.0.attn_gate.weight");
    put(&g, "blk.0.ssm_a");
    put(&g, "blk.0.ssm_dt.bias");
    put(&g, "blk.0.ssm_norm.weight");
    put(&g, "blk.0.post_attention_norm.weight");
    put(&g, "blk.0.ffn_gate_up_exps.weight");
    put(&g, "blk.1.nextn.enorm.weight");
    open_weights(&w, &g);
    check_weight(&w, "model.layers.0.linear_attn.in_proj_qkvz.weight", 3);
    check_weight(&w, "model.layers.0.linear_attn.in_proj_ba.weight", 3);
    check_weight(&w, "model.layers.0.attn_qkv.weight", 3);
    check_weight(&w, "model.layers.0.linear_attn.in_proj_z.weight", 3);
    check_weight(&w, "model.layers.0.linear_attn.A_log", 3);
    check_weight(&w, "model.layers.0.linear_attn.dt_bias", 3);
    check_weight(&w, "model.layers.0.linear_attn.norm.weight", 3);
    check_weight(&w, "model.layers.0.post_attention_layernorm.weight", 2);
    check_weight(&w, "model.layers.0.mlp.experts.gate_up_proj", 3);
    check_weight(&w, "model.layers.1.nextn.enorm.weight", 2);
    kv_weights_clear(&w);

    put_sizes(&g, "nemotron_h");
    tiny_key_array(&g, "nemotron_h.attention.head_count_kv", TINY_U32, 2, heads,
                   sizeof(heads));
    tiny_key_array(&g, "nemotron_h.feed_forward_length", TINY_U32, 2, wide,
                   sizeof(wide));
    put(&g, "blk.0.ssm_d");
    put(&g, "blk.0.ssm_conv1d.bias");
    put(&g, "blk.0.attn_norm.weight");
    open_weights(&w, &g);
    check_weight(&w, "backbone.layers.0.mixer.D", 3);
    check_weight(&w, "backbone.layers.0.mixer.conv1d.bias", 3);
    check_weight(&w, "backbone.layers.0.norm.weight", 3);
    kv_weights_clear(&w);
}

/* Endings of names count. */
static void test_unknown(void **state)
{
    static const char *const names[] = {"blk.0.ssm_a.weight", "blk.0.attn_q",
                                        "blk.0.attn_q.scale",
                                        "blk.0.nextn.enorm.weight"};
    char *path = kv_path_join(test_folder(), "m.gguf");

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const bool runs = strstr(names[i], "nextn"); /* of a class without */
        struct tiny_gguf g = {0};
        struct kv_weights w;
        struct kv_err e = {""};

        put_sizes(&g, runs ? "granitehybrid" : "qwen35");
        if (runs)
            tiny_key_array(&g, "granitehybrid.attention.head_count_kv",
                           TINY_U32, 2, (uint32_t[]){0, 1}, 8);
        put(&g, names[i]);
        tiny_gguf_write(&g, path);
        assert_int_equal(kv_weights_open(&w, path, &e), -1);
        assert_says(e, names[i]);
        assert_says(e, "is not known: it could change the numbers");
        tiny_gguf_clear(&g);
    }
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_hybrids),
        cmocka_unit_test(test_unknown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
