/* TurboQuant: the bytes of a small head, the distortions the paper prints for
 * its first algorithm, and that its second estimates products without bias. */
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"

#include <math.h>

static struct kv_codec *codec(const char *text, enum kv_side side, size_t d)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = d};

    return codec_of(text, &shape, 0, side);
}

static void store(const struct kv_codec *c, const float *x, float *back)
{
    uint8_t *bytes = kv_alloc(c->block_bytes, 1);

    c->scheme->encode(c, (struct kv_where){.first = 0}, x, 1, bytes);
    c->scheme->decode(c, bytes, 1, back);
    free(bytes);
}

static double dot(const float *a, const float *b, size_t d)
{
    double sum = 0;

    for (size_t i = 0; i < d; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void normal(uint64_t key, size_t d, float *x)
{
    for (size_t i = 0; i < d; i++)
        x[i] = (float)kv_random_normal(key, i);
}

/* x = (3, 4): norm 5, rms 5 / sqrt(2) = 3.5355, one bit a coordinate.  The
 * decoded vector has the norm 0.79788 x 5, and points to x's side. */
static void test_one_bit(void **state)
{
    static const char *const specs[] = {"turboquant:b1",
                                        "turboquant:b1,hadamard"};
    const float x[2] = {3, 4};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kv_codec *c = codec(specs[i], KV_V, 2);
        uint8_t bytes[1 + 2];
        uint16_t half;
        float back[2];

        assert_int_equal(c->block_bytes, sizeof(bytes));
        c->scheme->encode(c, (struct kv_where){.first = 0}, x, 1, bytes);
        c->scheme->decode(c, bytes, 1, back);
        memcpy(&half, bytes + 1, sizeof(half));
        assert_within(kv_f16_to_f32(half), 3.5355, 1e-3);
        assert_in_range(bytes[0], 0, 3);
        assert_within(sqrt(dot(back, back, 2)), 0.79788 * 5, 2e-3);
        assert_true(dot(back, x, 2) > 0);
        kv_codec_free(c);
    }
}

static void test_bits(void **state)
{
    static const struct {
        const char *text;
        enum kv_side side;
        double bits;
    } cases[] = {
        {"turboquant", KV_K, 3.125},
        {"turboquant,qjl", KV_K, 3.25},
        {"turboquant,qjl", KV_V, 3.125},
        {"turboquant:b1,qjl", KV_K, 1.25},
        {"turboquant:b4,nc", KV_K, 4.125},
        {"turboquant:K-b8/V-b4,K-levels=fp8,V-levels=uniform", KV_K, 8},
        {"turboquant:K-b8/V-b4,K-levels=fp8,V-levels=uniform", KV_V, 4.25}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_codec *c = codec(cases[i].text, cases[i].side, 128);

        assert_int_equal(c->block_bytes * 8, 128 * cases[i].bits);
        kv_codec_free(c);
    }
}

/* Mean of |x - x^|^2 / |x|^2 over many x, with the worst of x for a scheme
 * that does not turn them: one channel has it all. */
static double distortion(const char *text, size_t d)
{
    enum { N = 60 };
    struct kv_codec *c = codec(text, KV_V, d);
    float *x = kv_alloc(2, d * sizeof(*x)), *y = x + d;
    double sum = 0;

    for (uint64_t i = 0; i < N; i++) {
        normal(i, d, x);
        if (i % 2)
            x[i] *= 1000;
        store(c, x, y);

        const double size = dot(x, x, d);

        for (size_t j = 0; j < d; j++)
            y[j] -= x[j];
        sum += dot(y, y, d) / size;
    }
    kv_codec_free(c);
    free(x);
    return sum / N;
}

/* Theorem 1 of the paper: about 0.36, 0.117, 0.03, 0.009 for 1 to 4 bits. */
static void test_distortion(void **state)
{
    static const double want[] = {0.3634, 0.1175, 0.03455, 0.009501};
    char text[32];

    (void)state;
    for (size_t b = 1; b <= 4; b++) {
        snprintf(text, sizeof(text), "turboquant:b%zu", b);
        assert_within(distortion(text, 128) / want[b - 1], 1, 0.05);
    }
    /* only channel 0, rotated by Hadamard, is flat: no normal distribution */
    assert_within(distortion("turboquant:b4,hadamard", 128) / want[3], 1, 0.7);
}

/* The mean of q . decode(k) over n seeds, as a multiple of q . k. */
static double mean_product(const char *text, size_t d)
{
    enum { SEEDS = 8000 };
    float *q = kv_alloc(3, d * sizeof(*q)), *k = q + d, *back = k + d;
    double sum = 0;

    normal(1, d, k);
    normal(2, d, q);
    for (size_t i = 0; i < d; i++)
        q[i] += k[i]; /* a product that is not near 0 */
    for (size_t seed = 0; seed < SEEDS; seed++) {
        char with[64];
        struct kv_codec *c;

        snprintf(with, sizeof(with), "%s,seed=%zu", text, seed);
        c = codec(with, KV_K, d);
        store(c, k, back);
        sum += dot(q, back, d);
        kv_codec_free(c);
    }
    sum /= SEEDS * dot(q, k, d);
    free(q);
    return sum;
}

/* One bit of Lloyd-Max shrinks every product by 2 / pi (section 3.2); the
 * residual's signs put it right, alone or beside codes. */
static void test_bias(void **state)
{
    (void)state;
    assert_within(mean_product("turboquant:b1", 16), 2 / acos(-1), 0.02);
    assert_within(mean_product("turboquant:b1,qjl", 16), 1, 0.02);
    assert_within(mean_product("turboquant:b2,qjl", 16), 1, 0.01);
}

/* Matrices differ by seed, layer and side, and are the same when made anew. */
static void test_seeds(void **state)
{
    const char *const texts[] = {"turboquant:b1", "turboquant:b1",
                                 "turboquant:b1,seed=1", "turboquant:b1"};
    const enum kv_side sides[] = {KV_K, KV_K, KV_K, KV_V};
    float x[64], back[4][64];

    (void)state;
    normal(5, 64, x);
    for (size_t i = 0; i < 4; i++) {
        struct kv_codec *c = codec(texts[i], sides[i], 64);

        store(c, x, back[i]);
        kv_codec_free(c);
    }
    assert_memory_equal(back[0], back[1], sizeof(x));
    assert_memory_not_equal(back[0], back[2], sizeof(x));
    assert_memory_not_equal(back[0], back[3], sizeof(x));
}

/* x = (3, 4) is rotated to (7, -1) / sqrt(2): codes 1 and 0 of one bit.  It
 * decodes to (0, 0.79788 x 5), with nc to (0, 5). */
static void test_plain(void **state)
{
    static const struct {
        const char *text;
        double rms, y;
    } cases[] = {{"turboquant:b1,plain", 3.5355, 0.79788 * 5},
                 {"turboquant:b1,plain,nc", 3.5355 / 0.79788, 5}};
    const float x[2] = {3, 4};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kv_codec *c = codec(cases[i].text, KV_K, 2);
        uint8_t bytes[1 + 2];
        float back[2];

        round_trip(c, (struct kv_where){.first = 0}, x, bytes, back);
        assert_int_equal(bytes[0], 1);
        assert_within(half_at(bytes + 1), cases[i].rms, 3e-3);
        assert_within(back[0], 0, 1e-5);
        assert_within(back[1], cases[i].y, 4e-3);
        kv_codec_free(c);
    }
}

