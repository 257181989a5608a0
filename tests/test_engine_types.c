/* Cache types of serving engines: heads worked by hand from their kernels. */
#include "kernels/hadamard.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>

enum { DIM = 32 };

static struct kv_shape shape_of(size_t head_dim)
{
    return (struct kv_shape){
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = head_dim};
}

/* A head x [DIM] in n_bytes bytes, and back. */
static void stored_in(const char *text, const float *x, size_t n_bytes,
                      uint8_t *bytes, float *back)
{
    const struct kv_shape shape = shape_of(DIM);
    struct kv_codec *c = codec_of(text, &shape, 0, KV_K);

    if (c->block_bytes != n_bytes)
        fail_msg("%s: %zu bytes, expected %zu", text, c->block_bytes, n_bytes);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    kv_codec_free(c);
}

static float float_at(const uint8_t *bytes)
{
    float x;

    memcpy(&x, bytes, sizeof(x));
    return x;
}

/* int8 rounds halves away from 0; fp8 rounds to even. */
static void test_eight_bits(void **state)
{
    const float x[DIM] = {127, -1.9f, 1.9f, 0.5f, -127};
    float back[DIM];
    uint8_t bytes[DIM + 8];

    (void)state;
    stored_in("int8_per_token_head", x, DIM + 4, bytes, back);
    assert_within(float_at(bytes + DIM), 1, 0);
    assert_within(back[0], 127, 0);
    assert_within(back[1], -2, 0);
    assert_within(back[2], 2, 0);
    assert_within(back[3], 1, 0);
    assert_within(back[4], -127, 0);
    stored_in("fp8_per_token_head", x, DIM + 4, bytes, back);
    assert_within(float_at(bytes + DIM), 127.0 / 448, 1e-7);
    assert_within(back[0], 127, 1e-4);
    assert_within(back[1], -6.5 * 127 / 448, 1e-4); /* -6.70 */
    stored_in("q8_kv", x, DIM + 8, bytes, back);
    assert_within(float_at(bytes + DIM), 1, 0);
    assert_int_equal(bytes[DIM + 4], 0); /* 127 - 2 + 2 + 0 - 127 */
    assert_within(back[1], -2, 0);
    assert_within(back[3], 0, 0); /* half to even */
}

/* Rotated by hand; the zero in the scale's mantissa. */
static void test_int4(void **state)
{
    float x[DIM], back[DIM], turned[DIM], min = 0, max = 0;
    uint8_t bytes[DIM / 2 + 4];
    uint32_t word;

    (void)state;
    for (size_t i = 0; i < DIM; i++)
        x[i] = sinf((float)i) + 0.25f;
    stored_in("int4_per_token_head", x, sizeof(bytes), bytes, back);
    memcpy(&word, bytes + DIM / 2, sizeof(word));
    for (size_t i = 0; i < DIM; i++) {
        const uint8_t code = bytes[i / 2] >> 4 * (i % 2) & 15;

        turned[i] = ((float)code - (float)(word & 15)) *
                    kv_bits_f32(word & ~(uint32_t)15);
        min = fminf(min, turned[i]);
        max = fmaxf(max, turned[i]);
    }
    assert_within((double)kv_bits_f32(word & ~(uint32_t)15) * 15, max - min,
                  1e-5);
    kv_hadamard(turned, 1, DIM);
    for (size_t i = 0; i < DIM; i++) { /* equal except for signs */
        assert_within(fabsf(turned[i]), fabsf(back[i]), 1e-6);
        assert_within(back[i], x[i], 0.25);
    }
}

static void test_int2(void **state)
{
    float x[DIM], back[DIM], squares = 0;
    uint8_t bytes[DIM / 4 + 4];

    (void)state;
    for (size_t i = 0; i < DIM; i++) { /* rotated: 1.2, 0.3, -0.3, -1.2 */
        static const float of[] = {1.2f, 0.3f, -0.3f, -1.2f};

        x[i] = of[i % 4];
        squares += x[i] * x[i];
    }
    kv_hadamard(x, 1, DIM);
    stored_in("int2_per_token_head", x, sizeof(bytes), bytes, back);
    assert_within(float_at(bytes + DIM / 4), sqrtf(squares / DIM), 1e-6);
    for (size_t i = 0; i < DIM / 4; i++)
        assert_int_equal(bytes[i], 3 | 2 << 2 | 1 << 4);
    kv_hadamard(back, 1, DIM);
    assert_within(back[0], 1.5104 * sqrt((double)squares / DIM), 1e-5);
    assert_within(back[2], -0.4528 * sqrt((double)squares / DIM), 1e-5);
}

/* A power of two for which 6 is not exceeded; ties go away from 0. */
static void test_fp4_e2m1(void **state)
{
    const float x[DIM] = {7, 0.5f, -5, 1.5f, -0.49f, 2.5f};
    float back[DIM];
    uint8_t bytes[DIM / 2 + 2];

    (void)state;
    stored_in("fp4_e2m1", x, sizeof(bytes), bytes, back);
    assert_int_equal(bytes[DIM / 2], 128);   /* 2 */
    assert_int_equal(bytes[0], 6 | 1 << 4);  /* 3.5 -> 4, 0.25 -> 0.5 */
    assert_int_equal(bytes[1], 13 | 2 << 4); /* -2.5 -> -3, 0.75 -> 1 */
    assert_int_equal(bytes[2], 8 | 3 << 4);  /* -0.245 -> -0, 1.25 -> 1.5 */
    assert_within(back[0], 8, 0);
    assert_within(back[2], -6, 0);
    stored_in("fp4_e2m1", (float[DIM]){6}, sizeof(bytes), bytes, back);
    assert_int_equal(bytes[DIM / 2], 127);
    assert_within(back[0], 6, 0);
}

