/* QJL: decode() is the paper's estimator, with separate outlier channels; bytes
 * and bits; no bias over sketches. */
#include "kernels/random_matrix.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"

#include <math.h>

static struct kv_codec *codec(const char *text, enum kv_side side, size_t d)
{
    const struct kv_shape shape = {
        .n_layers = 4, .n_heads = 2, .n_kv_heads = 2, .head_dim = d};

    return codec_of(text, &shape, 3, side);
}

static void normal(uint64_t key, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
}

/* The estimator by its definition, in double, for the channels in `of`:
 * sqrt(pi / 2) / m |k| <S q, sign(S k)>, the first m rows of S. */
static double estimate(const float *s, size_t m, size_t d, const bool *of,
                       const float *q, const float *k)
{
    double norm = 0, sum = 0;

    for (size_t i = 0; i < d; i++)
        norm += of[i] ? (double)k[i] * (double)k[i] : 0;
    for (size_t r = 0; r < m; r++) {
        double sq = 0, sk = 0;

        for (size_t i = 0; i < d; i++) {
            sq += of[i] ? (double)s[r * d + i] * (double)q[i] : 0;
            sk += of[i] ? (double)s[r * d + i] * (double)k[i] : 0;
        }
        sum += sk < 0 ? -sq : sq;
    }
    return sqrt(acos(-1) / 2) / (double)m * sqrt(norm) * sum;
}

/* q . decode(k) is the estimate, to fp16's rounding of |k|. */
static void check_estimator(const char *text, size_t m, bool gaussian, size_t o)
{
    enum { D = 24, T = 4, ROW = 2 * D };
    const size_t big[2][3] = {{3, 17, 20}, {0, 11, 23}}; /* each head's */
    struct kv_codec *c = codec(text, KV_K, D);
    float *s = kv_alloc(m, D * sizeof(*s)), k[T * ROW], back[T * ROW], q[D];
    uint8_t *bytes = kv_alloc(c->block_bytes, 1);

    assert_int_equal(c->block, T);
    normal(1, T * ROW, k);
    normal(2, D, q);
    for (size_t i = 0; i < T; i++)
        for (size_t h = 0; h < 2; h++)
            for (size_t j = 0; j < 3; j++)
                k[i * ROW + h * D + big[h][j]] *= 100;
    (gaussian ? kv_random_gaussian
              : kv_random_orthogonal)(kv_mix(kv_mix(7, 3), KV_K), m, D, s);
    c->scheme->encode(c, (struct kv_where){.first = 0}, k, 1, bytes);
    c->scheme->decode(c, bytes, 1, back);
    for (size_t i = 0; i < T; i++)
        for (size_t h = 0; h < 2; h++) {
            const float *key = k + i * ROW + h * D;
            bool in[D], out[D] = {false};
            double want, got = 0;

            for (size_t j = 0; j < o; j++)
                out[big[h][j]] = true;
            for (size_t j = 0; j < D; j++) {
                in[j] = !out[j];
                got += (double)q[j] * (double)back[i * ROW + h * D + j];
            }
            want = estimate(s, m, D, in, q, key);
            if (o)
                want += estimate(s, m / 2, D, out, q, key);
            assert_within(got, want, 2e-3 * (1 + 3 * fabs(want)));
        }
    free(bytes);
    free(s);
    kv_codec_free(c);
}

static void test_estimator(void **state)
{
    (void)state;
    check_estimator("qjl:m50o0t4,gaussian,seed=7", 50, true, 0);
    check_estimator("qjl:m50o3t4,gaussian,seed=7", 50, true, 3);
    check_estimator("qjl:m55o3t4,seed=7", 55, false, 3);
    check_estimator("qjl:m20o3t4,seed=7", 20, false, 3); /* fewer than D */
}

/* Two channels, two rows, one outlier of each head: its index, then per token
 * two signs, a norm, one sign and a norm. */