/* With nc the decoded norm equals x's, for any bits and rotation, and zeros
 * stay zeros. */
static void test_norm(void **state)
{
    static const char *const rot[] = {"qr", "hadamard", "plain"};
    float x[48], y[48];
    char text[48];

    (void)state;
    for (size_t b = 1; b <= 8; b++)
        for (size_t i = 0; i < 3; i++) {
            struct kv_codec *c;

            snprintf(text, sizeof(text), "turboquant:b%zu,rot=%s,nc", b,
                     rot[i]);
            c = codec(text, KV_V, 48);
            normal(b, 48, x);
            store(c, x, y);
            assert_within(dot(y, y, 48) / dot(x, x, 48), 1, 3e-3);
            memset(x, 0, sizeof(x));
            store(c, x, y);
            assert_memory_equal(x, y, sizeof(x));
            kv_codec_free(c);
        }
}

/* Checks that the bytes of layer `layer`, of five, equal another scheme's. */
static void check_like(const char *text, size_t layer, enum kv_side side,
                       const char *other)
{
    enum { N = 7, HEADS = 2, D = 64, ROW = HEADS * D };
    const struct kv_shape shape = {
        .n_layers = 5, .n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = D};
    struct kv_codec *a = codec_of(text, &shape, layer, side);
    struct kv_codec *b = codec_of(other, &shape, layer, side);
    const struct kv_where w = {.first = 0};
    uint8_t bytes[2][N * ROW * 2];
    float x[N * ROW], y[2][N * ROW];

    assert_int_equal(a->block_bytes, b->block_bytes);
    normal(9, N * ROW, x);
    kv_codec_input(a, x, N, x);
    a->scheme->encode(a, w, x, N, bytes[0]);
    b->scheme->encode(b, w, x, N, bytes[1]);
    if (memcmp(bytes[0], bytes[1], N * a->block_bytes) != 0)
        fail_msg("%s, layer %zu: other bytes than %s", text, layer, other);
    a->scheme->decode(a, bytes[0], N, y[0]);
    b->scheme->decode(b, bytes[0], N, y[1]);
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    kv_codec_free(a);
    kv_codec_free(b);
}

