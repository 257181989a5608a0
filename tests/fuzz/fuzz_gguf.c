/* A GGUF file: what opens can be read whole, as a file and as a model. */
#include "lib/base/alloc.h"
#include "lib/model/config.h"
#include "lib/model/weights.h"
#include "tests/fuzz/fuzz.h"
#include "tests/tiny_gguf.h"

#include <stdlib.h>

/* All parts of the file must be readable. */
static volatile double sink;

static void read_value(const struct kv_gguf_value *v, size_t n)
{
    fuzz_expect(v->n <= n, "no more elements than bytes");
    for (size_t i = 0; i < v->n; i++) {
        const char *text = NULL;
        size_t bytes = 0;

        switch (v->kind) {
        case KV_GGUF_INT:
        case KV_GGUF_REAL:
            sink = kv_gguf_real(v, i);
            break;
        case KV_GGUF_BOOL:
            sink = kv_gguf_bool(v, i);
            break;
        case KV_GGUF_TEXT:
            text = kv_gguf_text(v, i, &bytes);
            break;
        }
        for (size_t j = 0; j < bytes; j++)
            sink = text[j];
    }
}

static void read_weight(const struct kv_weight *w, size_t n)
{
    float *x;

    if (w->type == KV_STORED_OTHER)
        return;
    fuzz_expect(w->n <= 8 * n, "no more values than the bytes can hold");
    x = kv_alloc(w->n, sizeof(*x));
    kv_weight_dequantize(w, 0, w->n, x);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_file("m.gguf", data, n);
    struct kv_config c;
    struct kv_gguf g;
    struct kv_weights w;
    struct kv_err e = {""};
    int rc = kv_gguf_open(&g, path, &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    for (size_t i = 0; i < g.n_values; i++)
        read_value(&g.value[i], n);
    for (size_t i = 0; i < g.n_tensors; i++)
        read_weight(&g.tensor[i], n);
    kv_gguf_clear(&g);
    e = (struct kv_err){""};
    rc = kv_weights_open(&w, path, &e);
    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    for (size_t i = 0; i < w.n_weights; i++)
        read_weight(w.weight[i], n);
    e = (struct kv_err){""};
    fuzz_expect_sentence(kv_config_parse(&c, w.config, path, &e), &e);
    kv_weights_clear(&w);
    return 0;
}

/* Keys of a model of this architecture, and a few tensors. */
static void add_model(struct tiny_gguf *g, const char *family, bool scaled)
{
    static const char *const keys[] = {
        "block_count",         "context_length",       "embedding_length",
        "feed_forward_length", "attention.head_count", "rope.dimension_count",
    };
    const float x[64] = {1, 0.5f};
    char key[96];

    tiny_key_text(g, "general.architecture", family);
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        snprintf(key, sizeof(key), "%s.%s", family, keys[i]);
        tiny_key_u32(g, key, i == 4 ? 1 : 2); /* one head of two values */
    }
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", family);
    tiny_key_f32(g, key, 1e-5f);
    snprintf(key, sizeof(key), "%s.attention.sliding_window", family);
    tiny_key_u32(g, key, 4);
    snprintf(key, sizeof(key), "%s.rope.scaling.factor", family);
    if (scaled)
        tiny_key_f32(g, key, 2);
    else
        tiny_tensor(g, "rope_freqs.weight", 1, 1, (size_t[]){2}, x, 4);
    tiny_key_texts(g, "tokenizer.ggml.tokens", 2, (const char *[]){"a", "b"});
    tiny_key_u32(g, "split.count", 1);
    tiny_tensor(g, "token_embd.weight", 0, 2, (size_t[]){4, 2}, x, 32);
    tiny_tensor(g, "blk.0.attn_q.weight", 0, 2, (size_t[]){4, 4}, x, 64);
    tiny_tensor(g, "output_norm.weight", 30, 1, (size_t[]){2}, x, 4);
    tiny_tensor(g, "blk.1.ffn_up.weight", 2, 2, (size_t[]){1, 32}, x, 18);
    tiny_tensor(g, "blk.0.ffn_up.weight", 12, 2, (size_t[]){1, 256}, x, 144);
}

void fuzz_make_seeds(void)
{
    static const char *const families[] = {"llama", "qwen2", "gemma3"};

    for (uint32_t i = 0; i < 3; i++) {
        struct tiny_gguf g = {.version = 2 + i % 2};
        struct tiny_bytes b;

        add_model(&g, families[i], i > 0);
        b = tiny_gguf_bytes(&g);
        fuzz_seed(families[i], b.data, b.n);
        free(b.data);
        tiny_gguf_clear(&g);
    }
}
