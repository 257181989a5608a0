/* lib/model: the facts of a model, and the models that it refuses. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/model.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>
#include <sys/stat.h>

static struct tiny_model make(void)
{
    struct tiny_model m = tiny_llama;

    tiny_init(&m);
    return m;
}

static void test_info(void **state)
{
    struct tiny_model m = tiny_llama;
    const char *dir = test_folder();
    char *model_dir = kv_path_join(dir, "tiny/");
    const struct kv_model_info *info;
    struct kv_model *model;
    char hash[sizeof(info->hash)];
    size_t bytes = 0;
    struct kv_err e = {""};

    (void)state;
    m.dtype = "BF16";
    tiny_init(&m);
    *strrchr(model_dir, '/') = 0;
    assert_int_equal(mkdir(model_dir, 0777), 0);
    tiny_write(&m, model_dir);
    assert_int_equal(kv_model_open(&model, model_dir, &e), 0);
    info = kv_model_info(model);
    assert_string_equal(info->name, "tiny");
    assert_string_equal(info->arch, "LlamaForCausalLM");
    assert_string_equal(info->weights, "bf16");
    assert_int_equal(strlen(info->hash), 16);
    assert_int_equal(info->n_vocab, m.n_vocab);
    assert_int_equal(info->hidden, m.hidden);
    assert_int_equal(info->n_ctx, 512);
    for (size_t i = 0; i < m.n_tensors; i++)
        bytes +=
            2 * m.tensor[i].rows * (m.tensor[i].cols ? m.tensor[i].cols : 1);
    assert_int_equal(info->weight_bytes, bytes);
    assert_int_equal(info->shape.n_layers, m.n_layers);
    assert_int_equal(info->shape.n_heads, m.n_heads);
    assert_int_equal(info->shape.n_kv_heads, m.n_kv_heads);
    assert_int_equal(info->shape.head_dim, m.head_dim);
    assert_int_equal(info->shape.n_rot, m.head_dim / 2);
    assert_true(info->shape.inv_freq[0] == 1);
    assert_within(info->shape.attn_scale, 1 / sqrt((double)m.head_dim), 1e-7);
    strcpy(hash, info->hash);
    kv_model_free(model);

    /* one weight, or the tokenizer, makes another model */
    tiny_find(&m, "model.norm.weight")->x[3] += 1;
    tiny_write(&m, model_dir);
    assert_int_equal(kv_model_open(&model, model_dir, &e), 0);
    assert_string_not_equal(kv_model_info(model)->hash, hash);
    strcpy(hash, kv_model_info(model)->hash);
    kv_model_free(model);
    for (size_t i = 0; i < 2; i++) {
        tiny_write_text(model_dir, i ? "tokenizer.json" : "tokenizer.model",
                        "{}");
        assert_int_equal(kv_model_open(&model, model_dir, &e), 0);
        assert_string_not_equal(kv_model_info(model)->hash, hash);
        kv_model_free(model);
        tiny_write_text(model_dir, "tokenizer.model", "[]");
    }
    kv_model_free(NULL);
    free(model_dir);
    tiny_clear(&m);
}

/* A head too large to be kept widened: all zeros except two rows, in a file
 * with a hole. */
