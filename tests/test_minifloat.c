/* The small floats against their formula, code by code and midpoint by
 * midpoint. */
#include "kernels/scaled/minifloat.h"
#include "lib/base/half.h"
#include "tests/test.h"

#include <math.h>

/* OFP8 table 1, OCP MX v1.0 table 1 and section 5.3: the largest code, the
 * largest value, and the unit of a denormal's mantissa. */
static const struct format {
    const struct kv_minifloat *f;
    unsigned e, m, bias, top;
    double max, min;
} formats[] = {
    {&kv_e5m2, 5, 2, 15, 0x7b, 57344, 0x1p-16},
    {&kv_e4m3, 4, 3, 7, 0x7e, 448, 0x1p-9},
    {&kv_e3m2, 3, 2, 3, 0x1f, 28, 0.0625},
    {&kv_e2m3, 2, 3, 1, 0x1f, 7.5, 0.125},
    {&kv_e2m1, 2, 1, 1, 0x07, 6, 0.5},
};
enum { FORMATS = sizeof(formats) / sizeof(*formats) };

/* (-1)^s 2^(E - bias) (1 + M / 2^m), or 2^(1 - bias) M / 2^m if E is 0. */
static double value(const struct format *t, unsigned code)
{
    const int mantissa = (int)(code & ((1u << t->m) - 1));
    const int exponent = (int)(code >> t->m & ((1u << t->e) - 1));
    const double sign = code >> (t->e + t->m) & 1 ? -1 : 1;

    if (!exponent)
        return sign * ldexp(mantissa, 1 - (int)t->bias - (int)t->m);
    return sign *
           ldexp((1 << t->m) + mantissa, exponent - (int)t->bias - (int)t->m);
}

static unsigned encode(const struct format *t, float x, float scale)
{
    uint16_t code[2] = {0xa5a5, 0xa5a5};

    kv_minifloat_encode(t->f, &x, 1, scale, code);
    assert_int_equal(code[1], 0xa5a5);
    return code[0];
}

static float decode(const struct format *t, unsigned code, float scale)
{
    const uint16_t one = (uint16_t)code;
    float x[2] = {NAN, 17};

    kv_minifloat_decode(t->f, &one, 1, scale, x);
    assert_true(x[1] == 17);
    return x[0];
}

static void test_codes(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMATS; i++) {
        const struct format *t = &formats[i];
        const unsigned sign = 1u << (t->e + t->m);

        assert_within(t->f->max, t->max, 0);
        assert_within(value(t, t->top), t->max, 0);
        assert_within(value(t, 1), t->min, 0);
        for (unsigned code = 0; code < 2 * sign; code++) {
            const float x = decode(t, code, 1);

            assert_within(x, value(t, code), 0);
            assert_int_equal(!!signbit(x), code >= sign);
            assert_within(decode(t, code, 0.3f), 0.3f * x, 0);
            if ((code & (sign - 1)) <= t->top) {
                assert_int_equal(encode(t, x, 1), code);
                assert_int_equal(encode(t, x * 0x1p-30f, 0x1p-30f), code);
            }
        }
    }
}

/* Halfway between two codes the even one, a hair off it the nearer one. */
static void test_midpoints(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMATS; i++) {
        const struct format *t = &formats[i];
        const unsigned sign = 1u << (t->e + t->m);

        for (unsigned code = 0; code < t->top; code++) {
            const float mid =
                (float)((value(t, code) + value(t, code + 1)) / 2);
            const unsigned even = code + (code & 1);

            assert_int_equal(encode(t, mid, 1), even);
            assert_int_equal(encode(t, -mid, 1), sign + even);
            assert_int_equal(encode(t, nextafterf(mid, 0), 1), code);
            assert_int_equal(encode(t, nextafterf(mid, INFINITY), 1), code + 1);
        }
    }
}

static void test_saturation(void **state)
{
    const float beyond[] = {1.0001f, 1.0625f, 2, 1e6f, 1e30f};

    (void)state;
    for (size_t i = 0; i < FORMATS; i++) {
        const struct format *t = &formats[i];
        const unsigned sign = 1u << (t->e + t->m);

        for (size_t j = 0; j < 5; j++) {
            const float x = t->f->max * beyond[j];

            assert_int_equal(encode(t, x, 1), t->top);
            assert_int_equal(encode(t, -x, 1), sign + t->top);
        }
        assert_int_equal(encode(t, 0x1p-149f, 1), 0);
        assert_int_equal(encode(t, -0x1p-149f, 1), sign);
        assert_int_equal(encode(t, 3, 0), 0);
        assert_within(decode(t, t->top, 0), 0, 0);
    }
}

/* Every half rounds to its nearest value. */
static void test_nearest(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMATS; i++) {
        const struct format *t = &formats[i];

        for (unsigned h = 0; h < 0x7c00; h++) {
            const float x = kv_f16_to_f32((uint16_t)h);
            const unsigned code = encode(t, x, 1);
            const double off = fabs(value(t, code) - (double)x);

            assert_true(code <= t->top);
            if (code < t->top)
                assert_true(off <= fabs(value(t, code + 1) - (double)x));
            if (code > 0)
                assert_true(off <= fabs(value(t, code - 1) - (double)x));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_midpoints),
        cmocka_unit_test(test_saturation),
        cmocka_unit_test(test_nearest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
