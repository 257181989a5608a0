/* The Gaussian rate-distortion bound: cases by hand. */
#include "eval/rd_bound.h"
#include "tests/test.h"

#include <float.h>
#include <math.h>

static void check(const double *variance, size_t n, double bits, double want)
{
    assert_within(kv_rd_bound(variance, n, bits), want, 1e-12 * want);
}

/* n v 2^(-2 bits / n) */
static void test_equal_variances(void **state)
{
    double v[7];

    (void)state;
    for (size_t n = 1; n <= 7; n++)
        for (double bits = 0; bits < 40; bits += 1.75) {
            v[n - 1] = 3;
            check(v, n, bits, (double)n * 3 * exp2(-2 * bits / (double)n));
        }
}

/* The largest takes bits alone until it is down to the next. */
static void test_water_rises(void **state)
{
    const double v[] = {1, 64, 0.25, 16};

    (void)state;
    check(v, 4, 0, 81.25);
    check(v, 4, 0.5, 32 + 17.25);
    check(v, 4, 1, 16 + 17.25);
    check(v, 4, 3, 4 + 4 + 1.25); /* two at theta = 4 */
    check(v, 4, 5, 1 + 1 + 1.25); /* two, on the third's edge */
    check(v, 4, 8, 3 * 0.25 + 0.25);
    check(v, 4, 12, 4 * 0.0625);
}

static void test_dominating(void **state)
{
    const double v[] = {1e-3, 1e12, 1e-3};

    (void)state;
    check(v, 3, 10, 1e12 / 1048576 + 2e-3);
}

static void test_zeros(void **state)
{
    const double none[] = {0, 0, 0}, one[] = {0, 4, 0};

    (void)state;
    assert_true(kv_rd_bound(none, 3, 0) == 0);
    assert_true(kv_rd_bound(none, 3, 5) == 0);
    assert_true(kv_rd_bound(NULL, 0, 5) == 0);
    check(one, 3, 0, 4);
    check(one, 3, 2, 0.25);
    check(one, 3, 500, 4 * exp2(-1000));
    assert_true(kv_rd_bound(one, 3, 530) <= 4 * exp2(-1060) * (1 + 1e-3));
    assert_true(kv_rd_bound(one, 3, 1e6) <= DBL_TRUE_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_variances),
        cmocka_unit_test(test_water_rises),
        cmocka_unit_test(test_dominating),
        cmocka_unit_test(test_zeros),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