static void test_large_head(void **state)
{
    struct tiny_model m = tiny_llama;
    const size_t n_vocab = 1 << 20, hidden = 80, row = 2 * hidden;
    const char *dir = test_folder();
    char *path = kv_path_join(dir, "model.safetensors"), header[4096];
    struct kv_model *model;
    struct kv_err e = {""};
    uint16_t ones[80];
    float *x = kv_alloc(2 * hidden, sizeof(*x));
    float *logits = kv_alloc(2 * n_vocab, sizeof(*logits));
    size_t n, bytes, embed_bytes = n_vocab * row;
    FILE *f;

    (void)state;
    m.dtype = "BF16";
    m.hidden = hidden;
    m.n_vocab = 1;
    m.tied = true;
    tiny_init(&m);
    tiny_config(&m, "\"vocab_size\": 1", "\"vocab_size\": 1048576");
    tiny_write_text(dir, "config.json", m.config);
    n = (size_t)sprintf(header,
                        "{\"model.embed_tokens.weight\": {\"dtype\": \"BF16\", "
                        "\"shape\": [%zu, %zu], \"data_offsets\": [0, %zu]}",
                        n_vocab, hidden, embed_bytes);
    bytes = embed_bytes;
    for (size_t i = 1; i < m.n_tensors; i++) {
        const struct tiny_tensor *t = &m.tensor[i];
        const size_t end = bytes + 2 * t->rows * (t->cols ? t->cols : 1);
        char shape[64];

        snprintf(shape, sizeof(shape), t->cols ? "%zu, %zu" : "%zu", t->rows,
                 t->cols);
        n += (size_t)sprintf(header + n,
                             ", \"%s\": {\"dtype\": \"BF16\", \"shape\": "
                             "[%s], \"data_offsets\": [%zu, %zu]}",
                             t->name, shape, bytes, end);
        bytes = end;
    }
    n += (size_t)sprintf(header + n, "}");
    tiny_write_safetensors(path, n, header, "", 0);
    assert_int_equal(truncate(path, (off_t)(8 + n + bytes)), 0);
    for (size_t i = 0; i < hidden; i++)
        ones[i] = 0x3f80;
    f = fopen(path, "r+b");
    for (size_t i = 0; i < 2; i++) {
        const size_t at = i ? n_vocab - 1 : 4096;

        fseek(f, (long)(8 + n + at * row), SEEK_SET);
        assert_int_equal(fwrite(ones, sizeof(ones), 1, f), 1);
    }
    fclose(f);
    if (kv_model_open(&model, dir, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < 2 * hidden; i++)
        x[i] = i < hidden ? 1 : 0.5f;
    memset(logits, 0xa5, 2 * n_vocab * sizeof(*logits));
    assert_int_equal(kv_model_logits(model, x, 2, logits, &e), 0);
    for (size_t i = 0; i < 2 * n_vocab; i++) {
        const size_t v = i % n_vocab;
        const bool one = v == 4096 || v == n_vocab - 1;

        if (logits[i] != (!one ? 0 : i < n_vocab ? 80 : 40))
            fail_msg("logit %zu is %g", i, (double)logits[i]);
    }
    unlink(path);
    free(logits);
    free(x);
    free(path);
    kv_model_free(model);
    tiny_clear(&m);
}

static void refused(const struct tiny_model *m, const char *says)
{
    const char *dir = test_folder();
    struct kv_err e = {""};
    struct kv_model *model;

    tiny_write(m, dir);
    assert_int_equal(kv_model_open(&model, dir, &e), -1);
    assert_says(e, dir);
    assert_says(e, says);
}

static const struct {
    const char *from, *to, *says;
} bad_configs[] = {
    {"{", "", "config.json: line 1"},
    {"{\"arch", "[{\"arch", "config.json: line 1"},
    {"\"architectures\": [\"LlamaForCausalLM\"], ", "",
     "field architectures is missing"},
    {"[\"LlamaForCausalLM\"]", "[]", "architectures is not a list of one"},
    {"\"LlamaForCausalLM\"", "\"LlamaForCausalLM\", \"LlamaModel\"",
     "architectures is not a list of one"},
    {"LlamaForCausalLM", "MambaForCausalLM",
     "unknown architecture MambaForCausalLM (known: LlamaForCausalLM, "
     "Mistral"},
    {"\"hidden_size\": 24", "\"hidden_size\": null", "hidden_size is missing"},
    {"\"intermediate_size\": 40, ", "", "field intermediate_size is missing"},
    {"\"num_hidden_layers\": 3, ", "", "field num_hidden_layers is missing"},
    {"\"num_attention_heads\": 6, ", "", "num_attention_heads is missing"},
    {"\"vocab_size\": 61, ", "", "field vocab_size is missing"},
    {"\"rms_norm_eps\": 1e-05, ", "", "field rms_norm_eps is missing"},
    {"1e-05", "0", "field rms_norm_eps is not a number above 0"},
    {"1e-05", "\"1\"", "field rms_norm_eps is not a number above 0"},
    {"\"hidden_size\": 24", "\"hidden_size\": 24.5",
     "hidden_size is not a whole number from 1 to 1048576"},
    {"\"hidden_size\": 24", "\"hidden_size\": 0", "hidden_size is not"},
    {"\"vocab_size\": 61", "\"vocab_size\": -1", "vocab_size is not"},
    {"\"head_dim\": 8", "\"head_dim\": 7", "head_dim 7 is not an even"},
    {"\"head_dim\": 8", "\"head_dim\": 578", "head_dim is not a whole"},
    {"6, \"num_key_value_heads\": 2, \"head_dim\": 8",
     "10, \"num_key_value_heads\": 2",
     "hidden_size 24 is no multiple of 10 heads"},
    {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4",
     "6 attention heads are no multiple of 4 key-value heads"},
    {"\"silu\"", "\"gelu\"", "hidden_act is \"gelu\"; only \"silu\" is"},
    {"\"silu\"", "1", "hidden_act is 1; only \"silu\" is"},
    {"\"mlp_bias\": false", "\"mlp_bias\": 0",
     "mlp_bias is neither true nor false"},
    {"\"mlp_bias\": false", "\"partial_rotary_factor\": 0.5",
     "partial_rotary_factor"},
    {"\"mlp_bias\": false", "\"quantization_config\": {}",
     "quantization_config"},
    {"\"mlp_bias\": false", "\"rope_theta\": -1", "rope_theta is not"},
    {"\"mlp_bias\": false", "\"rope_scaling\": {\"type\": \"ntk\"}",
     "RoPE scaling ntk is not implemented"},
    {"\"mlp_bias\": false", "\"rope_scaling\": {\"factor\": 2}",
     "field rope_scaling.factor is 2; only 1 is implemented"},
    {"\"mlp_bias\": false", "\"rope_scaling\": {\"rope_type\": \"linear\"}",
     "field rope_scaling.factor is missing"},
    {"\"mlp_bias\": false",
     "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
     "\"low_freq_factor\": 1, \"high_freq_factor\": 4}",
     "rope_scaling.original_max_position_embeddings is missing"},
    {"\"mlp_bias\": false",
     "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
     "\"low_freq_factor\": 4, \"high_freq_factor\": 4, "
     "\"original_max_position_embeddings\": 64}",
     "high_freq_factor is not above"},
    /* the tensors are of another model */
    {"\"vocab_size\": 61", "\"vocab_size\": 62",
     "tensor model.embed_tokens.weight has shape [61, 24]; config.json says "
     "[62, 24]"},
    {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4",
     "tensor model.layers.3.self_attn.q_proj.weight is missing"},
    {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2",
     "tensor model.layers.2.input_layernorm.weight has no place"},
    {"\"attention_bias\": false", "\"attention_bias\": true",
     "self_attn.q_proj.bias is missing"},
    {"LlamaForCausalLM", "Qwen3ForCausalLM",
     "self_attn.q_norm.weight is missing"},
};

static void test_bad_configs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_configs) / sizeof(*bad_configs); i++) {
        struct tiny_model m = make();

        tiny_config(&m, bad_configs[i].from, bad_configs[i].to);
        refused(&m, bad_configs[i].says);
        tiny_clear(&m);
    }
}