static void test_exl3(void **state)
{
    float x[DIM] = {0}, back[DIM];
    uint8_t bytes[DIM / 2 + 2];

    (void)state;
    for (size_t i = 0; i < DIM; i++)
        x[i] = i % 2 ? -2 : (float)(i % 4) - 1; /* -1 1 -2 and -2 */
    kv_hadamard(x, 1, DIM);
    stored_in("exl3:b2", x, DIM / 4 + 2, bytes, back);
    assert_within(half_at(bytes + DIM / 4), 2, 0);
    kv_hadamard(back, 1, DIM);
    assert_within(back[0], -0.5, 1e-6); /* the middle of [-1, 0) */
    assert_within(back[1], -1.5, 1e-6);
    assert_within(back[2], 1.5, 1e-6);
}

static void test_q6_0(void **state)
{
    const float x[DIM] = {-64, 63, 2, 0.99f, -1};
    float back[DIM];
    uint8_t bytes[DIM * 6 / 8 + 2];

    (void)state;
    stored_in("q6_0", x, sizeof(bytes), bytes, back);
    assert_within(half_at(bytes + DIM * 6 / 8), 2, 0); /* -64 / -32 */
    assert_within(back[0], -64, 0);
    assert_within(back[1], 62, 0); /* 31.5 + 32.5 is 64: at most 63 */
    assert_within(back[2], 2, 0);
    assert_within(back[3], 0, 0);
    assert_within(back[4], 0, 0);
}

/* The squared error of a dump's values under a type. */
static double error_of(const char *text, float *scale)
{
    enum { N = 640 };
    const struct kv_shape shape = synthetic_shape(DIM);
    const struct kv_spec s = spec_of(text, &shape);
    struct kv_calib *calib = synthetic_calib(&shape, &s, test_folder());
    struct kv_codec *c = codec_from(&s, &shape, 1, KV_V, calib);
    static float x[N * 2 * DIM], back[N * 2 * DIM];
    static uint8_t bytes[N * 2 * DIM];
    struct kv_dump *dump;
    struct kv_err e = {""};
    double sum = 0;
    char *path;

    synthetic_dump(&shape, 4, N / 4, test_folder(), &path);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    assert_int_equal(kv_dump_read(dump, 1, KV_T_V, 0, N, x, &e), 0);
    *scale = kv_calib_table(calib->set, "scale", KV_V, 1, 0)->data[0];
    c->scheme->encode(c, (struct kv_where){0}, x, N, bytes);
    c->scheme->decode(c, bytes, N, back);
    for (size_t i = 0; i < N * 2 * DIM; i++)
        sum += pow((double)x[i] - (double)back[i], 2);
    kv_dump_close(dump);
    free(path);
    kv_codec_free(c);
    kv_calib_free(calib);
    return sum;
}

/* Channels have means far from 0; the better of two scales is taken; S
 * determines the largest value. */
static void test_modelopt(void **state)
{
    float one, two;
    const double plain = error_of("modelopt:nvfp4", &one);
    const double best = error_of("modelopt:nvfp4_4over6", &two);
    const double eight = error_of("modelopt:fp8", &two);

    (void)state;
    assert_within(two * 448, one * 448 * 6, 1e-3 * (double)one * 448 * 6);
    assert_true(best < plain);
    assert_true(eight < plain / 5);
    assert_true(error_of("modelopt:nvfp4_affine", &two) < plain / 1.5);
    assert_true(two < one);
}

static void test_bits(void **state)
{
    static const struct {
        const char *spec;
        double bits;
    } cases[] = {
        {"int8_per_token_head", 8.25},
        {"fp8_per_token_head", 8.25},
        {"int4_per_token_head", 4.25},
        {"int2_per_token_head", 2.25},
        {"fp4_e2m1", 4.5},
        {"exl3:b3", 3.5},
        {"q6_0", 6.5},
        {"q8_kv", 8.5},
    };
    const struct kv_shape shape = shape_of(128), odd = shape_of(80);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_codec *c = codec_of(cases[i].spec, &shape, 0, KV_V);

        assert_within(c->block_bytes * 8 / 128.0, cases[i].bits, 0);
        assert_within(c->scheme->nominal(&c->spec, KV_V, &shape), cases[i].bits,
                      0);
        kv_codec_free(c);
    }
    assert_int_equal(kv_spec_parse(&s, "int4_per_token_head", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &odd, &e), -1);
    assert_says(e, "head_dim 80: expected a power of two");
    assert_int_equal(kv_spec_parse(&s, "exl3", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &odd, &e), -1);
    assert_says(e, "must divide head_dim 80");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eight_bits), cmocka_unit_test(test_int4),
        cmocka_unit_test(test_int2),       cmocka_unit_test(test_fp4_e2m1),
        cmocka_unit_test(test_exl3),       cmocka_unit_test(test_q6_0),
        cmocka_unit_test(test_modelopt),   cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
