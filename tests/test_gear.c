/* GEAR (arXiv 2403.05527) on blocks worked by hand: matrices that the low-rank
 * factors and the outliers represent exactly. */
#include "kernels/bitpack.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"

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

/* Each channel goes from 0 to 3, in steps of 1; four tokens are off[channel]
 * away from a step, with the signs in `sign`. */
static void off_the_grid(const float off[D], const int sign[D][4], float *x)
{
    const float grid[N] = {0, 3, 1, 1, 2, 2, 0, 3};

    for (size_t t = 0; t < N; t++)
        for (size_t j = 0; j < D; j++)
            x[t * D + j] =
                grid[t] + (t > 1 && t < 6 ? (float)sign[j][t - 2] * off[j] : 0);
}

/* R = u v': u is 1/2 at four tokens, v twice each channel's error. */
static void test_rank_one_is_exact(void **state)
{
    const char *const specs[] = {"gear:b2g8n8k1i1o0", "gear:b2g8n8k1i3o0",
                                 "gear:b2g8n8k4i3o0"};
    const float off[D] = {1.0f / 16, 1.0f / 8, -1.0f / 4, 3.0f / 16};
    const int sign[D][4] = {
        {1, -1, 1, -1}, {1, -1, 1, -1}, {1, -1, 1, -1}, {1, -1, 1, -1}};
    float x[VALUES], back[VALUES];
    uint8_t bytes[256];

    (void)state;
    off_the_grid(off, sign, x);
    for (size_t i = 0; i < 3; i++) {
        struct kv_codec *c = codec(specs[i], KV_K, 1);
        const size_t k = i < 2 ? 1 : 4, factors = 8 + D * 4;

        assert_int_equal(c->block, N);
        assert_int_equal(c->block_bytes, factors + (N + D) * k * 2);
        round_trip(c, (struct kv_where){0}, x, bytes, back);
        for (size_t j = 0; j < VALUES; j++)
            assert_within(back[j], x[j], 0);

        /* up to the sign of both */
        const float a = half_at(bytes + factors + 2 * k * 2);
        const float b = half_at(bytes + factors + N * k * 2);

        assert_within(a * a, 0.25, 0);
        assert_within(b / a, 4 * off[0], 0);
        kv_codec_free(c);
    }
}

/* With 25 % outliers, a 0 and a 3 in each channel, the channel's mean, 3/2,
 * replaces them in the backbone.  If R included the error of that, rank 1 would
 * not suffice. */
static void test_outliers_are_not_in_r(void **state)
{
    struct kv_codec *c = codec("gear:b2g8n8k1i3o25", KV_K, 1);
    const float off[D] = {1.0f / 16, 1.0f / 8, -1.0f / 4, 3.0f / 16};
    const int sign[D][4] = {
        {1, -1, 1, -1}, {1, -1, 1, -1}, {1, -1, 1, -1}, {1, -1, 1, -1}};
    float x[VALUES], back[VALUES];
    uint8_t bytes[256];

    (void)state;
    off_the_grid(off, sign, x);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    for (size_t i = 0; i < VALUES; i++)
        assert_within(back[i], x[i], 0);
    kv_codec_free(c);
}

/* Two directions, one four times the other: rank 1 keeps the larger, given
 * rounds enough, rank 2 both, rank 0 none. */
static void test_largest_first(void **state)
{
    const char *const specs[] = {"gear:b2g8n8k0o0", "gear:b2g8n8k1i16o0",
                                 "gear:b2g8n8k2i16o0"};
    const float off[D] = {1.0f / 4, 1.0f / 16, 0, 0};
    const int sign[D][4] = {{1, -1, 1, -1}, {1, 1, -1, -1}, {0}, {0}};
    float x[VALUES], back[VALUES];
    uint8_t bytes[256];

    (void)state;
    off_the_grid(off, sign, x);
    for (size_t k = 0; k < 3; k++) {
        struct kv_codec *c = codec(specs[k], KV_K, 1);

        round_trip(c, (struct kv_where){0}, x, bytes, back);
        for (size_t t = 2; t < 6; t++) {
            const float e0 = x[t * D] - back[t * D];
            const float e1 = x[t * D + 1] - back[t * D + 1];

            assert_within(e0 * e0, k > 0 ? 0 : 1.0 / 16, 0);
            assert_within(e1 * e1, k > 1 ? 0 : 1.0 / 256, 0);
        }
        kv_codec_free(c);
    }
}