static void test_bad_tensors(void **state)
{
    const char *down = "model.layers.1.mlp.down_proj.weight";
    struct tiny_model m = make();

    (void)state;
    tiny_find(&m, down)->dtype = "I32";
    refused(&m, "down_proj.weight has type I32, which is not implemented");
    tiny_find(&m, down)->dtype = "F32";
    tiny_find(&m, down)->cols = 39;
    refused(&m, "has shape [24, 39]; config.json says [24, 40]");
    tiny_find(&m, down)->rows *= 39;
    tiny_find(&m, down)->cols = 0;
    refused(&m, "has shape [936]; config.json says [24, 40]");
    tiny_drop(&m, down);
    refused(&m, "tensor model.layers.1.mlp.down_proj.weight is missing");
    tiny_clear(&m);
    m = make();
    tiny_drop(&m, "lm_head.weight");
    refused(&m, "tensor lm_head.weight is missing");
    tiny_clear(&m);
    m = make();
    tiny_add(&m, "model.layers.0.self_attn.q_proj.bias", 48, 0);
    refused(&m, "q_proj.bias has no place in a LlamaForCausalLM");
    tiny_clear(&m);
}

/* Tensors that are known and rightly unused. */
static void test_spare_tensors(void **state)
{
    struct tiny_model m = tiny_llama;

    (void)state;
    m.tied = true;
    tiny_init(&m);
    tiny_add(&m, "lm_head.weight", m.n_vocab, m.hidden);
    memcpy(tiny_find(&m, "lm_head.weight")->x,
           tiny_find(&m, "model.embed_tokens.weight")->x,
           m.n_vocab * m.hidden * sizeof(double));
    tiny_add(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", 4, 0);
    kv_model_free(tiny_open(&m));
    /* a separate head beside tied embeddings is not */
    tiny_find(&m, "lm_head.weight")->x[7] += 1;
    refused(&m, "model.safetensors: tensor lm_head.weight differs from "
                "model.embed_tokens.weight, but "
                "tie_word_embeddings is true");
    tiny_clear(&m);
}

/* Each tensor, its first and its last value, in each type, in its shard. */
static void test_not_finite(void **state)
{
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    static const char *const says[] = {"is NaN", "is infinite", "is infinite"};
    const double bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t d = 0; d < 3; d++) {
        struct tiny_model m = tiny_llama;
        size_t n;

        m.dtype = dtypes[d];
        m.n_shards = 2;
        m.qkv_bias = m.o_bias = m.mlp_bias = true;
        tiny_init(&m);
        n = m.n_tensors;
        for (size_t i = 0; i < 2 * n; i++) {
            struct tiny_tensor *t = &m.tensor[i / 2];
            const size_t last = t->rows * (t->cols ? t->cols : 1) - 1;
            const size_t at = i % 2 ? last : 0;
            const double kept = t->x[at];
            char words[256];

            t->x[at] = bad[i % 3];
            snprintf(words, sizeof(words),
                     "model-%05zu-of-00002.safetensors: tensor %s: value %zu "
                     "of %zu %s",
                     t->shard + 1, t->name, at, last + 1, says[i % 3]);
            refused(&m, words);
            t->x[at] = kept;
        }
        /* the type's maximum, and unused tensors, are no reason */
        m.tensor[0].x[1] = d == 1 ? 65504 : 0x1.fep127;
        m.tensor[0].x[2] = d == 1 ? -65504 : -0x1.fep127;
        tiny_add(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", 4, 0);
        m.tensor[n].x[2] = NAN;
        kv_model_free(tiny_open(&m));
        tiny_clear(&m);
    }
}

static void write_bytes(const char *dir, const char *name, const char *before,
                        const char *text)
{
    char *both = kv_alloc(strlen(before) + strlen(text) + 1, 1);

    strcpy(both, before);
    strcat(both, text);
    tiny_write_text(dir, name, both);
    free(both);
}

/* Other kinds of files in the place of a file, and of its folder. */
static void test_other_bytes(void **state)
{
    static const char *const files[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n";

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct tiny_model m = tiny_llama;
        const char *dir = test_folder();
        struct kv_err e = {""};
        struct kv_model *model;
        char words[128];

        m.n_shards = i < 2 ? 0 : 1;
        tiny_init(&m);
        tiny_write(&m, dir);
        if (i != 1) { /* a UTF-8 byte order mark is skipped */
            char *path = kv_path_join(dir, files[i]), *text;
            size_t bytes;

            assert_int_equal(kv_file_read(path, &text, &bytes, &e), 0);
            write_bytes(dir, files[i], "\xef\xbb\xbf", text);
            if (kv_model_open(&model, dir, &e))
                fail_msg("%s", e.msg);
            kv_model_free(model);
            write_bytes(dir, files[i], "\xff\xfe", text);
            assert_int_equal(kv_model_open(&model, dir, &e), -1);
            snprintf(words, sizeof(words), "%s: byte 0: the mark of UTF-16",
                     files[i]);
            assert_says(e, words);
            write_bytes(dir, files[i], "{\"a\": 1, \"a\": 1,", text + 1);
            assert_int_equal(kv_model_open(&model, dir, &e), -1);
            assert_says(e, "duplicate object key near '\"a\"'");
            free(text);
            free(path);
        }
        tiny_write_text(dir, files[i], pointer);
        assert_int_equal(kv_model_open(&model, dir, &e), -1);
        snprintf(words, sizeof(words), "%s is a Git LFS pointer", files[i]);
        assert_says(e, words);
        tiny_clear(&m);
    }
}

static void test_adapter(void **state)
{
    const char *dir = test_folder();
    struct tiny_model m = make();
    struct kv_err e = {""};
    struct kv_model *model;

    (void)state;
    tiny_write(&m, dir);
    tiny_write_text(dir, "adapter_config.json", "{}");
    assert_int_equal(kv_model_open(&model, dir, &e), -1);
    assert_says(e, "adapter_config.json: adapters are not implemented");
    tiny_clear(&m);
}

static void test_missing_files(void **state)
{
    struct tiny_model m = make();
    const char *dir = test_folder();
    struct kv_err e = {""};
    struct kv_model *model;

    (void)state;
    assert_int_equal(kv_model_open(&model, "/no/such/folder", &e), -1);
    assert_says(e, "/no/such/folder: no such file or folder");
    assert_int_equal(kv_model_open(&model, dir, &e), -1);
    assert_says(e, "config.json: No such file");
    tiny_write_text(dir, "config.json", m.config);
    assert_int_equal(kv_model_open(&model, dir, &e), -1);
    assert_says(e, "holds neither model.safetensors nor");
    tiny_write_text(dir, "pytorch_model.bin.index.json", "{}");
    assert_int_equal(kv_model_open(&model, dir, &e), -1);
    assert_says(e, "pytorch_model.bin is a pickle, which may run code");
    tiny_clear(&m);
}

/* Windows shorter than the texts are accepted; test_golden.c has their
 * numbers. */
static void test_sliding_window(void **state)
{
    static const struct {
        const char *arch, *more;
    } cases[] = {
        {"MistralForCausalLM", ", \"sliding_window\": 9"},
        {"MistralForCausalLM", ", \"sliding_window\": 10"},
        {"MistralForCausalLM", ", \"sliding_window\": null"},
        {"MistralForCausalLM", ""},
        {"Qwen2ForCausalLM", ", \"sliding_window\": 9"},
        {"Qwen2ForCausalLM",
         ", \"sliding_window\": 9, \"use_sliding_window\": true"}, /* 28 layers
                                                                      before the
                                                                      first that
                                                                      slides */
        {"Qwen2ForCausalLM",
         ", \"sliding_window\": 9, \"use_sliding_window\": true, "
         "\"max_window_layers\": 2"},
    };
    const int32_t tokens[10] = {0};
    float x[10 * 24];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct tiny_model m = tiny_llama;
        struct kv_model *model;
        struct kv_err e = {""};
        int rc;

        m.arch = cases[i].arch;
        m.qkv_bias = cases[i].arch[0] == 'Q';
        m.more = cases[i].more;
        tiny_init(&m);
        model = tiny_open(&m);
        rc = kv_model_forward(model, tokens, 1, 10, 0, NULL, x, &e);
        assert_int_equal(rc, 0);
        kv_model_free(model);
        tiny_clear(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_large_head),
        cmocka_unit_test(test_bad_configs),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_spare_tensors),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_other_bytes),
        cmocka_unit_test(test_adapter),
        cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_sliding_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
