/* TurboQuant: the bytes of a small head, the distortions the paper prints for
 * its first algorithm, and that its second estimates products without bias. */
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/codec.h"
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

/* x = (3, 4): norm 5, rms 5 / sqrt(2) = 3.5355, one bit a coordinate.  What
 * comes back has the norm 0.79788 x 5, and stands on x's side. */
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
    } cases[] = {{"turboquant", KV_K, 3.125},
                 {"turboquant,qjl", KV_K, 3.25},
                 {"turboquant,qjl", KV_V, 3.125},
                 {"turboquant:b1,qjl", KV_K, 1.25}};

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
    /* channel 0 alone, turned by Hadamard, is flat: no normal distribution */
    assert_within(distortion("turboquant:b4,hadamard", 128) / want[3], 1, 0.7);
}

/* The mean of q . decode(k) over so many seeds, as a multiple of q . k. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_bit),    cmocka_unit_test(test_bits),
        cmocka_unit_test(test_distortion), cmocka_unit_test(test_bias),
        cmocka_unit_test(test_seeds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