/* Per channel of 8 tokens 25 % are one at each end.  The others are on a grid
 * of 2 bits between 0 and 3, in which their mean, 9/8, stays. */
static void test_outliers_of_keys(void **state)
{
    struct kv_codec *c = codec("gear:b2g8n8k0o25", KV_K, 1);
    const float vector[N] = {0, 3, 1, 1000.5f, 2, -1000.5f, 0, 3};
    float x[VALUES], back[VALUES];
    uint8_t bytes[8 + D * 4 + 3 + D * 2 * 2];
    uint16_t at[D * 2];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    for (size_t i = 0; i < VALUES; i++)
        x[i] = vector[i / D] * (i % D == 3 ? -1.0f : 1.0f);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    for (size_t i = 0; i < VALUES; i++)
        assert_within(back[i], x[i], 0);
    assert_within(half_at(bytes + 8), 1, 0); /* channel 0's step */
    kv_unpack(bytes + 8 + D * 4, D * 2, 3, at);
    for (size_t i = 0; i < D; i++) {
        assert_int_equal(at[2 * i], 3);
        assert_int_equal(at[2 * i + 1], 5);
    }
    assert_within(half_at(bytes + 8 + D * 4 + 3 + 6 * 2), -1000.5f, 0);
    kv_codec_free(c);
}

/* The backbone in their place: 0, or the mean 69/8. */
static void test_fill(void **state)
{
    const char *const specs[] = {"gear:b2g8n8k0o25,zero",
                                 "gear:b2g8n8k0o25,mean"};
    const float vector[N] = {10, 13, 11, 100, 12, -100, 10, 13};
    float x[VALUES], back[VALUES];
    uint8_t bytes[64];

    (void)state;
    for (size_t i = 0; i < VALUES; i++)
        x[i] = vector[i / D];
    for (size_t i = 0; i < 2; i++) {
        struct kv_codec *c = codec(specs[i], KV_K, 1);

        round_trip(c, (struct kv_where){0}, x, bytes, back);
        assert_within(half_at(bytes + 8 + 2), i ? 69.0 / 8 : 0, 0);
        assert_within(half_at(bytes + 8), i ? (13 - 69.0 / 8) / 3 : 13.0 / 3,
                      0x1p-9);
        assert_within(back[3 * D], 100, 0);
        assert_within(back[5 * D], -100, 0);
        kv_codec_free(c);
    }
}

/* Per token over both heads: 25 % of 8 are one at each end. */
static void test_outliers_of_values(void **state)
{
    struct kv_codec *c = codec("gear:b2g4n2k2o25", KV_V, 2);
    const float x[2 * 2 * D] = {0,   3, 1, 2, 0, 500, 3, -500, /* token 0 */
                                -60, 4, 6, 1, 1, 7,   4, 60};
    float back[2 * 2 * D];
    uint8_t bytes[4 + 4 * 4 + 2 + 4 * 2 + 2 * (2 + D) * 2 * 2];
    uint16_t at[4];

    (void)state;
    assert_int_equal(c->block, 2);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    kv_unpack(bytes + 4 + 4 * 4, 4, 3, at);
    assert_int_equal(at[0], 5);
    assert_int_equal(at[1], 7);
    assert_int_equal(at[2], 0);
    assert_int_equal(at[3], 7);
    assert_within(back[5], 500, 0);
    assert_within(back[7], -500, 0);
    assert_within(back[8], -60, 0);
    assert_within(back[15], 60, 0);
    for (size_t i = 0; i < 2 * 2 * D; i++) /* rank 2 is all of two tokens */
        assert_within(back[i], x[i], 8e-3);
    kv_codec_free(c);
}

/* 2 % of 256 tokens are 2.56 at each end: two. */
static void test_count(void **state)
{
    const size_t n[] = {199, 200, 256, 299, 300}, ends[] = {1, 2, 2, 2, 3};

    (void)state;
    for (size_t i = 0; i < sizeof(n) / sizeof(*n); i++) {
        char text[64];
        struct kv_codec *c;

        snprintf(text, sizeof(text), "gear:b8g1n%zuk0o2", n[i]);
        c = codec(text, KV_K, 1);

        const size_t backbone = D * n[i] * 5, m = D * 2 * ends[i];

        assert_int_equal(c->block_bytes,
                         backbone + kv_pack_bytes(m, n[i] > 256 ? 9 : 8) +
                             2 * m);
        kv_codec_free(c);
    }
}

