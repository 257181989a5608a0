/* The scalar schemes against their formulas, on cases worked by hand: the
 * lecture's numbers, and KIVI's two axes. */
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/codec.h"
#include "tests/codec_setup.h"

#include <math.h>

static struct kv_codec *codec(const char *text, enum kv_side side,
                              size_t n_kv_heads, size_t head_dim)
{
    const struct kv_shape shape = {.n_layers = 1,
                                   .n_heads = n_kv_heads,
                                   .n_kv_heads = n_kv_heads,
                                   .head_dim = head_dim};

    return codec_of(text, &shape, 0, side);
}

/* 0.1 in a row whose largest magnitude is 3.2: code 4, 0.1008 back. */
static void test_absmax(void **state)
{
    struct kv_codec *c = codec("absmax:b8", KV_K, 1, 4);
    const float x[4] = {0.1f, -3.2f, 1.5f, 0};
    uint8_t bytes[4 + 2];
    float back[4];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    assert_int_equal(bytes[0] - 127, 4);
    assert_int_equal(bytes[1] - 127, -127);
    assert_within(back[0], 0.1008f, 5e-5);
    assert_within(back[3], 0, 0);
    kv_codec_free(c);
}

/* 0.1 in a row from -3.0 to 3.2: scale 41.13, zero point -5, code -1. */
static void test_zeropoint(void **state)
{
    struct kv_codec *c = codec("zeropoint:b8", KV_K, 1, 4);
    const float x[4] = {0.1f, -3.0f, 3.2f, 0};
    uint8_t bytes[4 + 6];
    float back[4];
    uint16_t step;
    int32_t zero;

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    memcpy(&step, bytes + 4, 2);
    memcpy(&zero, bytes + 6, 4);
    assert_within(1 / kv_f16_to_f32(step), 41.13f, 0.02);
    assert_int_equal(zero, -5);
    assert_int_equal(bytes[0] - 128, -1);
    assert_within(back[0], (-1 + 5) / 41.13f, 1e-4);
    kv_codec_free(c);
}

/* Keys per channel: two tokens, four channels, g 2, 2 bits.  Channel 1 goes
 * from 1 to 4 (step 1), channel 3 is flat. */
static void test_kivi_keys(void **state)
{
    struct kv_codec *c = codec("kivi:K-b2g2r0/V-b2g4r0", KV_K, 1, 4);
    const float x[8] = {0, 1, -2, 7.5f, 3, 4, 1, 7.5f};
    uint8_t bytes[2 + 4 * 4];
    float back[8];

    (void)state;
    assert_int_equal(c->block, 2);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    /* codes channel by channel: 0 3, 0 3 | 0 3, 0 0; low bits first */
    assert_int_equal(bytes[0], 0xcc);
    assert_int_equal(bytes[1], 0x0c);
    for (size_t i = 0; i < 8; i++)
        assert_within(back[i], x[i], 0);
    kv_codec_free(c);
}

/* Quantizes values per token, in groups of two channels. */
static void test_kivi_values(void **state)
{
    struct kv_codec *c = codec("kivi:b2g2r0", KV_V, 1, 4);
    const float x[4] = {0, 3, 10, 11};
    uint8_t bytes[1 + 2 * 4];
    float back[4];
    uint16_t head[4];

    (void)state;
    assert_int_equal(c->block, 1);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    memcpy(head, bytes + 1, sizeof(head));
    assert_within(kv_f16_to_f32(head[0]), 1, 0);
    assert_within(kv_f16_to_f32(head[2]), 1.0f / 3, 2e-4);
    assert_within(kv_f16_to_f32(head[3]), 10, 0);
    assert_int_equal(bytes[0], 0xcc);
    assert_within(back[1], 3, 0);
    assert_within(back[3], 11, 1e-3);
    kv_codec_free(c);
}

/* The same block with the axis of each side swapped. */
static void test_kivi_axes(void **state)
{
    const float x[8] = {0, 3, 10, 11, 3, 0, 20, 23};
    uint8_t bytes[2 + 4 * 4];
    float back[8];
    struct kv_codec *c = codec("kivi:b2g2r3,axis=token", KV_K, 1, 4);

    (void)state;
    assert_int_equal(c->block, 1);
    assert_int_equal(c->block_bytes, 1 + 2 * 4);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    assert_int_equal(bytes[0], 0xcc); /* 0 3, 0 3 */
    assert_within(half_at(bytes + 5), 1.0f / 3, 2e-4);
    assert_within(half_at(bytes + 7), 10, 0);
    kv_codec_free(c);

    c = codec("kivi:b2g2r3,K-axis=token,V-axis=channel", KV_V, 1, 4);
    assert_int_equal(c->block, 2);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    assert_int_equal(bytes[0], 0x3c); /* channel by channel: 0 3, 3 0 */
    assert_int_equal(bytes[1], 0xcc); /* rows by channel: 0 3, 3 0 */
    assert_within(half_at(bytes + 2), 1, 0);
    assert_within(half_at(bytes + 12), 10, 0);
    assert_within(back[7], 23, 1e-2);
    kv_codec_free(c);
}

/* Keys of tokens are quantized at any r; each pair of axes has one name. */
static void test_kivi_names(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {{"kivi:g4r0,K-axis=channel,V-axis=token", "axis=paper"},
                 {"kivi:g4r0,V-axis=token", "axis=paper"},
                 {"kivi:g4r0,channel", "axis=channel"},
                 {"kivi:g4r0,V-axis=channel", "axis=channel"},
                 {"kivi:g4r7,K-axis=token", "axis=token"},
                 {"kivi:g4r7,K-axis=token,V-axis=channel",
                  "K-axis=token,V-axis=channel"}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_codec *c = codec(cases[i].text, KV_K, 1, 8);

        assert_string_equal(strchr(c->spec.text, ',') + 1, cases[i].want);
        kv_codec_free(c);
    }
}

/* bf16 keeps values that fp16 cannot. */
static void test_plain(void **state)
{
    const char *const specs[] = {"f32", "f16", "bf16"};
    const float x[2] = {1e30f, 1.0009765625f}; /* 1 + 2^-10 */
    const float want[3][2] = {
        {1e30f, 1.0009765625f}, {65504, 1.0009765625f}, {1e30f, 1}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kv_codec *c = codec(specs[i], KV_V, 1, 2);
        uint8_t bytes[8];
        float back[2];

        round_trip(c, (struct kv_where){0}, x, bytes, back);
        assert_within(back[0] / want[i][0], 1, 4e-3);
        assert_within(back[1], want[i][1], 0);
        kv_codec_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absmax),    cmocka_unit_test(test_zeropoint),
        cmocka_unit_test(test_kivi_keys), cmocka_unit_test(test_kivi_values),
        cmocka_unit_test(test_kivi_axes), cmocka_unit_test(test_kivi_names),
        cmocka_unit_test(test_plain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
