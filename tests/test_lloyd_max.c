/* The Lloyd-Max quantizer of the normal distribution: the table of Max (1960),
 * and its conditions, by numerical integration. */
#include "kernels/levels/lloyd_max.h"
#include "tests/test.h"

#include <math.h>

static void test_published(void **state)
{
    static const struct {
        double mse, level[8]; /* levels > 0 */
    } want[] = {
        {0.3634, {0.7979}},
        {0.1175, {0.4528, 1.5104}},
        {0.03454, {0.2451, 0.7560, 1.3439, 2.1519}},
        {0.009497,
         {0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326}},
    };

    (void)state;
    for (unsigned bits = 1; bits <= 4; bits++) {
        const size_t n = (size_t)1 << (bits - 1);
        double level[KV_LLOYD_MAX_LEVELS], threshold[KV_LLOYD_MAX_LEVELS];
        const double mse = kv_lloyd_max(bits, level, threshold);

        /* Max's fourth digit is not always right: 0.009501, not 0.009497 */
        assert_within(mse / want[bits - 1].mse, 1, 5e-4);
        for (size_t i = 0; i < n; i++)
            assert_within(level[n + i], want[bits - 1].level[i], 6e-5);
    }
}

/* Simpson's rule for x^power times the density over [a, b]. */
static double integral(double a, double b, int power)
{
    enum { STEPS = 2000 };
    const double h = (b - a) / STEPS;
    double sum = 0;

    for (int i = 0; i <= STEPS; i++) {
        const double x = a + i * h;

        sum += (i % STEPS == 0 ? 1
                : i % 2        ? 4
                               : 2) *
               pow(x, power) * exp(-x * x / 2);
    }
    return sum * h / 3 / sqrt(2 * acos(-1.0));
}

/* Every level is the mean of its cell, every threshold midway; the error is
 * the integral of the squared distance, and falls by nearly 4 a bit. */
static void test_definition(void **state)
{
    double before = 1;

    (void)state;
    for (unsigned bits = 1; bits <= KV_LLOYD_MAX_BITS; bits++) {
        const size_t n = (size_t)1 << bits;
        double level[KV_LLOYD_MAX_LEVELS], threshold[KV_LLOYD_MAX_LEVELS];
        const double mse = kv_lloyd_max(bits, level, threshold);
        double sum = 0;

        for (size_t i = 0; i < n; i++) {
            const double a = i ? threshold[i - 1] : -10;
            const double b = i + 1 < n ? threshold[i] : 10;
            const double mass = integral(a, b, 0), mean = integral(a, b, 1);

            assert_within(level[i], mean / mass, 1e-9);
            assert_within(level[i], -level[n - 1 - i], 0);
            if (i + 1 < n)
                assert_within(threshold[i], (level[i] + level[i + 1]) / 2, 0);
            sum += integral(a, b, 2) - 2 * level[i] * mean +
                   level[i] * level[i] * mass;
        }
        assert_within(sum / mse, 1, 1e-8);
        assert_true(mse < before / 2.5 && mse > before / 4);
        before = mse;
    }
}

static void test_code(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= KV_LLOYD_MAX_BITS; bits++) {
        const size_t n = (size_t)1 << bits;
        double level[KV_LLOYD_MAX_LEVELS], exact[KV_LLOYD_MAX_LEVELS];
        float threshold[KV_LLOYD_MAX_LEVELS];

        kv_lloyd_max(bits, level, exact);
        for (size_t i = 0; i + 1 < n; i++)
            threshold[i] = (float)exact[i];
        assert_int_equal(kv_lloyd_max_code(threshold, bits, -1e30f), 0);
        assert_int_equal(kv_lloyd_max_code(threshold, bits, 1e30f), n - 1);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(
                kv_lloyd_max_code(threshold, bits, (float)level[i]), i);
        for (size_t i = 0; i + 1 < n; i++) { /* a threshold goes up */
            assert_int_equal(kv_lloyd_max_code(threshold, bits, threshold[i]),
                             i + 1);
            assert_int_equal(
                kv_lloyd_max_code(threshold, bits,
                                  nextafterf(threshold[i], -1e30f)),
                i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
