#include "tests/tiny_model.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/model/model.h"
#include "tests/test.h"

#include <math.h>

const struct tiny_model tiny_llama = {
    .arch = "LlamaForCausalLM",
    .dtype = "F32",
    .hidden = 24,
    .inter = 40,
    .n_layers = 3,
    .n_heads = 6,
    .n_kv_heads = 2,
    .head_dim = 8,
    .n_vocab = 61,
};

#define LLAMA3                                                           \
    "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, " \
    "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64"

/* Differences from tiny_llama. */
static const struct tiny_model variants[TINY_VARIANTS] = {
    {.dtype = "F32"},
    {.dtype = "F16"},
    {.dtype = "BF16", .tied = true},
    {.dtype = "F32", .qkv_bias = true, .o_bias = true, .mlp_bias = true},
    {.dtype = "F32",
     .more = ", \"rope_theta\": 100, \"rope_scaling\": {" LLAMA3 "}"},
    {.dtype = "F32",
     .more = ", \"rope_parameters\": {\"rope_theta\": 100, " LLAMA3 "}"},
    {.dtype = "F32",
     .more = ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8, "
             "\"rope_theta\": 100}"},
    {.arch = "MistralForCausalLM", .dtype = "F32", .tied = true},
    {.arch = "Qwen2ForCausalLM", .dtype = "BF16", .qkv_bias = true},
    {.arch = "Qwen3ForCausalLM", .dtype = "F32", .qk_norm = true},
};

static size_t element_bytes(const char *dtype)
{
    return !strcmp(dtype, "F16") || !strcmp(dtype, "BF16") ? 2 : 4;
}

static size_t count(const struct tiny_tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static double rounded(const char *dtype, double x)
{
    if (!strcmp(dtype, "F16"))
        return (double)kv_f16_to_f32(kv_f32_to_f16((float)x));
    if (!strcmp(dtype, "BF16"))
        return (double)kv_bf16_to_f32(kv_f32_to_bf16((float)x));
    return (double)(float)x;
}

/* Matrices that preserve the size of their input; norms around 1. */
void tiny_add(struct tiny_model *m, const char *name, size_t rows, size_t cols)
{
    const uint64_t key = kv_mix(7, m->n_tensors);
    const bool is_norm = strstr(name, "norm") != NULL;
    struct tiny_tensor *t;

    m->tensor = kv_realloc(m->tensor, m->n_tensors + 1, sizeof(*m->tensor));
    t = &m->tensor[m->n_tensors];
    *t = (struct tiny_tensor){
        .dtype = m->dtype,
        .rows = rows,
        .cols = cols,
        .shard = m->n_shards ? m->n_tensors % m->n_shards : 0,
    };
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->x = kv_alloc(count(t), sizeof(*t->x));
    for (size_t i = 0; i < count(t); i++) {
        const double z = kv_random_normal(key, i);

        t->x[i] = rounded(t->dtype, cols      ? z / sqrt((double)cols)
                                    : is_norm ? !m->gemma + 0.2 * z
                                              : 0.3 * z);
    }
    m->n_tensors++;
}

static void add_layer(struct tiny_model *m, size_t l)
{
    const size_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const struct {
        const char *name;
        bool has;
        size_t rows, cols;
    } parts[] = {
        {"input_layernorm.weight", true, m->hidden, 0},
        {"post_attention_layernorm.weight", true, m->hidden, 0},
        {"self_attn.q_proj.weight", true, q, m->hidden},
        {"self_attn.k_proj.weight", true, kv, m->hidden},
        {"self_attn.v_proj.weight", true, kv, m->hidden},
        {"self_attn.o_proj.weight", true, m->hidden, q},
        {"mlp.gate_proj.weight", true, m->inter, m->hidden},
        {"mlp.up_proj.weight", true, m->inter, m->hidden},
        {"mlp.down_proj.weight", true, m->hidden, m->inter},
        {"self_attn.q_proj.bias", m->qkv_bias, q, 0},
        {"self_attn.k_proj.bias", m->qkv_bias, kv, 0},
        {"self_attn.v_proj.bias", m->qkv_bias, kv, 0},
        {"self_attn.o_proj.bias", m->o_bias, m->hidden, 0},
        {"mlp.gate_proj.bias", m->mlp_bias, m->inter, 0},
        {"mlp.up_proj.bias", m->mlp_bias, m->inter, 0},
        {"mlp.down_proj.bias", m->mlp_bias, m->hidden, 0},
        {"self_attn.q_norm.weight", m->qk_norm, m->head_dim, 0},
        {"self_attn.k_norm.weight", m->qk_norm, m->head_dim, 0},
        {"pre_feedforward_layernorm.weight", m->gemma, m->hidden, 0},
        {"post_feedforward_layernorm.weight", m->gemma, m->hidden, 0},
    };
    char name[96];

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        snprintf(name, sizeof(name), "model.layers.%zu.%s", l, parts[i].name);
        if (parts[i].has)
            tiny_add(m, name, parts[i].rows, parts[i].cols);
    }
}

