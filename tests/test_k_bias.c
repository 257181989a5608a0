/* Keys without the model's bias, in lib/k_bias.h, the cache, dumps and the
 * model. */
#include "lib/base/alloc.h"
#include "lib/dump.h"
#include "lib/k_bias.h"
#include "lib/model/model.h"
#include "lib/rope_table.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/synthetic.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>

enum { N = 40, HEAD_DIM = 32, FIRST = 7 };

static float *rows(const struct kv_shape *s, size_t heads, uint64_t seed)
{
    float *x = kv_alloc(N, heads * s->head_dim * sizeof(*x));

    synthetic_rows(s, heads, seed, N, x);
    return x;
}

/* The bias subtracted after RoPE is the rotated bias subtracted before RoPE;
 * adding it again gives the keys. */
static void test_rotation(void **state)
{
    const struct kv_shape all = synthetic_shape(HEAD_DIM);
    const struct kv_shape s = kv_shape_layer(&all, 1);
    const size_t n = N * s.n_kv_heads * HEAD_DIM;
    float *pre = rows(&s, s.n_kv_heads, 1), *post = rows(&s, s.n_kv_heads, 1);
    float *a = kv_alloc(n, sizeof(*a)), *b = kv_alloc(n, sizeof(*b));

    (void)state;
    assert_ptr_equal(s.k_bias, all.k_bias + s.n_kv_heads * HEAD_DIM);
    kv_rope(&s, post, N, s.n_kv_heads, FIRST);
    kv_k_bias_take(&s, true, FIRST, pre, N, a);
    for (size_t i = 0; i < n; i++)
        assert_within(a[i], pre[i] - s.k_bias[i % (n / N)], 0);
    kv_rope(&s, a, N, s.n_kv_heads, FIRST);
    kv_k_bias_take(&s, false, FIRST, post, N, b);
    for (size_t i = 0; i < n; i++)
        assert_within(a[i], b[i], 1e-5);
    kv_k_bias_add(&s, false, FIRST, b, N);
    for (size_t i = 0; i < n; i++)
        assert_within(b[i], post[i], 1e-5);
    free(b);
    free(a);
    free(post);
    free(pre);
}

/* Scores over keys less the bias and their shift are those over the keys, in
 * the plain version, in the fast one and under a cap. */
static void test_scores(void **state)
{
    const struct kv_shape all = synthetic_shape(HEAD_DIM);
    const struct kv_shape s = kv_shape_layer(&all, 0);
    const size_t n = N * s.n_heads * HEAD_DIM;
    float *q = rows(&s, s.n_heads, 2), *k = rows(&s, s.n_kv_heads, 3);
    float *v = rows(&s, s.n_kv_heads, 4), *less = rows(&s, s.n_kv_heads, 3);
    float *shift = kv_alloc(N * N, s.n_heads * sizeof(*shift));
    float *want = kv_alloc(n, sizeof(*want)), *out = kv_alloc(n, sizeof(*out));

    (void)state;
    kv_k_bias_take(&s, false, 0, k, N, less);
    for (int capped = 0; capped < 2; capped++) {
        struct kv_attend_job job = {.view = kv_shape_view(&s, N, 0, N),
                                    .q = q,
                                    .out = want,
                                    .q_rows = N,
                                    .k = {.quantized = k},
                                    .v = {.quantized = v}};

        job.view.cap = capped ? 3 : 0;
        kv_attend_c(&job);
        kv_k_bias_scores(&s, &job.view, q, shift);
        job.view.shift = shift;
        job.k.quantized = less;
        job.out = out;
        kv_attend_c(&job);
        for (size_t i = 0; i < n; i++)
            assert_within(out[i], want[i], 2e-4);
        kv_attend(&job);
        for (size_t i = 0; i < n; i++)
            assert_within(out[i], want[i], 2e-4);
    }
    free(out);
    free(want);
    free(shift);
    free(less);
    free(v);
    free(k);
    free(q);
}

/* A bias of 100 on keys of size 1: what is stored has the error of small keys.
 * hack attends on its codes. */
static double error_of(const char *text)
{
    struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t n = N * s.n_kv_heads * HEAD_DIM, out_n = s.n_heads * HEAD_DIM;
    float *bias = kv_alloc(s.n_layers * s.n_kv_heads * HEAD_DIM, sizeof(*bias));
    float *q = rows(&s, s.n_heads, 5), *k = rows(&s, s.n_kv_heads, 6);
    float *v = rows(&s, s.n_kv_heads, 7);
    float want[4 * HEAD_DIM], out[4 * HEAD_DIM];
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *c;
    struct kv_spec spec;
    struct kv_err e = {""};
    double sum = 0;

    for (size_t i = 0; i < s.n_layers * s.n_kv_heads * HEAD_DIM; i++)
        bias[i] = i % 5 ? 0.5f : 100;
    s.k_bias = bias;
    for (size_t i = 0; i < n; i++)
        k[i] = bias[i % (n / N)] + 0.2f * k[i];
    kv_rope(&s, k, N, s.n_kv_heads, 0);
    for (size_t i = 0; i < N * out_n; i++)
        q[i] *= 0.1f;
    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &s, &e))
        fail_msg("%s", e.msg);
    for (int side = 0; side < KV_SIDES; side++)
        assert_int_equal(kv_codec_new(&codec[side], &spec, &s, 0,
                                      (enum kv_side)side, NULL, &e),
                         0);
    assert_int_equal(kv_cache_new(&c, codec[KV_K], codec[KV_V], 1, &e), 0);
    assert_int_equal(append_rows(c, q, k, v, N, &e), 0);
    q += (N - 1) * out_n;
    kv_cache_attend(c, kv_cache_view(c, 1), q, out);
    kv_attend_c(&(struct kv_attend_job){.view = kv_cache_view(c, 1),
                                        .q = q,
                                        .out = want,
                                        .q_rows = 1,
                                        .k = {.quantized = k},
                                        .v = {.quantized = v}});
    for (size_t i = 0; i < out_n; i++)
        sum += pow((double)out[i] - (double)want[i], 2);
    kv_cache_free(c);
    kv_codec_free(codec[KV_K]);
    kv_codec_free(codec[KV_V]);
    free(v);
    free(k);
    free(q - (N - 1) * out_n);
    free(bias);
    return sum;
}

