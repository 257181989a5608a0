/* Small floats with their scales, and NormalFloat: groups worked by hand. */
#include "lib/base/half.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"

#include <math.h>

static struct kv_shape shape_of(size_t head_dim)
{
    return (struct kv_shape){
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = head_dim};
}

static struct kv_codec *codec(const char *text, size_t head_dim)
{
    const struct kv_shape shape = shape_of(head_dim);

    return codec_of(text, &shape, 0, KV_K);
}

enum { MAX = 128 };

/* One token x [head_dim] stored as n_bytes bytes, and back. */
static void stored_in(const char *text, size_t head_dim, const float *x,
                      size_t n_bytes, uint8_t *bytes, float *back)
{
    struct kv_codec *c = codec(text, head_dim);

    assert_int_equal(c->block, 1);
    if (c->block_bytes != n_bytes)
        fail_msg("%s: %zu bytes, expected %zu", text, c->block_bytes, n_bytes);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    kv_codec_free(c);
}

/* Cast unscaled: 1 code a byte, nothing else; saturated. */
static void test_cast(void **state)
{
    const float x[4] = {1, -0.3f, 1000, 0x1p-10f};
    uint8_t bytes[4];
    float back[4];

    (void)state;
    stored_in("fp8,none", 4, x, 4, bytes, back);
    assert_int_equal(bytes[0], 0x38); /* 1 */
    assert_int_equal(bytes[1], 0xaa); /* -1.25 x 2^-2 = -0.3125 */
    assert_int_equal(bytes[2], 0x7e); /* 448 */
    assert_int_equal(bytes[3], 0);    /* half of 2^-9: even */
    assert_within(back[1], -0.3125, 0);
    assert_within(back[2], 448, 0);
    stored_in("fp8:e5m2,none", 4, x, 4, bytes, back);
    assert_int_equal(bytes[0], 0x3c);
    assert_int_equal(bytes[1], 0xb5); /* -1.25 x 2^-2 */
    assert_int_equal(bytes[2], 0x64); /* 1000 -> 1024 */
    assert_int_equal(bytes[3], 0x14); /* 2^-10, normal here */
}

/* An f16 scale a block, codes chosen with the stored scale. */
static void test_scaled(void **state)
{
    const float x[4] = {0.1f, -0.25f, 12, 5};
    uint8_t bytes[2 + 4];
    float back[4];
    uint16_t half[2];

    (void)state;
    stored_in("fp4:g2", 4, x, 2 + 4, bytes, back);
    memcpy(half, bytes + 2, 4);
    assert_int_equal(half[0], kv_f32_to_f16(0.25f)); /* scale 0.25 / 6 */
    assert_int_equal(half[1], kv_f32_to_f16(12));    /* 2 */
    /* 2.4 -> 2 (code 4), -6 (15) | 6 (7), 2.5 -> 2, half to even (4) */
    assert_int_equal(bytes[0], 0xf4);
    assert_int_equal(bytes[1], 0x47);
    assert_within(back[0], 0.25 / 3, 1e-8);
    assert_within(back[1], -0.25, 1e-8);
    assert_within(back[3], 4, 0);
    stored_in("fp4,token", 4, x, 2 + 2, bytes, back);
    memcpy(half, bytes + 2, 2);
    assert_int_equal(half[0], kv_f32_to_f16(12));
    assert_within(back[0], 0, 0);
    stored_in("fp6", 4, x, 3 + 2, bytes, back);
    stored_in("fp6:e3m2,token", 4, x, 3 + 2, bytes, back);
}

/* Flat groups decode to fp16's precision if the scale is an f16. */
static void test_flat(void **state)
{
    const char *const specs[] = {"fp8",      "fp8:e5m2",  "fp6",
                                 "fp6:e3m2", "fp8,token", "fp4",
                                 "nf4",      "nf3",       "nf2"};
    const float levels[] = {0, 1, -3.25f, 65504, -65504, 0x1p-24f, 0x1p-20f};

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++)
        for (size_t j = 0; j < sizeof(levels) / sizeof(*levels); j++) {
            struct kv_codec *c = codec(specs[i], 32);
            float x[32], back[32];
            uint8_t bytes[64];

            for (size_t h = 0; h < 32; h++)
                x[h] = levels[j];
            c->scheme->encode(c, (struct kv_where){.first = 0}, x, 1, bytes);
            c->scheme->decode(c, bytes, 1, back);
            for (size_t h = 0; h < 32; h++)
                assert_within(back[h], levels[j],
                              fabsf(levels[j]) * 0x1p-10f + 0x1p-24f);
            kv_codec_free(c);
        }
}

