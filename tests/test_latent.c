/* Latents (lib/shape.h): one record a token, from the spec to the loop, the
 * dump, and models whose files are wrong. */
#include "eval/loop.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/dump.h"
#include "lib/json_file.h"
#include "lib/seq/cache_bytes.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>

enum { LATENT = 32, TURNING = 32, D = LATENT + TURNING, N = 75 };

static struct kv_shape shape_of(size_t latent, size_t turning)
{
    struct kv_shape s = {.n_layers = 2,
                         .n_heads = 4,
                         .n_kv_heads = 1,
                         .head_dim = latent + turning,
                         .latent = latent,
                         .attn_scale = 0.2F,
                         .n_rot = turning / 2};

    for (size_t i = 0; i < s.n_rot; i++)
        s.inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)turning);
    return s;
}

static float *rows_of(const struct kv_shape *s, size_t heads, uint64_t seed)
{
    float *x = kv_alloc(N, heads * s->head_dim * sizeof(*x));

    synthetic_rows(s, heads, seed, N, x);
    return x;
}

/* ---- schemes ------------------------------------------------------------- */

static float float_at(const uint8_t *bytes)
{
    float x;

    memcpy(&x, bytes, sizeof(x));
    return x;
}

/* 512 + 64 channels, in the engine's bytes. */
static void test_records(void **state)
{
    const struct kv_shape shape = shape_of(512, 64);
    struct kv_codec *fp8 = codec_of("vllm:fp8_ds_mla", &shape, 0, KV_K);
    struct kv_codec *fp4 = codec_of("nvfp4_ds_mla", &shape, 0, KV_K);
    uint8_t bytes[656];
    float x[576] = {0}, back[576];
    uint16_t half;

    (void)state;
    assert_int_equal(fp8->block_bytes, 656);
    assert_int_equal(fp4->block_bytes, 432);
    x[0] = -448;
    x[1] = 1;
    x[130] = 2 * 448;
    x[131] = 2 * 1.0625F; /* half way to 1.125: to even */
    x[511] = 3;
    x[512] = 1 + 1.0F / 128;
    x[575] = -7;
    round_trip(fp8, (struct kv_where){0}, x, bytes, back);
    assert_int_equal(bytes[0], 0xfe);            /* -448 */
    assert_int_equal(bytes[1], 0x38);            /* 1 */
    assert_int_equal(bytes[131], 0x38);          /* 2 / 2 */
    assert_true(float_at(bytes + 512) == 1);     /* scale of channels 0-127 */
    assert_true(float_at(bytes + 512 + 4) == 2); /* scale of 128 to 255 */
    assert_true(float_at(bytes + 512 + 8) > 0);  /* scale of zeros */
    assert_true(float_at(bytes + 512 + 12) == 3.0F / 448);
    memcpy(&half, bytes + 528, sizeof(half));
    assert_true(kv_bf16_to_f32(half) == x[512]);
    assert_true(back[0] == -448 && back[131] == 2 && back[200] == 0);
    assert_true(back[512] == x[512] && back[575] == -7);
    for (size_t i = 0; i < 16; i++)
        x[i] = i % 2 ? -6 : 0.5F;
    round_trip(fp4, (struct kv_where){0}, x, bytes, back);
    assert_int_equal(bytes[0], 0xf1);   /* -6, 0.5: the first is the low one */
    assert_int_equal(bytes[256], 0x38); /* 1 */
    for (size_t i = 288; i < 304; i++)
        assert_int_equal(bytes[i], 0);
    memcpy(&half, bytes + 304, sizeof(half));
    assert_true(kv_bf16_to_f32(half) == x[512]);
    assert_true(back[0] == 0.5F && back[1] == -6 && back[575] == -7);
    kv_codec_free(fp4);
    kv_codec_free(fp8);
}

static void test_refused(void **state)
{
    static const struct {
        const char *spec, *says;
    } cases[] = {
        {"K-q8_0/V-kivi:b2g16", "V has no codes of its own: K and V take one"},
        {"kivi:K-b4/V-b2", "V has no codes of its own: K and V take one"},
        {"hack", "one record a token: hack, which goes by the codes of other"},
        {"klt:b2,metric=fisher,pred=1", "one record a token: klt, which goes"},
        {"kvtc:b2,span=all", "one record a token: kvtc, which goes by the"},
        {"h2o:b0.5+f16", "one record a token: h2o, which drops tokens"},
        {"fp8_ds_mla:g24", "g=24 must divide the 32 channels of the latent"},
    };
    const struct kv_shape shape = shape_of(LATENT, TURNING);
    const struct kv_shape odd = shape_of(40, 24);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(kv_spec_parse(&s, cases[i].spec, &e), 0);
        assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
        assert_says(e, cases[i].says);
    }
    assert_int_equal(kv_spec_parse(&s, "nvfp4_ds_mla", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &odd, &e), -1);
    assert_says(e, "40 channels of a latent: expected a multiple of 16");
}

