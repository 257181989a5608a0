/* eval/inspect.h: moments of channels, use of codebooks. */
#include "eval/inspect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

static void channel_of_known_values(void **state)
{
    struct kv_channel c = {0};
    const float x[] = {1, 2, 3, 4, -10};

    (void)state;
    for (size_t i = 0; i < 5; i++)
        kv_channel_add(&c, x[i]);
    assert_true(c.max == 10);
    assert_true(kv_channel_mean(&c) == 0);
    assert_true(fabs(kv_channel_std(&c) - sqrt(26)) < 1e-12);
    /* (1 + 8 + 27 + 64 - 1000) / 5 over 26^1.5 */
    assert_true(fabs(kv_channel_skewness(&c) + 180 / pow(26, 1.5)) < 1e-12);
    /* (1 + 16 + 81 + 256 + 10000) / 5 over 26^2 */
    assert_true(fabs(kv_channel_kurtosis(&c) - 10354.0 / 5 / 676) < 1e-12);
}

static void kurtosis_of_signs_and_of_a_shift(void **state)
{
    struct kv_channel signs = {0}, shifted = {0}, flat = {0};

    (void)state;
    for (int i = 0; i < 100; i++) {
        kv_channel_add(&signs, i % 2 ? 1 : -1);
        kv_channel_add(&shifted, (i % 2 ? 1.0f : -1.0f) + 64);
        kv_channel_add(&flat, 0.1f);
    }
    assert_true(kv_channel_kurtosis(&signs) == 1);
    assert_true(fabs(kv_channel_kurtosis(&shifted) - 1) < 1e-6);
    assert_true(kv_channel_skewness(&signs) == 0);
    assert_true(fabs(kv_channel_skewness(&shifted)) < 1e-6);
    assert_true(isnan(kv_channel_skewness(&flat)));
    assert_true(isnan(kv_channel_kurtosis(&flat)));
    assert_true(kv_channel_std(&flat) < 1e-6);
}

static void use_of_codebooks(void **state)
{
    uint64_t even[] = {5, 5, 5, 5}, one[] = {0, 7, 0, 0}, none[4] = {0};
    const struct kv_book_use b[] = {{even, 4}, {one, 4}, {none, 4}};

    (void)state;
    assert_true(kv_book_used(&b[0]) == 1);
    assert_true(fabs(kv_book_perplexity(&b[0]) - 4) < 1e-12);
    assert_true(kv_book_used(&b[1]) == 0.25);
    assert_true(kv_book_perplexity(&b[1]) == 1);
    assert_true(isnan(kv_book_used(&b[2])));
    assert_true(isnan(kv_book_perplexity(&b[2])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(channel_of_known_values),
        cmocka_unit_test(kurtosis_of_signs_and_of_a_shift),
        cmocka_unit_test(use_of_codebooks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