static void test_bytes(void **state)
{
    struct kv_codec *c = codec("qjl:m2o1t2,gaussian", KV_K, 2);
    /* tokens x heads: channel 1 is the outlier of head 0, 0 of head 1 */
    const float k[8] = {3, -4, 12, 5, 0.5f, 8, 7, 0};
    const float norms[2][2][2] = {{{3, 4}, {0.5f, 8}}, {{5, 12}, {0, 7}}};
    const uint8_t index[2] = {1, 0};
    float s[4];
    uint8_t bytes[2 * 13];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    kv_random_gaussian(kv_mix(kv_mix(0, 3), KV_K), 2, 2, s);
    c->scheme->encode(c, (struct kv_where){.first = 0}, k, 1, bytes);
    for (size_t h = 0; h < 2; h++) {
        assert_int_equal(bytes[h * 13], index[h]);
        for (size_t t = 0; t < 2; t++) {
            const uint8_t *at = bytes + h * 13 + 1 + t * 6;
            const float *x = k + t * 4 + h * 2;
            const size_t in = !index[h], out = index[h];
            uint16_t half[2];

            memcpy(&half[0], at + 1, 2);
            memcpy(&half[1], at + 4, 2);
            for (size_t i = 0; i < 2; i++)
                assert_within(kv_f16_to_f32(half[i]) * sqrtf(2), norms[h][t][i],
                              5e-3);
            assert_int_equal(at[0], (s[in] * x[in] < 0) |
                                        (s[2 + in] * x[in] < 0) << 1);
            assert_int_equal(at[3], s[out] * x[out] < 0);
        }
    }
    kv_codec_free(c);
}

/* The paper's setting, head_dim 128: m 256, 8 outliers, 32 tokens. */
static void test_bits(void **state)
{
    struct kv_codec *k = codec("qjl", KV_K, 128), *v = codec("qjl", KV_V, 128);

    (void)state;
    assert_string_equal(k->spec.text,
                        "qjl:m256o8t32b2g32r128s0,rows=orthogonal,seed=0");
    assert_int_equal(k->block_bytes, 2 * (7 + 32 * (32 + 2 + 16 + 2)));
    assert_int_equal(v->block, 1);
    assert_int_equal(v->block_bytes * 8, 2 * 128 * 3);
    kv_codec_free(v);
    kv_codec_free(k);
}

/* The mean of q . decode(k) over sketches, as a multiple of q . k. */
static double mean_product(const char *text, size_t d)
{
    enum { SEEDS = 1000 };
    float k[64] = {0}, back[64], q[64];
    double sum = 0, exact = 0;

    normal(1, 2 * d, k);
    normal(2, d, q);
    for (size_t i = 0; i < d; i++) {
        q[i] += k[i];
        exact += (double)q[i] * (double)k[i];
    }
    for (size_t seed = 0; seed < SEEDS; seed++) {
        char with[64];
        uint8_t bytes[64];
        struct kv_codec *c;

        snprintf(with, sizeof(with), "%s,seed=%zu", text, seed);
        c = codec(with, KV_K, d);
        assert_true(c->block_bytes <= sizeof(bytes));
        c->scheme->encode(c, (struct kv_where){.first = 0}, k, 1, bytes);
        c->scheme->decode(c, bytes, 1, back);
        for (size_t i = 0; i < d; i++)
            sum += (double)q[i] * (double)back[i];
        kv_codec_free(c);
    }
    return sum / SEEDS / exact;
}

static void test_bias(void **state)
{
    (void)state;
    assert_within(mean_product("qjl:m32o0t1r0,gaussian", 16), 1, 0.03);
    assert_within(mean_product("qjl:m32o2t1r0,gaussian", 16), 1, 0.03);
    assert_within(mean_product("qjl:m32o0t1r0", 16), 1 + 1.0 / 64, 0.03);
}

static void test_refusals(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64};
    static const struct {
        const char *text, *why;
    } cases[] = {{"qjl:t48", "t=48 must divide r=128"},
                 {"qjl:g24", "g=24 must divide head_dim 64"},
                 {"qjl:m1", "m=1 is out of range"},
                 {"qjl:K-m64/V-m32", "m concerns keys alone"},
                 {"qjl:K-b4/V-b3", "b concerns values alone: leave K-b out"}};
    struct kv_spec s;
    struct kv_err e;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(kv_spec_parse(&s, cases[i].text, &e), 0);
        assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
        assert_says(e, cases[i].why);
    }
    assert_int_equal(kv_spec_parse(&s, "qjl:K-m64o200/V-b3g128", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text,
                        "qjl:m64o64t32b3g64r128s0,rows=orthogonal,seed=0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_estimator), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bits),      cmocka_unit_test(test_bias),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
