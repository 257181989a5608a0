/* lib/model/gguf_{parts,config,names}: a GGUF file is the model that the folder
 * it was made from is, bit by bit. */
#include "kernels/weights/weights.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/model/config.h"
#include "lib/model/model.h"
#include "lib/model/weights.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"
#include "tests/tiny_model.h"

#include <stdlib.h>

static const struct {
    const char *hf, *gguf;
} names[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
};

/* The part's name in llama.cpp. */
static void name_of(const struct tiny_tensor *t, char name[128])
{
    const char *rest = t->name;
    char layer[32] = "";
    unsigned l;
    int n = 0;

    if (sscanf(rest, "model.layers.%u.%n", &l, &n) == 1) {
        snprintf(layer, sizeof(layer), "blk.%u.", l);
        rest += n;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strncmp(rest, names[i].hf, strlen(names[i].hf))) {
            snprintf(name, 128, "%s%s%s", layer, names[i].gguf,
                     rest + strlen(names[i].hf));
            return;
        }
    fail_msg("no name for %s", t->name);
}

/* Row i of a matrix of llama's q or k goes here. */
static size_t turned(const struct tiny_model *m, const struct tiny_tensor *t,
                     size_t i)
{
    const size_t d = m->head_dim, in = i % d, half = d / 2;

    if (strncmp(m->arch, "Qwen", 4) == 0 ||
        !(strstr(t->name, "q_proj") || strstr(t->name, "k_proj")))
        return i;
    return i - in + (in < half ? 2 * in : 2 * (in - half) + 1);
}

/* Its values as stored; *type: as the format numbers it. */
static struct tiny_bytes data_of(const struct tiny_model *m,
                                 const struct tiny_tensor *t, uint32_t *type)
{
    const size_t cols = t->cols ? t->cols : 1;
    const bool single = !strcmp(t->dtype, "F32");
    const size_t bytes = single ? 4 : 2;
    struct tiny_bytes b = {kv_alloc(t->rows * cols, bytes),
                           t->rows * cols * bytes};

    *type = single ? 0 : t->dtype[0] == 'B' ? 30 : 1;
    for (size_t i = 0; i < t->rows * cols; i++) {
        const size_t at = turned(m, t, i / cols) * cols + i % cols;
        const float x = (float)t->x[i];
        const uint16_t h = *type == 30 ? kv_f32_to_bf16(x) : kv_f32_to_f16(x);

        memcpy(b.data + at * bytes, single ? (const void *)&x : &h, bytes);
    }
    return b;
}

static const char *family_of(const struct tiny_model *m)
{
    return !strcmp(m->arch, "Qwen2ForCausalLM")   ? "qwen2"
           : !strcmp(m->arch, "Qwen3ForCausalLM") ? "qwen3"
                                                  : "llama";
}

static void key(struct tiny_gguf *g, const char *family, const char *name,
                size_t x)
{
    char full[96];

    snprintf(full, sizeof(full), "%s.%s", family, name);
    tiny_key_u32(g, full, (uint32_t)x);
}

static void add_keys(struct tiny_gguf *g, const struct tiny_model *m)
{
    const char *family = family_of(m);
    char full[96];

    tiny_key_text(g, "general.architecture", family);
    key(g, family, "block_count", m->n_layers);
    key(g, family, "context_length", 512);
    key(g, family, "embedding_length", m->hidden);
    key(g, family, "feed_forward_length", m->inter);
    key(g, family, "attention.head_count", m->n_heads);
    key(g, family, "attention.head_count_kv", m->n_kv_heads);
    key(g, family, "attention.key_length", m->head_dim);
    key(g, family, "attention.value_length", m->head_dim);
    key(g, family, "rope.dimension_count", m->head_dim);
    if (!strcmp(m->arch, "MistralForCausalLM"))
        key(g, family, "attention.sliding_window", 4096);
    snprintf(full, sizeof(full), "%s.attention.layer_norm_rms_epsilon", family);
    tiny_key_f32(g, full, 1e-5f);
}

static void add_tensor(struct tiny_gguf *g, const struct tiny_model *m,
                       const struct tiny_tensor *t)
{
    uint32_t type;
    struct tiny_bytes b = data_of(m, t, &type);
    char name[128];

    name_of(t, name);
    tiny_tensor(g, name, type, t->cols ? 2 : 1, (size_t[]){t->rows, t->cols},
                b.data, b.n);
    free(b.data);
}

static void make(struct tiny_gguf *g, const struct tiny_model *m)
{
    *g = (struct tiny_gguf){0};
    add_keys(g, m);
    for (size_t i = 0; i < m->n_tensors; i++)
        add_tensor(g, m, &m->tensor[i]);
}

enum { N = 33 };