static void test_not_rotated(void **state)
{
    const char *const k8v4 =
        "turboquant:K-b8/V-b4,K-levels=fp8,V-levels=uniform,skip=2";
    const char *const k3v4 =
        "turboquant:K-b3/V-b4,plain,nc,V-levels=uniform,K-skip=1";

    (void)state;
    for (size_t layer = 0; layer < 5; layer++) {
        const bool skipped = layer != 2, last = layer % 4 == 0;

        check_like(k8v4, layer, KV_K, skipped ? "f16" : "fp8,none");
        check_like(k8v4, layer, KV_V, skipped ? "f16" : "kivi:b4g64r0");
        check_like(k3v4, layer, KV_K, last ? "f16" : "turboquant:b3,plain,nc");
        check_like(k3v4, layer, KV_V, "kivi:b4g64r0");
    }
}

/* The printed spec, or the error. */
static void test_words(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"turboquant:b4,rot=plain,nc,V-levels=uniform,skip=2",
         "turboquant:b4r0s0,rot=plain,qjl=no,nc=yes,K-levels=normal,"
         "V-levels=uniform,skip=2,seed=0"},
        {"turboquant:b4,K-rot=plain,K-nc=yes,V-levels=uniform,skip=9",
         "turboquant:b4r0s0,rot=plain,qjl=no,nc=yes,K-levels=normal,"
         "V-levels=uniform,skip=2,seed=0"},
        {"turboquant:b8,fp8",
         "turboquant:b8r0s0,rot=qr,qjl=no,nc=no,levels=fp8,skip=0,seed=0"},
        {"turboquant:b4,fp8", "it wants b8, not b4"},
        {"turboquant,uniform,nc", "nc goes with levels=normal"},
        {"turboquant,V-rot=plain,V-levels=uniform", "rot concerns keys alone"},
        {"turboquant,K-levels=uniform,qjl", "K-levels=normal alone"}};
    const struct kv_shape shape = {
        .n_layers = 4, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_spec s;
        struct kv_err e = {""};

        assert_int_equal(kv_spec_parse(&s, cases[i].text, &e), 0);
        if (kv_spec_fit(&s, &shape, &e))
            assert_says(e, cases[i].says);
        else
            assert_string_equal(s.text, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_bit),    cmocka_unit_test(test_bits),
        cmocka_unit_test(test_distortion), cmocka_unit_test(test_bias),
        cmocka_unit_test(test_seeds),      cmocka_unit_test(test_plain),
        cmocka_unit_test(test_norm),       cmocka_unit_test(test_not_rotated),
        cmocka_unit_test(test_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