/* ---- the cache ----------------------------------------------------------- */

static const char *const specs[] = {"f32",        "f16:s3",
                                    "q8_0:r9s2",  "kivi:b4g16r32",
                                    "fp8_ds_mla", "zipcache:n16r0"};
enum { N_SPECS = sizeof(specs) / sizeof(*specs) };

static struct kv_cache *filled(struct kv_codec *const *codec, const float *q,
                               const float *k, size_t n)
{
    const struct kv_tokens t = {.n = n, .q = q, .k = k, .k_pre = k};
    struct kv_cache *c;
    struct kv_err e = {""};

    if (kv_cache_new(&c, codec[KV_K], codec[KV_V], 5, &e) ||
        kv_cache_append(c, &t, &e))
        fail_msg("%s", e.msg);
    return c;
}

/* Only one side has bytes and values; values are keys, also after a message. */
static void check_cache(struct kv_codec *const *codec, const struct kv_shape *s,
                        const float *q, const float *k)
{
    struct kv_cache *c = filled(codec, q, k, N), *loaded;
    const struct kv_bits key = kv_bits_of_cache(c, KV_K);
    const struct kv_bits value = kv_bits_of_cache(c, KV_V);
    float *x = kv_alloc(2 * N, D * sizeof(*x)), *y = x + N * D;
    float *out = kv_alloc(2 * N, s->n_heads * D * sizeof(*out));
    const struct kv_attend_view view = kv_cache_view(c, N);
    struct kv_err e = {""};
    uint8_t *bytes;
    size_t n;

    assert_ptr_equal(codec[KV_V], codec[KV_K]);
    assert_true(key.bytes > 0 && key.values == N * D);
    assert_true(value.bytes == 0 && value.values == 0);
    kv_cache_decode(c, KV_K, x);
    kv_cache_decode(c, KV_V, y);
    assert_memory_equal(x, y, N * D * sizeof(*x));
    kv_cache_attend(c, view, q, out);
    kv_attend_c(&(struct kv_attend_job){.view = view,
                                        .q = q,
                                        .out = out + N * s->n_heads * D,
                                        .q_rows = N,
                                        .k = {.quantized = x},
                                        .v = {.quantized = x}});
    assert_memory_equal(out, out + N * s->n_heads * D,
                        N * s->n_heads * D * sizeof(*out));
    n = kv_cache_write(c, &bytes);
    assert_int_equal(kv_cache_new(&loaded, codec[KV_K], codec[KV_V], 5, &e), 0);
    if (kv_cache_load(loaded, bytes, n, &e))
        fail_msg("%s: %s", codec[KV_K]->spec.text, e.msg);
    kv_cache_decode(loaded, KV_V, y);
    assert_memory_equal(x, y, N * D * sizeof(*x));
    free(bytes);
    kv_cache_free(loaded);
    kv_cache_free(c);
    free(out);
    free(x);
}

static void test_cache(void **state)
{
    const struct kv_shape s = shape_of(LATENT, TURNING);
    float *q = rows_of(&s, s.n_heads, 1), *k = rows_of(&s, 1, 2);
    struct kv_codecs *cs;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < N_SPECS; i++) {
        const struct kv_spec spec = spec_of(specs[i], &s);

        assert_int_equal(kv_codecs_new(&cs, &spec, &s, 0, 2, NULL, &e), 0);
        check_cache(kv_codecs_at(cs, 1), &s, q, k);
        kv_codecs_free(cs);
    }
    free(k);
    free(q);
}

/* ---- a model ------------------------------------------------------------- */

static char *golden(const char *file)
{
    char *all = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden");
    char *folder = kv_path_join(all, "deepseek_v3");
    char *path = file ? kv_path_join(folder, file) : kv_strdup(folder);

    free(folder);
    free(all);
    return path;
}

/* Token by token through the caches of each layer. */
struct literal {
    struct kv_codecs *codecs;
};