static float *logits_of(struct kv_model *model)
{
    const struct kv_model_info *info = kv_model_info(model);
    float *hidden = kv_alloc(N * info->hidden, sizeof(*hidden));
    float *logits = kv_alloc(N * info->n_vocab, sizeof(*logits));
    struct kv_err e = {""};
    int32_t tokens[N];

    for (size_t i = 0; i < N; i++)
        tokens[i] = (int32_t)(kv_mix(5, i) % info->n_vocab);
    if (kv_model_forward(model, tokens, 1, N, 0, NULL, hidden, &e) ||
        kv_model_logits(model, hidden, N, logits, &e))
        fail_msg("%s", e.msg);
    free(hidden);
    return logits;
}

static struct kv_model *open_file(const char *path)
{
    struct kv_model *model;
    struct kv_err e = {""};

    if (kv_model_open(&model, path, &e))
        fail_msg("%s", e.msg);
    return model;
}

/* The file is the model m. */
static void check_same(const char *path, const struct tiny_model *m)
{
    struct kv_model *folder = tiny_open(m), *file = open_file(path);
    float *want = logits_of(folder), *got = logits_of(file);

    assert_memory_equal(got, want, N * m->n_vocab * sizeof(*want));
    assert_string_equal(kv_model_info(file)->arch, m->arch);
    free(got);
    free(want);
    kv_model_free(file);
    kv_model_free(folder);
}

/* Its shape alone is accepted too. */
static void check_shape(const char *path, const struct tiny_model *m)
{
    char *folder = kv_strdup(test_folder());
    char *file = kv_path_join(folder, "config.json");
    const char *const paths[] = {path, folder, file};
    struct kv_err e = {""};

    tiny_write(m, folder);
    for (size_t i = 0; i < 3; i++) {
        struct kv_config c;

        if (kv_model_config(&c, paths[i], &e))
            fail_msg("%s", e.msg);
        assert_string_equal(c.arch->name, m->arch);
        assert_int_equal(c.hidden, m->hidden);
        assert_int_equal(c.shape.n_kv_heads, m->n_kv_heads);
        assert_true(c.norm_eps == 1e-5f);
        assert_int_equal(c.tied, m->tied);
    }
    free(file);
    free(folder);
}

static void test_same_as_folder(void **state)
{
    char *path = kv_path_join(test_folder(), "m.gguf");

    (void)state;
    for (size_t i = 0; i < TINY_VARIANTS; i++) {
        struct tiny_model m = tiny_variant(i);
        struct tiny_gguf g;

        if (!m.more) { /* of RoPE: below */
            make(&g, &m);
            tiny_gguf_write(&g, path);
            check_same(path, &m);
            check_shape(path, &m);
            tiny_gguf_clear(&g);
        }
        tiny_clear(&m);
    }
    free(path);
}

static void test_rope(void **state)
{
    char *path = kv_path_join(test_folder(), "m.gguf");
    struct tiny_model m = tiny_llama;
    struct tiny_gguf g;

    (void)state;
    m.more = ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8, "
             "\"rope_theta\": 100}";
    tiny_init(&m);
    make(&g, &m);
    tiny_key_f32(&g, "llama.rope.freq_base", 100);
    tiny_key_f32(&g, "llama.rope.scaling.factor", 8);
    tiny_gguf_write(&g, path);
    check_same(path, &m);
    tiny_gguf_clear(&g);
    tiny_clear(&m);
    free(path);
}

/* Which biases of a layer a file has, one letter each. */
static bool without(const struct tiny_tensor *t, const char *has)
{
    static const char *const parts[] = {"q_proj",   "k_proj",    "v_proj",
                                        "o_proj",   "gate_proj", "up_proj",
                                        "down_proj"};

    for (size_t i = 0; strstr(t->name, ".bias"); i++)
        if (strstr(t->name, parts[i]))
            return has[i] == '-';
    return false;
}

/* A missing bias counts as zeros. */
static void test_biases(void **state)
{
    static const char *const files[] = {"qkv----", "---o---", "q--o---",
                                        "-k--gud", "--v--u-", "----g--",
                                        "qkvo--d", "-------"};
    char *path = kv_path_join(test_folder(), "m.gguf");

    (void)state;
    for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
        struct tiny_model m = tiny_llama;
        struct tiny_gguf g = {0};

        m.qkv_bias = m.o_bias = m.mlp_bias = true;
        tiny_init(&m);
        add_keys(&g, &m);
        for (size_t i = 0; i < m.n_tensors; i++) {
            struct tiny_tensor *t = &m.tensor[i];
            const bool layer_0 = strstr(t->name, "layers.0.");

            /* layer 0 alone may lack what others have */
            if (without(t, files[f]) ||
                (f == 0 && layer_0 && strstr(t->name, "v_proj.bias")))
                memset(t->x, 0, t->rows * sizeof(*t->x));
            else
                add_tensor(&g, &m, t);
        }
        tiny_gguf_write(&g, path);
        check_same(path, &m);
        tiny_gguf_clear(&g);
        tiny_clear(&m);
    }
    free(path);
}

