/* Kitty (arXiv 2511.18643): which channels are boosted, and their codes. */
#include "kernels/bitpack.h"
#include "tests/codec_setup.h"

#include <math.h>

enum { DIM = 8, TOKENS = 4 };

/* Channel 6 is the largest, channel 1 varies the most. */
static void fill(float x[TOKENS][DIM])
{
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t i = 0; i < DIM; i++)
            x[t][i] = i == 6   ? 40 + (float)t
                      : i == 1 ? (t % 2 ? 20.0f : -20.0f) + (float)t
                               : sinf((float)(t * DIM + i));
}

static void check_boosted(const char *text, size_t which)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = DIM};
    struct kv_codec *c = codec_of(text, &shape, 0, KV_K);
    float x[TOKENS][DIM], back[TOKENS][DIM];
    uint8_t bytes[1 + 2 + 7 + 4 * DIM];

    assert_int_equal(c->block, TOKENS);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    fill(x);
    round_trip(c, (struct kv_where){0}, x[0], bytes, back[0]);
    assert_int_equal(bytes[0], 1 << which);
    for (size_t i = 0; i < DIM; i++) {
        float low = INFINITY, high = -INFINITY;

        for (size_t t = 0; t < TOKENS; t++) {
            low = fminf(low, x[t][i]);
            high = fmaxf(high, x[t][i]);
        }
        for (size_t t = 0; t < TOKENS; t++)
            assert_within(back[t][i], x[t][i],
                          (double)(high - low) / (i == which ? 15 : 3) / 2 +
                              0.02);
    }
    kv_codec_free(c);
}

static void test_boosted(void **state)
{
    (void)state;
    check_boosted("kitty:g4r0", 6);
    check_boosted("kitty:g4r0,variance", 1);
}

/* A channel of ones is equal at any number of bits; tests no and all channels
 * boosted. */
static void test_ends(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = DIM};
    float x[TOKENS * DIM], back[TOKENS * DIM];
    uint8_t bytes[128];

    (void)state;
    for (size_t i = 0; i < TOKENS * DIM; i++)
        x[i] = (float)(i % DIM);
    for (int all = 0; all < 2; all++) {
        struct kv_codec *c =
            codec_of(all ? "kitty:g4r0,boost=1" : "kitty:g4r0,boost=0.001",
                     &shape, 0, KV_K);

        assert_int_equal(c->block_bytes, 1 + (all ? 16 : 8) + 4 * DIM);
        round_trip(c, (struct kv_where){0}, x, bytes, back);
        assert_memory_equal(x, back, sizeof(x));
        kv_codec_free(c);
    }
}

/* Kitty 2.39 bits, its page; Kitty-Pro. */
static void test_bits(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 128};
    struct kv_spec s = spec_of("kitty", &shape);
    struct kv_codec *k = codec_of("kitty", &shape, 0, KV_K);
    struct kv_codec *v = codec_of("kitty", &shape, 0, KV_V);
    struct kv_err e = {""};

    (void)state;
    assert_string_equal(s.text,
                        "kitty:b2h4g128r128s32,boost=0.125,sel=magnitude");
    assert_within(k->block_bytes * 8 / 128.0 / 128, 2.25 + 33 / 128.0, 0);
    assert_within(k->scheme->nominal(&s, KV_K, &shape), 2.25 + 33 / 128.0,
                  1e-9);
    assert_within(v->block_bytes * 8 / 128.0, 2.25, 0);
    s = spec_of("kitty,boost=0.25", &shape);
    assert_within(k->scheme->nominal(&s, KV_K, &shape), 2.5 + 33 / 128.0, 1e-9);
    assert_int_equal(kv_spec_parse(&s, "kitty:r100", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "g=128 must divide r=100");
    kv_codec_free(k);
    kv_codec_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_boosted),
                                       cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_bits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