static void test_error(void **state)
{
    static const char *const specs[] = {"absmax:b4", "hack:b4p16", "nf4"};

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        char text[64];

        snprintf(text, sizeof(text), "%s,no-k_bias", specs[i]);
        if (!(error_of(text) < error_of(specs[i]) / 2))
            fail_msg("%s: %g, with the bias %g", specs[i], error_of(text),
                     error_of(specs[i]));
    }
}

static void refuse(const struct kv_shape *s, const char *text, const char *why)
{
    struct kv_spec spec;
    struct kv_err e = {""};

    assert_int_equal(kv_spec_parse(&spec, text, &e), 0);
    assert_int_equal(kv_spec_fit(&spec, s, &e), -1);
    assert_says(e, why);
}

static void test_spec(void **state)
{
    struct kv_shape s = synthetic_shape(HEAD_DIM);
    struct kv_spec spec;
    struct kv_err e = {""};
    char key[KV_SPEC_CHARS];

    (void)state;
    assert_int_equal(kv_spec_parse(&spec, "kivi:b2g32,K-k_bias=no", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &s, &e), 0);
    assert_string_equal(spec.text, "kivi:b2g32r128s0,axis=paper,k_bias=no");
    assert_int_equal(
        kv_spec_parse(&spec, "kivi:b2g32r128s0,axis=paper,k_bias=no", &e), 0);
    kv_spec_calib_key(&spec, key);
    assert_string_equal(key, "kivi,k_bias=no");
    assert_int_equal(kv_spec_parse(&spec, "kivi:b2g32,k_bias=yes", &e), 0);
    assert_string_equal(spec.text, "kivi:b2g32r128s0,axis=paper");
    refuse(&s, "kivi:b2g32,V-k_bias=no", "k_bias concerns keys alone");
    s.k_bias = NULL;
    refuse(&s, "q4_0,no-k_bias", "this model's keys have no bias");
}

/* A dump gives keys before and after RoPE less the same bias. */
static void test_dump(void **state)
{
    enum { WINDOWS = 2, CTX = 20 };
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t row = s.n_kv_heads * HEAD_DIM, n = WINDOWS * CTX * row;
    float *k = kv_alloc(n, sizeof(*k)), *pre = kv_alloc(n, sizeof(*pre));
    struct kv_dump *d;
    struct kv_err e = {""};
    char *path;

    (void)state;
    synthetic_dump(&s, WINDOWS, CTX, test_folder(), &path);
    assert_int_equal(kv_dump_open(&d, path, &e), 0);
    assert_memory_equal(kv_dump_info(d)->shape.k_bias, s.k_bias,
                        s.n_layers * row * sizeof(float));
    for (int take = 1; take >= 0; take--) {
        kv_dump_take_k_bias(d, take);
        assert_int_equal(
            kv_dump_read(d, 1, KV_T_K, 0, WINDOWS * CTX, k, &e) ||
                kv_dump_read(d, 1, KV_T_K_PRE, 0, WINDOWS * CTX, pre, &e),
            0);
        kv_rope(&s, pre, CTX, s.n_kv_heads, 0);
        kv_rope(&s, pre + n / 2, CTX, s.n_kv_heads, 0);
        for (size_t i = 0; i < n; i++)
            assert_within(k[i], pre[i], 2e-5);
    }
    kv_dump_close(d);
    free(path);
    free(pre);
    free(k);
}

/* The model gives the numbers of k_proj.bias, or none. */
static void test_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < TINY_VARIANTS; i++) {
        struct tiny_model m = tiny_variant(i);
        struct kv_model *model = tiny_open(&m);
        const struct kv_shape *s = &kv_model_info(model)->shape;
        const size_t row = s->n_kv_heads * s->head_dim;

        assert_int_equal(s->k_bias != NULL, m.qkv_bias && !m.qk_norm);
        for (size_t l = 0; l < s->n_layers && s->k_bias; l++) {
            char name[96];

            snprintf(name, sizeof(name),
                     "model.layers.%zu.self_attn.k_proj.bias", l);
            for (size_t j = 0; j < row; j++)
                assert_within(s->k_bias[l * row + j], tiny_find(&m, name)->x[j],
                              1e-6);
        }
        kv_model_free(model);
        tiny_clear(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation), cmocka_unit_test(test_scores),
        cmocka_unit_test(test_error),    cmocka_unit_test(test_spec),
        cmocka_unit_test(test_dump),     cmocka_unit_test(test_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