/* Matrices of a type, the numbers of the format and ours. */
static void check_type(uint32_t number, enum kv_stored type, const char *path)
{
    const size_t values = kv_stored_values(type);
    struct tiny_model m = tiny_llama;
    struct kv_model *model;
    struct tiny_gguf g = {0};

    m.hidden = m.inter = 256;
    m.n_heads = 4;
    m.head_dim = 64;
    m.n_layers = 1;
    tiny_init(&m);
    add_keys(&g, &m);
    for (size_t i = 0; i < m.n_tensors; i++) {
        struct tiny_tensor *t = &m.tensor[i];
        const size_t n = t->rows * t->cols;
        const size_t bytes = n / values * kv_stored_bytes(type);
        uint8_t *data = kv_alloc(bytes, 1);
        float *x = kv_alloc(n, sizeof(*x));
        char name[128];

        name_of(t, name);
        for (size_t j = 0; j < bytes; j++) /* no exponent of all ones */
            data[j] = (uint8_t)(kv_mix(i, j) & 0x37);
        kv_stored_decode(type, data, n, x);
        for (size_t j = 0; j < n; j++)
            t->x[j] =
                (double)x[turned(&m, t, j / t->cols) * t->cols + j % t->cols];
        if (n)
            tiny_tensor(&g, name, number, 2, (size_t[]){t->rows, t->cols}, data,
                        bytes);
        else
            add_tensor(&g, &m, t);
        free(x);
        free(data);
    }
    tiny_gguf_write(&g, path);
    check_same(path, &m);
    model = open_file(path);
    assert_string_equal(kv_model_info(model)->weights, kv_stored_name(type));
    kv_model_free(model);
    tiny_gguf_clear(&g);
    tiny_clear(&m);
}

static void test_types(void **state)
{
    char *path = kv_path_join(test_folder(), "m.gguf");

    (void)state;
    check_type(2, KV_STORED_Q4_0, path);
    check_type(3, KV_STORED_Q4_1, path);
    check_type(6, KV_STORED_Q5_0, path);
    check_type(7, KV_STORED_Q5_1, path);
    check_type(8, KV_STORED_Q8_0, path);
    check_type(10, KV_STORED_Q2_K, path);
    check_type(11, KV_STORED_Q3_K, path);
    check_type(12, KV_STORED_Q4_K, path);
    check_type(13, KV_STORED_Q5_K, path);
    check_type(14, KV_STORED_Q6_K, path);
    check_type(20, KV_STORED_IQ4_NL, path);
    check_type(23, KV_STORED_IQ4_XS, path);
    check_type(39, KV_STORED_MXFP4, path);
    check_type(16, KV_STORED_IQ2_XXS, path);
    check_type(17, KV_STORED_IQ2_XS, path);
    check_type(18, KV_STORED_IQ3_XXS, path);
    check_type(19, KV_STORED_IQ1_S, path);
    check_type(21, KV_STORED_IQ3_S, path);
    check_type(22, KV_STORED_IQ2_S, path);
    check_type(29, KV_STORED_IQ1_M, path);
    check_type(34, KV_STORED_TQ1_0, path);
    check_type(35, KV_STORED_TQ2_0, path);
    check_type(40, KV_STORED_NVFP4, path);
    free(path);
}

/* ---- split files --------------------------------------------------------- */

/* Distributes m's tensors over n files folder/m-0000i-of-0000n.gguf; every
 * count in them is larger by `lie`. */
static void write_parts(const struct tiny_model *m, const char *folder,
                        size_t n, size_t lie)
{
    for (size_t p = 0; p < n; p++) {
        const uint16_t no = (uint16_t)p, count = (uint16_t)n;
        const int32_t all = (int32_t)(m->n_tensors + lie);
        struct tiny_gguf g = {0};
        char name[64], *path;

        tiny_key(&g, "split.no", TINY_U16, &no, 2);
        tiny_key(&g, "split.count", TINY_U16, &count, 2);
        tiny_key(&g, "split.tensors.count", TINY_I32, &all, 4);
        if (!p)
            add_keys(&g, m);
        for (size_t i = p; i < m->n_tensors; i += n)
            add_tensor(&g, m, &m->tensor[i]);
        snprintf(name, sizeof(name), "m-%05zu-of-%05zu.gguf", p + 1, n);
        path = kv_path_join(folder, name);
        tiny_gguf_write(&g, path);
        tiny_gguf_clear(&g);
        free(path);
    }
}

static void expect(const char *path, const char *words)
{
    struct kv_model *model;
    struct kv_err e = {""};

    assert_int_equal(kv_model_open(&model, path, &e), -1);
    assert_says(e, words);
}

