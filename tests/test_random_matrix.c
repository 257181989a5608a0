/* Random matrices: orthogonality, the moments of normal numbers, and products,
 * compared in double. */
#include "kernels/hadamard.h"
#include "kernels/random_matrix.h"
#include "lib/base/alloc.h"
#include "tests/test.h"

#include <math.h>

/* Rows [first, first + n) of s [..][d] have norm sqrt(d) and right angles. */
static void assert_orthogonal(const float *s, size_t first, size_t n, size_t d)
{
    for (size_t i = first; i < first + n; i++)
        for (size_t j = first; j <= i; j++) {
            double sum = 0;

            for (size_t k = 0; k < d; k++)
                sum += (double)s[i * d + k] * (double)s[j * d + k];
            assert_within(sum / (double)d, i == j, 1e-6);
        }
}

static void assert_moments(const float *s, size_t n)
{
    double sum = 0, square = 0, fourth = 0;

    for (size_t i = 0; i < n; i++) {
        const double x = (double)s[i];

        sum += x;
        square += x * x;
        fourth += x * x * x * x;
    }
    /* five standard deviations of independent normal numbers */
    assert_within(sum / (double)n, 0, 5 / sqrt((double)n));
    assert_within(square / (double)n, 1, 5 * sqrt(2 / (double)n));
    assert_within(fourth / (double)n, 3, 5 * sqrt(96 / (double)n) + 0.1);
}

static void test_matrices(void **state)
{
    static const size_t sizes[] = {1, 2, 3, 24, 64, 128};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const size_t d = sizes[i], m = 2 * d + d / 2;
        float *s = kv_alloc(m, d * sizeof(*s));

        kv_random_orthogonal(i, m, d, s);
        assert_orthogonal(s, 0, d, d);
        assert_orthogonal(s, d, d, d);
        assert_orthogonal(s, 2 * d, m - 2 * d, d);
        if (d >= 64)
            assert_moments(s, m * d);
        kv_random_gaussian(i, m, d, s);
        if (d >= 24)
            assert_moments(s, m * d);
        kv_random_hadamard(i, d, s);
        assert_orthogonal(s, 0, d, d);
        free(s);
    }
}

/* The randomized Hadamard transform is signs, then kv_hadamard(). */
static void test_hadamard(void **state)
{
    enum { D = 24 };
    float s[D * D], back[D * D];
    size_t negative = 0;

    (void)state;
    kv_random_hadamard(3, D, s);
    kv_transpose(s, D, D, back);
    kv_hadamard(back, D, D); /* row i: sqrt(D) times a signed unit */
    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < D; j++) {
            assert_within(fabsf(back[i * D + j]), i == j ? sqrt(D) : 0, 1e-5);
            negative += i == j && back[i * D + j] < 0;
        }
    assert_in_range(negative, 4, 20);
}

static void test_products(void **state)
{
    enum { M = 37, D = 24 };
    float s[M * D], t[D * M], x[M], y[D], out[M + 1];

    (void)state;
    kv_random_gaussian(1, M, D, s);
    kv_random_gaussian(2, 1, M, x);
    kv_random_gaussian(3, 1, D, y);
    kv_transpose(s, M, D, t);
    out[M] = 42;
    kv_combine_rows(y, t, D, M, out); /* S y */
    assert_true(out[M] == 42);
    for (size_t i = 0; i < M; i++) {
        double sum = 0;

        for (size_t j = 0; j < D; j++)
            sum += (double)s[i * D + j] * (double)y[j];
        assert_within(out[i], sum, 1e-5);
    }
    out[D] = 42;
    kv_combine_rows(x, s, M, D, out); /* x S */
    assert_true(out[D] == 42);
    for (size_t j = 0; j < D; j++) {
        double sum = 0;

        for (size_t i = 0; i < M; i++)
            sum += (double)s[i * D + j] * (double)x[i];
        assert_within(out[j], sum, 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