/* OCP MX v1.0, section 6.3: the largest magnitude, 5.5, has exponent 2. */
static void test_mx(void **state)
{
    const struct {
        const char *spec;
        size_t code_bytes;
        uint8_t power;
        float want[6]; /* input: 5.5, -0.9, 0.3, 0.05, 7.9 / 4, -3 */
    } cases[] = {
        /* 2^(2 - 2) = 1: e2m1 unscaled, 5.5 -> 6, 0.3 -> 0.5 */
        {"mxfp4", 16, 127, {6, -1, 0.5f, 0, 2, -3}},
        {"mxfp6", 24, 127, {5.5f, -0.875f, 0.25f, 0, 2, -3}},
        /* 2^(2 - 4): e3m2 of four times x: 22 -> 24 is the even one of 20, 24
         */
        {"mxfp6:e3m2", 24, 125, {6, -0.875f, 0.3125f, 0.046875f, 2, -3}},
        /* 2^(2 - 8): e4m3 of 64 x: 352, -57.6 -> -56 .. */
        {"mxfp8", 32, 121, {5.5f, -0.875f, 0.3125f, 0.05078125f, 2, -3}},
        {"mxfp8:e5m2", 32, 114, {6, -0.875f, 0.3125f, 0.046875f, 2, -3}},
    };
    float x[32] = {5.5f, -0.9f, 0.3f, 0.05f, 7.9f / 4, -3}, back[32];
    uint8_t bytes[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const size_t n = cases[i].code_bytes;

        stored_in(cases[i].spec, 32, x, n + 1, bytes, back);
        assert_int_equal(bytes[n], cases[i].power);
        for (size_t j = 0; j < 6; j++)
            if (back[j] != cases[i].want[j])
                fail_msg("%s: %g became %g, expected %g", cases[i].spec,
                         (double)x[j], (double)back[j],
                         (double)cases[i].want[j]);
        for (size_t j = 6; j < 32; j++)
            assert_within(back[j], 0, 0);
    }
}

/* The shared exponent takes no notice of the mantissa: 7.9 saturates at 6. */
static void test_mx_ends(void **state)
{
    float x[32] = {7.9f, 7}, back[32];
    uint8_t bytes[64];

    (void)state;
    stored_in("mxfp4", 32, x, 17, bytes, back);
    assert_int_equal(bytes[16], 127);
    assert_within(back[0], 6, 0);
    assert_within(back[1], 6, 0);
    x[0] = 65504;
    x[1] = -65504;
    stored_in("mxfp4", 32, x, 17, bytes, back);
    assert_int_equal(bytes[16], 127 + 15 - 2);
    assert_within(back[1], -6 * 8192.0, 0);
    x[0] = x[1] = 0x1p-24f;
    stored_in("mxfp8", 32, x, 33, bytes, back);
    assert_int_equal(bytes[32], 127 - 24 - 8);
    assert_within(back[0], 0x1p-24, 0);
    memset(x, 0, sizeof(x));
    stored_in("mxfp8:e5m2", 32, x, 33, bytes, back);
    for (size_t i = 0; i < 33; i++)
        assert_int_equal(bytes[i], 0);
    /* two blocks, two scales; a head of 16 is one block */
    float two[64] = {[0] = 1, [63] = 64}, out[64];

    stored_in("mxfp4", 64, two, 34, bytes, out);
    assert_int_equal(bytes[32], 125);
    assert_int_equal(bytes[33], 131);
    stored_in("mxfp4", 16, two, 9, bytes, out);
}

/* NVFP4: scale max / 6 as e4m3. */
static void test_nvfp4(void **state)
{
    float x[32] = {3, -1, 0.3f, [16] = 1e-4f, [31] = -2.5e-3f}, back[32];
    uint8_t bytes[18];

    (void)state;
    stored_in("nvfp4", 32, x, 18, bytes, back);
    assert_int_equal(bytes[16], 0x30); /* 0.5 */
    assert_within(back[0], 3, 0);
    assert_within(back[1], -1, 0);
    assert_within(back[2], 0.25, 0); /* 0.6 -> 0.5 */
    assert_int_equal(bytes[17], 1);  /* not 0 */
    assert_within(back[31], -1.5 * 0x1p-9, 0);
    assert_within(back[16], 0, 0);
    memset(x, 0, sizeof(x));
    stored_in("nvfp4", 32, x, 18, bytes, back);
    for (size_t i = 0; i < 18; i++)
        assert_int_equal(bytes[i], 0);
    x[0] = 65504; /* beyond 448 x 6 */
    stored_in("nvfp4", 32, x, 18, bytes, back);
    assert_int_equal(bytes[16], 0x7e);
    assert_within(back[0], 2688, 0);
}