static int attend_literally(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct literal *l = arg;
    struct kv_codec *const *codec = kv_codecs_at(l->codecs, x->layer);
    const size_t row = x->shape->n_heads * x->shape->head_dim;
    struct kv_cache *c;
    int rc = kv_cache_new(&c, codec[KV_K], codec[KV_V], 0, e);

    for (size_t t = 0; t < x->n && !rc; t++) {
        const struct kv_tokens one = kv_qkv_tokens(x, 0, t, 1);

        rc = kv_cache_append(c, &one, e);
        if (!rc)
            kv_cache_attend(c, kv_cache_view(c, 1), one.q, x->out + t * row);
    }
    kv_cache_free(c);
    return rc;
}

static void check_loop(struct kv_model *m, const char *text)
{
    enum { LENGTH = 40 };
    const struct kv_model_info *info = kv_model_info(m);
    const struct kv_spec spec = spec_of(text, &info->shape);
    float *is = kv_alloc(2 * LENGTH, info->hidden * sizeof(*is));
    float *should = is + LENGTH * info->hidden;
    struct kv_attention attention;
    struct kv_protocol stream;
    struct kv_loop *loop = NULL;
    struct literal l;
    struct kv_bits bits;
    struct kv_err e = {""};
    int32_t tokens[LENGTH];

    for (size_t i = 0; i < LENGTH; i++)
        tokens[i] = (int32_t)(i * i * 7 % 53);
    if (kv_protocol_parse(&stream, "stream", false, &e) ||
        kv_loop_new(&loop, &spec, &info->shape, NULL, &stream, 0, NULL, &e) ||
        kv_codecs_new(&l.codecs, &spec, &info->shape, 0, info->shape.n_layers,
                      NULL, &e))
        fail_msg("%s", e.msg);
    attention = kv_loop_attention(loop, 0, LENGTH);
    if (kv_model_forward(m, tokens, 1, LENGTH, 0, &attention, is, &e))
        fail_msg("%s", e.msg);
    attention = (struct kv_attention){.run = attend_literally, .arg = &l};
    if (kv_model_forward(m, tokens, 1, LENGTH, 0, &attention, should, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < LENGTH * info->hidden; i++)
        if (!(fabsf(is[i] - should[i]) <= 1e-4F))
            fail_msg("%s: value %zu is %g, not %g", text, i, (double)is[i],
                     (double)should[i]);
    bits = kv_loop_bits(loop);
    assert_true(bits.values ==
                (double)(LENGTH * info->shape.n_layers * info->shape.head_dim));
    kv_codecs_free(l.codecs);
    kv_loop_free(loop);
    free(is);
}

static void test_loop(void **state)
{
    static const char *const text[] = {"f16", "int8_per_token_head:r5s2",
                                       "kivi:b4g4r8"};
    char *path = golden(NULL);
    struct kv_model *m;
    struct kv_err e = {""};

    (void)state;
    if (kv_model_open(&m, path, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++)
        check_loop(m, text[i]);
    kv_model_free(m);
    free(path);
}

/* ---- a model's files ----------------------------------------------------- */

/* A copy of the model, a word of its tensors' names or a field changed. */
static void opens_not(const char *field, json_t *value, const char *name,
                      const char *says)
{
    const char *folder = test_folder();
    char *from = golden("config.json"),
         *to = kv_path_join(folder, "config.json");
    char *tensors = golden("model.safetensors"), *bytes, *at;
    struct kv_err e = {""};
    json_t *config = kv_json_read(from, &e);
    struct kv_model *m;
    size_t n;
    FILE *f;

    assert_non_null(config);
    if (field)
        assert_int_equal(json_object_set_new(config, field, value), 0);
    assert_int_equal(json_dump_file(config, to, 0), 0);
    json_decref(config);
    free(to);
    to = kv_path_join(folder, "model.safetensors");
    assert_int_equal(kv_file_read(tensors, &bytes, &n, &e), 0);
    if (name) {
        at = memmem(bytes, n, name, strlen(name));
        assert_non_null(at);
        *at = 'x';
    }
    f = fopen(to, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    assert_int_equal(kv_model_open(&m, folder, &e), -1);
    assert_says(e, says);
    free(bytes);
    free(tensors);
    free(to);
    free(from);
}

static void test_files(void **state)
{
    (void)state;
    opens_not("q_lora_rank", json_integer(8), NULL,
              "q_a_proj.weight has shape [7, 18]; config.json says [8, 18]");
    opens_not("q_lora_rank", json_null(), NULL,
              "tensor model.layers.0.self_attn.q_proj.weight is missing");
    opens_not("kv_lora_rank", json_integer(10), NULL,
              "kv_a_proj_with_mqa.weight has shape [12, 18]; config.json says");
    opens_not(NULL, NULL, "kv_a_layernorm",
              "self_attn.kv_a_layernorm.weight is missing");
    opens_not("kv_lora_rank", json_integer(7), NULL,
              "kv_lora_rank 7 and qk_rope_head_dim 4 are not even numbers");
    opens_not("kv_lora_rank", json_integer(1024), NULL,
              "are not even numbers of together up to 576");
    opens_not("num_key_value_heads", json_integer(1), NULL,
              "num_key_value_heads is 1, but the latent of a DeepseekV3");
    opens_not("n_group", json_integer(4), NULL,
              "6 experts are not in 4 groups (n_group)");
    opens_not("topk_group", json_integer(1), NULL,
              "hold fewer than the 3 that a token has (num_experts_per_tok)");
    opens_not("attention_bias", json_true(), NULL,
              "attention_bias is true; only false is implemented");
    opens_not("topk_method", json_string("greedy"), NULL,
              "topk_method is \"greedy\"; only \"noaux_tc\" is");
}

/* ---- a dump -------------------------------------------------------------- */

/* It has no values of its own. */
static void test_dump(void **state)
{
    const struct kv_shape s = shape_of(LATENT, TURNING);
    char *path = kv_path_join(test_folder(), "dump.h5");
    struct kv_dump_info info = {.model = "m",
                                .arch = "a",
                                .weights = "f32",
                                .model_hash = "0123456789abcdef",
                                .text = "t",
                                .text_hash = "0123456789abcdef",
                                .shape = s,
                                .n_windows = 1,
                                .ctx = N,
                                .last_layer = s.n_layers - 1,
                                .have = {[KV_T_K] = true}};
    float *k = rows_of(&s, 1, 2), *v = kv_alloc(N, D * sizeof(*v));
    const int32_t tokens[N] = {0};
    struct kv_dump_writer *w;
    struct kv_dump *d = NULL;
    struct kv_err e = {""};

    (void)state;
    if (kv_dump_create(&w, path, &info, &e) ||
        kv_dump_put_tokens(w, 0, 1, tokens, &e) ||
        kv_dump_put(w, 0, KV_T_K, 0, 1, k, &e) ||
        kv_dump_put(w, 1, KV_T_K, 0, 1, k, &e) || kv_dump_commit(w, &e) ||
        kv_dump_open(&d, path, &e) || kv_dump_read(d, 1, KV_T_V, 0, N, v, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(kv_dump_info(d)->shape.latent, LATENT);
    assert_true(kv_dump_info(d)->have[KV_T_V]);
    assert_memory_equal(k, v, N * D * sizeof(*k));
    kv_dump_close(d);
    free(v);
    free(k);
    free(path);
}

/* ---- calibrations -------------------------------------------------------- */

/* Nothing reads tables of V, so training makes none. */
static void test_tables(void **state)
{
    static const char *const text[] = {"cq:c4b4",
                                       "commvq:b2c4",
                                       "antkv:d4b4n16",
                                       "vecinfer:d4b4",
                                       "kvquant:b3o1",
                                       "cachegen,variant=paper",
                                       "oscar:b2g16,clip=0.9",
                                       "modelopt:nvfp4",
                                       "kvtc:b2",
                                       "evasion:d4b4o0"};
    const struct kv_shape shape = shape_of(LATENT, TURNING);

    (void)state;
    for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++) {
        const struct kv_spec spec = spec_of(text[i], &shape);
        struct kv_calib *c = synthetic_calib(&shape, &spec, test_folder());
        struct kv_codecs *codecs = NULL;
        struct kv_err e = {""};

        assert_true(c->set[0].n_tables > 0);
        for (size_t t = 0; t < c->set[0].n_tables; t++)
            if (c->set[0].table[t].side == KV_V)
                fail_msg("%s has a table of V, %s", text[i],
                         c->set[0].table[t].name);
        if (kv_codecs_new(&codecs, &spec, &shape, 0, 2, c, &e))
            fail_msg("%s: %s", text[i], e.msg);
        kv_codecs_free(codecs);
        kv_calib_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cache),   cmocka_unit_test(test_loop),
        cmocka_unit_test(test_files),   cmocka_unit_test(test_dump),
        cmocka_unit_test(test_tables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