void tiny_init(struct tiny_model *m)
{
    m->tensor = NULL;
    m->n_tensors = 0;
    tiny_add(m, "model.embed_tokens.weight", m->n_vocab, m->hidden);
    tiny_add(m, "model.norm.weight", m->hidden, 0);
    if (!m->tied)
        tiny_add(m, "lm_head.weight", m->n_vocab, m->hidden);
    for (size_t l = 0; l < m->n_layers; l++)
        add_layer(m, l);
    snprintf(m->config, sizeof(m->config),
             "{\"architectures\": [\"%s\"], \"hidden_size\": %zu, "
             "\"intermediate_size\": %zu, \"num_hidden_layers\": %zu, "
             "\"num_attention_heads\": %zu, \"num_key_value_heads\": %zu, "
             "\"head_dim\": %zu, \"vocab_size\": %zu, "
             "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05, "
             "\"%s\", \"tie_word_embeddings\": %s, "
             "\"attention_bias\": %s, \"mlp_bias\": %s%s}",
             m->arch, m->hidden, m->inter, m->n_layers, m->n_heads,
             m->n_kv_heads, m->head_dim, m->n_vocab,
             m->gemma ? "hidden_activation\": \"gelu_pytorch_tanh"
                      : "hidden_act\": \"silu",
             m->tied ? "true" : "false", m->o_bias ? "true" : "false",
             m->mlp_bias ? "true" : "false", m->more ? m->more : "");
}

struct tiny_model tiny_variant(size_t i)
{
    const struct tiny_model *v = &variants[i];
    struct tiny_model m = tiny_llama;

    m.arch = v->arch ? v->arch : m.arch;
    m.dtype = v->dtype;
    m.tied = v->tied;
    m.qkv_bias = v->qkv_bias;
    m.o_bias = v->o_bias;
    m.mlp_bias = v->mlp_bias;
    m.qk_norm = v->qk_norm;
    m.more = v->more;
    tiny_init(&m);
    return m;
}

void tiny_clear(struct tiny_model *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        free(m->tensor[i].x);
    free(m->tensor);
    m->tensor = NULL;
    m->n_tensors = 0;
}

struct tiny_tensor *tiny_find(const struct tiny_model *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensor[i].name, name))
            return &m->tensor[i];
    fail_msg("the tiny model has no %s", name);
    return NULL;
}

void tiny_drop(struct tiny_model *m, const char *name)
{
    struct tiny_tensor *t = tiny_find(m, name);

    free(t->x);
    *t = m->tensor[--m->n_tensors];
}