/* The normal distribution's quantile, by bisection. */
static double quantile(double p)
{
    double low = -10, high = 10;

    for (size_t i = 0; i < 100; i++) {
        const double mid = (low + high) / 2;

        if (0.5 * erfc(-mid / sqrt(2)) < p)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* QLoRA's levels of b bits: 2^(b-1) quantiles down from its offset to 1/2 on
 * one side, one less on the other, over the largest. */
static double nf_level(unsigned bits, size_t i)
{
    const double offset = 0.5 * (1 - 1.0 / 30 + 1 - 1.0 / 32);
    const size_t half = (size_t)1 << (bits - 1), zero = half - 1;
    const double step = (offset - 0.5) / (double)(i < zero ? zero : half);
    const double at = (double)(i < zero ? zero - i : i - zero);

    return (i < zero ? -1 : 1) * quantile(0.5 + at * step) / quantile(offset);
}

static void test_nf(void **state)
{
    static const char *const names[] = {[2] = "nf2", [3] = "nf3", [4] = "nf4"};
    float x[MAX], back[MAX];
    uint8_t bytes[64 + 4];

    (void)state;
    for (unsigned b = 2; b <= 4; b++) {
        const size_t n = (size_t)1 << b;

        for (size_t i = 0; i < MAX; i++)
            x[i] = (i < 64 ? 1 : 4) * (float)nf_level(b, i % n);
        stored_in(names[b], MAX, x, MAX * b / 8 + 4, bytes, back);
        for (size_t i = 0; i < MAX; i++) {
            if (b != 3)
                assert_int_equal(bytes[i * b / 8] >> (i * b % 8) & (n - 1),
                                 i % n);
            assert_within(back[i], x[i], 4 * 2e-6);
        }
    }
    /* on both sides of the middle of levels 8 and 9 */
    x[0] = 0.1202f;
    x[1] = 0.1203f;
    stored_in("nf4", MAX, x, 64 + 4, bytes, back);
    assert_int_equal(bytes[0], 0x98);
    memset(x, 0, sizeof(x));
    stored_in("nf4", MAX, x, 64 + 4, bytes, back);
    assert_int_equal(bytes[0], 0x77);
    assert_within(back[5], 0, 0);
}

static void test_specs(void **state)
{
    const struct kv_shape shape = shape_of(64), odd = shape_of(80);
    const struct {
        const char *spec, *text;
        double bits;
    } good[] = {
        {"fp8", "fp8:e4m3g32r0s0,scale=block", 8.5},
        {"fp8:e5m2g16", "fp8:e5m2g16r0s0,scale=block", 9},
        {"fp8,token", "fp8:e4m3g64r0s0,scale=token", 8.25},
        {"fp8,none", "fp8:e4m3g64r0s0,scale=none", 8},
        {"fp6:e3m2", "fp6:e3m2g32r0s0,scale=block", 6.5},
        {"fp4:e2m1g128", "fp4:e2m1g64r0s0,scale=block", 4.25},
        {"mxfp8", "mxfp8:e4m3r0s0", 8.25},
        {"mxfp6:e3m2", "mxfp6:e3m2r0s0", 6.25},
        {"mxfp4", "mxfp4:e2m1r0s0", 4.25},
        {"nvfp4", "nvfp4:e2m1r0s0", 4.5},
        {"nf4", "nf4:g64r0s0,heads=one", 4.25},
        {"nf3:g0", "nf3:g64r0s0,heads=one", 3.25},
        {"nf2:g16,all", "nf2:g16r0s0,heads=all", 3},
    };
    const struct {
        const char *spec, *says;
    } bad[] = {
        {"fp8:e5", "not e5m3: write both letters, as in e5m2"},
        {"fp6:K-e2m3g16/V-e2m2g16", "fp6 is e2m3 or e3m2, not e2m2"},
        {"fp8", "g=32 must divide head_dim 80"},
        {"mxfp8", "blocks of 32 channels, which must divide head_dim 80"},
        {"mxfp8:e4m2", "blocks of 32"},
        {"nf4", "g=64 must divide the row of 80 channels"},
    };
    struct kv_spec s;
    struct kv_err e;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct kv_codec *c = codec(good[i].spec, 64);

        assert_string_equal(c->spec.text, good[i].text);
        assert_within(c->scheme->nominal(&c->spec, KV_K, &shape), good[i].bits,
                      0);
        assert_within(8 * (double)c->block_bytes / 64, good[i].bits, 0);
        kv_codec_free(c);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(kv_spec_parse(&s, bad[i].spec, &e), 0);
        assert_int_equal(kv_spec_fit(&s, &odd, &e), -1);
        assert_says(e, bad[i].says);
    }
    assert_int_equal(kv_spec_parse(&s, "fp8:e6m1", &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cast),    cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_flat),    cmocka_unit_test(test_mx),
        cmocka_unit_test(test_mx_ends), cmocka_unit_test(test_nvfp4),
        cmocka_unit_test(test_nf),      cmocka_unit_test(test_specs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