static void test_parts(void **state)
{
    struct tiny_model m = tiny_variant(0);
    char *folder = kv_strdup(test_folder());
    char *first = kv_path_join(folder, "m-00001-of-00003.gguf");
    char *second = kv_path_join(folder, "m-00002-of-00003.gguf");
    char *third = kv_path_join(folder, "m-00003-of-00003.gguf");
    char *other = kv_path_join(folder, "m.gguf");

    (void)state;
    write_parts(&m, folder, 3, 0);
    check_same(first, &m);
    check_same(second, &m);
    assert_int_equal(rename(third, other), 0);
    expect(first, "part 3 of 3 of the model: cannot open ");
    expect(other, "m.gguf is one of 3 parts; the name of a part ends in "
                  "-00001-of-00003.gguf");
    assert_int_equal(rename(second, third), 0);
    assert_int_equal(rename(other, second), 0);
    expect(first, "by its keys split.no and split.count it is part 3 of 3, by "
                  "its name part 2 of 3");
    write_parts(&m, folder, 3, 1);
    expect(first, "key split.tensors.count is 31, but the 3 parts hold 30");
    free(other);
    free(third);
    free(second);
    free(first);
    free(folder);
    tiny_clear(&m);
}

/* ---- what is refused ----------------------------------------------------- */

/* A model with what was added to g is refused; g is cleared. */
static void refuse(struct tiny_gguf *g, const char *words)
{
    static char *path;

    if (!path)
        path = kv_path_join(test_folder(), "m.gguf");
    tiny_gguf_write(g, path);
    expect(path, words);
    tiny_gguf_clear(g);
}

static void test_refused(void **state)
{
    static const uint8_t blocks[61 * 292];
    const int32_t widths[] = {40, 40, 41};
    struct tiny_model m = tiny_variant(0);
    const float x[8] = {1};
    struct tiny_gguf g = {0};

    (void)state;
    tiny_key_u32(&g, "a", 1);
    refuse(&g, "key general.architecture is missing");
    tiny_key_text(&g, "general.architecture", "mamba");
    refuse(&g, "unknown architecture mamba (known: llama, ");
    tiny_key_u32(&g, "general.architecture", 1);
    refuse(&g, "key general.architecture is a whole number; a string was");
    tiny_key_text(&g, "general.architecture", "llama");
    refuse(&g, "key llama.block_count is missing");
    make(&g, &m);
    tiny_key_u32(&g, "llama.expert_group_count", 8);
    refuse(&g, "key llama.expert_group_count is not known: it could change the "
               "numbers");
    make(&g, &m);
    tiny_key_u32(&g, "llama.expert_count", 4);
    tiny_key_u32(&g, "llama.expert_used_count", 9);
    refuse(&g, "key llama.expert_used_count (num_experts_per_tok) is not a "
               "whole number from 1 to 4");
    make(&g, &m);
    tiny_key_text(&g, "llama.rope.freq_base", "10000");
    refuse(&g, "key llama.rope.freq_base is a string; a number was expected");
    make(&g, &m);
    tiny_key_text(&g, "llama.rope.scaling.type", "other");
    refuse(&g, "RoPE scaling other is not implemented");
    make(&g, &m);
    tiny_tensor(&g, "blk.0.attn_sinks.weight", 0, 1, (size_t[]){8}, x, 32);
    refuse(&g, "tensor blk.0.attn_sinks.weight is not known: it could change "
               "the numbers");
    make(&g, &m);
    tiny_tensor(&g, "blk.3.attn_norm.weight", 0, 1, (size_t[]){8}, x, 32);
    refuse(&g, "has no place in a LlamaForCausalLM");
    tiny_drop(&m, "lm_head.weight");
    make(&g, &m);
    tiny_tensor(&g, "output.weight", 15, 2, (size_t[]){61, 256}, blocks,
                sizeof(blocks));
    refuse(&g, "tensor output.weight (lm_head.weight) has type Q8_K, which "
               "is not implemented");
    m.n_layers = 4;
    make(&g, &m);
    refuse(&g, "tensor blk.3.attn_q.weight "
               "(model.layers.3.self_attn.q_proj.weight) is missing");
    m.n_layers = 3;
    tiny_drop(&m, "model.layers.1.mlp.up_proj.weight");
    make(&g, &m);
    refuse(&g, "tensor blk.1.ffn_up.weight (model.layers.1.mlp.up_proj.weight) "
               "is missing");
    tiny_key_text(&g, "general.architecture", "llama");
    tiny_key_array(&g, "llama.feed_forward_length", TINY_I32, 3, widths, 12);
    refuse(&g, "key llama.feed_forward_length: layers differ, which is not "
               "implemented: the first is 40, layer 2 is 41");
    tiny_clear(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_folder), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_biases),         cmocka_unit_test(test_types),
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