void tiny_config(struct tiny_model *m, const char *from, const char *to)
{
    char *at = strstr(m->config, from), rest[sizeof(m->config)];

    if (!at)
        fail_msg("the config has no %s", from);
    snprintf(rest, sizeof(rest), "%s", at + strlen(from));
    snprintf(at, sizeof(m->config) - (size_t)(at - m->config), "%s%s", to,
             rest);
}

void tiny_write_safetensors(const char *path, uint64_t n, const char *header,
                            const void *data, size_t data_bytes)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(&n, 8, 1, f), 1);
    assert_int_equal(fwrite(header, 1, strlen(header), f), strlen(header));
    assert_int_equal(fwrite(data, 1, data_bytes, f), data_bytes);
    assert_int_equal(fclose(f), 0);
}

void tiny_write_text(const char *dir, const char *name, const char *text)
{
    char *path = kv_path_join(dir, name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    free(path);
}

static void store(uint8_t *to, const struct tiny_tensor *t)
{
    for (size_t i = 0; i < count(t); i++) {
        const float f = (float)t->x[i];
        const uint16_t h =
            t->dtype[0] == 'B' ? kv_f32_to_bf16(f) : kv_f32_to_f16(f);

        if (!strcmp(t->dtype, "F32"))
            memcpy(to + 4 * i, &f, 4);
        else if (element_bytes(t->dtype) == 2)
            memcpy(to + 2 * i, &h, 2);
    }
}

/* The tensors of one shard; adds to the index. */
static void write_shard(const struct tiny_model *m, const char *dir,
                        const char *file, size_t shard, char *index,
                        size_t capacity)
{
    char *path = kv_path_join(dir, file), *header = kv_alloc(1, 1 << 16);
    size_t bytes = 0, n = 0;
    uint8_t *data = NULL;

    n += (size_t)sprintf(header, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct tiny_tensor *t = &m->tensor[i];
        const size_t end = bytes + count(t) * element_bytes(t->dtype);
        char shape[64];

        if (t->shard != shard)
            continue;
        snprintf(shape, sizeof(shape), t->cols ? "%zu, %zu" : "%zu", t->rows,
                 t->cols);
        n += (size_t)sprintf(header + n,
                             ", \"%s\": {\"dtype\": \"%s\", \"shape\": [%s], "
                             "\"data_offsets\": [%zu, %zu]}",
                             t->name, t->dtype, shape, bytes, end);
        snprintf(index + strlen(index), capacity - strlen(index),
                 "%s\"%s\": \"%s\"", *index ? ", " : "", t->name, file);
        data = kv_realloc(data, end, 1);
        memset(data + bytes, 0, end - bytes);
        store(data + bytes, t);
        bytes = end;
    }
    sprintf(header + n, "}");
    tiny_write_safetensors(path, strlen(header), header, data, bytes);
    free(data);
    free(header);
    free(path);
}

void tiny_write(const struct tiny_model *m, const char *dir)
{
    const size_t capacity = 1 << 16;
    char *index = kv_alloc(1, capacity), *text = kv_alloc(1, capacity);

    tiny_write_text(dir, "config.json", m->config);
    if (!m->n_shards)
        write_shard(m, dir, "model.safetensors", 0, index, capacity);
    for (size_t s = 0; s < m->n_shards; s++) {
        char file[64];

        snprintf(file, sizeof(file), "model-%05zu-of-%05zu.safetensors", s + 1,
                 m->n_shards);
        write_shard(m, dir, file, s, index, capacity);
    }
    snprintf(text, capacity, "{\"weight_map\": {%s}}", index);
    if (m->n_shards)
        tiny_write_text(dir, "model.safetensors.index.json", text);
    free(text);
    free(index);
}

struct kv_model *tiny_open(const struct tiny_model *m)
{
    const char *dir = test_folder();
    struct kv_err e = {""};
    struct kv_model *model;

    tiny_write(m, dir);
    if (kv_model_open(&model, dir, &e))
        fail_msg("%s", e.msg);
    return model;
}