/* Both heads of a token in one group, 0 to 9 in steps of 3; or each in its
 * own. */
static void test_groups_of_values(void **state)
{
    const float x[2 * D] = {0, 1, 2, 3, 0, 3, 6, 9};
    const float want[2 * D] = {0, 0, 3, 3, 0, 3, 6, 9};
    struct kv_codec *all = codec("gear:b2g8n1k0o0", KV_V, 2);
    struct kv_codec *one = codec("gear:b2g8n1k0o0,heads=one", KV_V, 2);
    float back[2 * D];
    uint8_t bytes[2 + 2 * 4];

    (void)state;
    assert_int_equal(all->block_bytes, 2 + 4);
    assert_int_equal(one->block_bytes, 2 + 2 * 4);
    round_trip(all, (struct kv_where){0}, x, bytes, back);
    for (size_t i = 0; i < 2 * D; i++)
        assert_within(back[i], want[i], 0);
    round_trip(one, (struct kv_where){0}, x, bytes, back);
    for (size_t i = 0; i < 2 * D; i++)
        assert_within(back[i], x[i], 0);
    kv_codec_free(one);
    kv_codec_free(all);
}

/* Without factors and outliers it is KIVI. */
static void test_backbone_is_kivi(void **state)
{
    float x[2 * VALUES], back[2 * VALUES], want[2 * VALUES];
    uint8_t bytes[512];

    (void)state;
    for (size_t i = 0; i < 2 * VALUES; i++)
        x[i] = kv_f16_to_f32(kv_f16_clamp((float)kv_random_normal(1, i)));
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *gear = codec("gear:b4g4n8k0o0", (enum kv_side)side, 2);
        struct kv_codec *kivi = codec("kivi:b4g4", (enum kv_side)side, 2);
        const size_t n_blocks = N / kivi->block;

        round_trip(gear, (struct kv_where){0}, x, bytes, back);
        kivi->scheme->encode(kivi, (struct kv_where){.first = 0}, x, n_blocks,
                             bytes);
        kivi->scheme->decode(kivi, bytes, n_blocks, want);
        assert_int_equal(gear->block_bytes, n_blocks * kivi->block_bytes);
        assert_memory_equal(back, want, sizeof(want));
        kv_codec_free(gear);
        kv_codec_free(kivi);
    }
}

static void test_sizes(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = 128};
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_spec_parse(&s, "gear:b2g300k200", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_int_equal(kv_spec_size(&s, KV_K, "g"), 256);
    assert_int_equal(kv_spec_size(&s, KV_V, "g"), 256);
    assert_int_equal(kv_spec_size(&s, KV_K, "k"), 128);
    assert_int_equal(kv_spec_parse(&s, "gear:b2g300,heads=one", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_int_equal(kv_spec_size(&s, KV_V, "g"), 128);
    assert_int_equal(kv_spec_parse(&s, "gear:b2g48", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "K: g=48 must divide the block, n = 256");
    assert_int_equal(kv_spec_parse(&s, "gear:K-g32/V-g48", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "V: g=48 must divide the row of 256");
    assert_int_equal(kv_spec_parse(&s, "gear:K-g32/V-g48,heads=one", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "V: g=48 must divide head_dim 128");
    assert_int_equal(kv_spec_parse(&s, "gear,K-heads=one", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "heads concerns values alone");
}

/* A layer that slides has shorter blocks, in whole groups; here of CacheGen
 * too. */
static void test_sliding(void **state)
{
    static const struct {
        const char *spec;
        size_t window, block;
    } cases[] = {
        {"gear", 0, 256},
        {"gear", 512, 128},
        {"gear", 100, 64},
        {"cachegen,variant=code", 0, 256},
        {"cachegen,variant=code", 512, 128},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_shape shape = {.n_layers = 1,
                                       .n_heads = 1,
                                       .n_kv_heads = 1,
                                       .head_dim = 64,
                                       .window = cases[i].window};
        struct kv_codec *c = codec_of(cases[i].spec, &shape, 0, KV_K);

        assert_int_equal(c->block, cases[i].block);
        kv_codec_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_rank_one_is_exact),
        cmocka_unit_test(test_outliers_are_not_in_r),
        cmocka_unit_test(test_largest_first),
        cmocka_unit_test(test_outliers_of_keys),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_outliers_of_values),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_groups_of_values),
        cmocka_unit_test(test_backbone_is_kivi),
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
