/* KVarN (arXiv 2606.03458): a tile against a second implementation, in numpy,
 * which follows the published code; the effect of the rounds; and the bytes of
 * a block. */
#include "kernels/hadamard.h"
#include "tests/codec_setup.h"

#include <math.h>

enum { D = 4, N = 8, VALUES = D * N };

static struct kv_codec *codec(const char *text, enum kv_side side,
                              size_t n_kv_heads)
{
    const struct kv_shape shape = {.n_layers = 1,
                                   .n_heads = n_kv_heads,
                                   .n_kv_heads = n_kv_heads,
                                   .head_dim = D};

    return codec_of(text, &shape, 0, side);
}

/* A channel that is larger, and a token. */
static void uneven(float *x)
{
    for (size_t i = 0; i < VALUES; i++) {
        const double wave = sin(0.7 * (double)(i * i));
        const double by = (i % D == 1 ? 8 : 1) * (i / D == 3 ? 5 : 1);

        x[i] = kv_f16_to_f32(kv_f16_clamp((float)(wave * by)));
    }
}

/* Decoded values in steps of 1e-5 of the second implementation, which adds in
 * another order. */
static const float expected[KV_SIDES][VALUES] = {
    {-0.02244f, 5.45967f,  -0.01579f, -0.00582f, 0.23738f,  -9.01795f,
     0.04293f,  0.27779f,  0.84563f,  1.28000f,  0.84736f,  -0.13968f,
     1.07359f,  -40.7851f, 0.19416f,  1.25633f,  -0.03311f, 8.05639f,
     -0.02330f, -0.00858f, -0.02614f, 6.35866f,  -0.01839f, -0.00678f,
     1.82495f,  -5.44510f, 1.67221f,  1.85669f,  0.23559f,  -8.94984f,
     0.04261f,  0.27569f},
    {-0.04480f, 5.20344f,  0.28999f,  0.06599f, -1.42906f, -8.35630f, -0.48546f,
     -0.18980f, 0.77098f,  1.28653f,  0.69316f, 0.08085f,  3.54865f,  -37.6214f,
     -2.05424f, -0.29704f, -0.02971f, 8.43449f, 0.47063f,  0.10937f,  -1.13911f,
     5.47856f,  -0.86412f, -1.14657f, 1.12077f, -5.84653f, 0.92020f,  1.21757f,
     2.00443f,  -7.34479f, 1.16831f,  1.56735f}};

static void test_second_implementation(void **state)
{
    float x[VALUES], back[VALUES];
    uint8_t bytes[256];

    (void)state;
    uneven(x);
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c = codec("kvarn:b2n8i16", (enum kv_side)side, 1);

        round_trip(c, (struct kv_where){0}, x, bytes, back);
        for (size_t i = 0; i < VALUES; i++)
            assert_within(back[i], expected[side][i],
                          2e-3 * (1 + fabs((double)expected[side][i])));
        kv_codec_free(c);
    }
}

/* The squared error of the tokens that are not larger. */
static double error_of(const char *text, enum kv_side side)
{
    struct kv_codec *c = codec(text, side, 1);
    float x[VALUES], back[VALUES];
    uint8_t bytes[256];
    double sum = 0;

    uneven(x);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    for (size_t i = 0; i < VALUES; i++)
        if (i / D != 3)
            sum += ((double)x[i] - back[i]) * ((double)x[i] - back[i]);
    kv_codec_free(c);
    return sum;
}

/* A larger token increases the error of the other tokens in a row of keys,
 * until its deviation is divided out. */
static void test_rounds(void **state)
{
    (void)state;
    assert_true(error_of("kvarn:b2n8i16", KV_K) <
                0.25 * error_of("kvarn:b2n8i0", KV_K));
    assert_true(error_of("kvarn:b4n8i16", KV_K) <
                0.25 * error_of("kvarn:b2n8i16", KV_K));
}

/* Without rounds a row of rotated values is between its minimum and maximum. */
static void test_bytes(void **state)
{
    struct kv_codec *k = codec("kvarn:b3n8i0", KV_K, 2);
    struct kv_codec *v = codec("kvarn:b3n8i0", KV_V, 2);
    float x[2 * VALUES], first[N];
    uint8_t bytes[512];

    (void)state;
    assert_int_equal(k->block, N);
    assert_int_equal(k->block_bytes, 2 * (12 + 2 * (2 * D + N)));
    assert_int_equal(v->block_bytes, 2 * (12 + 2 * (2 * N + D)));
    for (size_t i = 0; i < 2 * VALUES; i++)
        x[i] = (float)(i * 7 % 31) - 12;
    k->scheme->encode(k, (struct kv_where){0}, x, 1, bytes);
    kv_hadamard(x, (size_t)N * 2, D);

    float low = x[D], high = x[D]; /* head 1, channel 0 */

    for (size_t t = 0; t < N; t++) {
        first[t] = x[(t * 2 + 1) * D];
        low = fminf(low, first[t]);
        high = fmaxf(high, first[t]);
    }

    const uint8_t *head = bytes + k->block_bytes / 2;

    assert_within(half_at(head + 12), (high - low) / 7, 1e-3 * (high - low));
    assert_within(half_at(head + 12 + 2 * D), low, 1e-3 * fabsf(low));
    assert_within(half_at(head + 12 + 4 * D), 1, 0); /* divides by nothing */
    kv_codec_free(k);
    kv_codec_free(v);
}

/* The defaults are the published K4V2, with a first tile in fp16. */
static void test_defaults(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 128};
    const struct kv_spec s = spec_of("kvarn", &shape);

    (void)state;
    assert_string_equal(s.text, "kvarn:K-b4n128i16r0s128/V-b2n128i16r0s128");
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 4.375, 0);
    assert_within(s.scheme->nominal(&s, KV_V, &shape), 2.375, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_implementation),
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
