/* NSNQuant (arXiv 2505.18231): its points, its bits, and what the normalized
 * and shifted form is good for. */
#include "lib/base/rng.h"
#include "lib/schemes/nsnquant.h"
#include "tests/codec_setup.h"

#include <math.h>

enum { DIM = 64, TOKENS = 64 };

static const struct kv_shape shape = {
    .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = DIM};

/* Mean squared error of x [TOKENS][DIM] over the mean square. */
static double error_of(const char *text, const float *x)
{
    struct kv_codec *c = codec_of(text, &shape, 0, KV_V);
    uint8_t bytes[2 * TOKENS * DIM];
    float back[TOKENS * DIM];
    double error = 0, squares = 0;

    assert_int_equal(c->block, TOKENS);
    assert_in_range(c->block_bytes, 1, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    for (size_t i = 0; i < TOKENS * DIM; i++) {
        error += pow((double)(x[i] - back[i]), 2);
        squares += pow((double)x[i], 2);
    }
    kv_codec_free(c);
    return error / squares;
}

/* The error that scripts/nsn-points prints, for numbers that it has not seen;
 * the scale of each token is fitted, which is 1 / DIM of the rest. */
static void test_normal(void **state)
{
    float x[TOKENS * DIM];

    (void)state;
    for (size_t i = 0; i < TOKENS * DIM; i++)
        x[i] = (float)kv_random_normal(1, i);
    assert_within(error_of("nsnquant:b2", x), 0.1, 0.01);
    assert_within(error_of("nsnquant:b1", x), 0.3, 0.02);
}

/* Channels of any mean and tokens of any norm cost nothing: the error stays a
 * share of what differs from token to token. */
static void test_shifted(void **state)
{
    float x[TOKENS * DIM];
    double differs = 0, squares = 0;

    (void)state;
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t i = 0; i < DIM; i++) {
            const float mean = i == 5 ? 40 : i == 9 ? -25 : 0;
            const float rest = (float)kv_random_normal(2, t * DIM + i);
            const float norm = t == 7 ? 0.01f : 1 + (float)(t % 3);

            x[t * DIM + i] = norm * (mean + rest);
            differs += pow((double)(norm * rest), 2);
            squares += pow((double)x[t * DIM + i], 2);
        }
    assert_in_range(1000 * error_of("nsnquant:b2", x) * squares / differs, 1,
                    180);
}

/* 2.23 bits, and a block's parts. */
static void test_bits(void **state)
{
    const struct kv_shape wide = {
        .n_layers = 1, .n_heads = 8, .n_kv_heads = 8, .head_dim = 128};
    const struct kv_spec s = spec_of("nsnquant", &wide);
    struct kv_codec *c = codec_of("nsnquant", &wide, 0, KV_K);

    (void)state;
    assert_within(s.scheme->nominal(&s, KV_K, &wide), 2.23, 0.005);
    assert_true(c->pre_rope);
    assert_int_equal(c->block_bytes,
                     8 * (64 * 16 + 64 * 16 + 128 + 32 + 4 + 64 + 4));
    kv_codec_free(c);
}

static void test_refused(void **state)
{
    const struct kv_shape odd = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 20};
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_spec_parse(&s, "nsnquant", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &odd, &e), -1);
    assert_non_null(strstr(e.msg, "head_dim 20: expected a multiple of 8"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_shifted),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
