/* lib/model/gguf_names: tensors of GGUF files by their names in transformers.
 */
#include "lib/base/alloc.h"
#include "lib/model/model.h"
#include "lib/model/weights.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"

#include <stdlib.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
