/* k-means on a line against every way to cut the points. */
#include "kernels/levels/kmeans1d.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>

enum { MAX = 12 };

static double cost_of(const double *x, const double *w, size_t n)
{
    double sum = 0, weight = 0, cost = 0;

    for (size_t i = 0; i < n; i++) {
        sum += w[i] * x[i];
        weight += w[i];
    }
    for (size_t i = 0; i < n && weight > 0; i++)
        cost += w[i] * pow(x[i] - sum / weight, 2);
    return cost;
}

/* The least cost of n points in at most k runs. */
static double by_force(const double *x, const double *w, size_t n, size_t k)
{
    double min = cost_of(x, w, n);

    for (size_t last = 1; k > 1 && last < n; last++) {
        const double cost =
            by_force(x, w, last, k - 1) + cost_of(x + last, w + last, n - last);

        min = cost < min ? cost : min;
    }
    return min;
}

/* The cost of these centers when every point goes to the nearest. */
static double cost_with(const double *x, const double *w, size_t n,
                        const double *centers, size_t k)
{
    double cost = 0;

    for (size_t i = 0; i < n; i++) {
        double min = INFINITY;

        for (size_t c = 0; c < k; c++)
            min = fmin(min, pow(x[i] - centers[c], 2));
        cost += w[i] * min;
    }
    return cost;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void test_brute_force(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        const size_t n = 1 + kv_random(seed, 0) % MAX;
        const size_t k = 1 + kv_random(seed, 1) % 6;
        double x[MAX], w[MAX], centers[6], cost;
        struct kv_err e = {""};

        for (size_t i = 0; i < n; i++) {
            x[i] = 3 + kv_random_normal(seed, 10 + i);
            if (seed % 3 == 0) /* doubles */
                x[i] = floor(2 * x[i]);
            w[i] = exp(2 * kv_random_normal(seed, 50 + i));
            if (seed % 4 == 0 && i) /* points that do not count */
                w[i] *= (double)(kv_random(seed, 90 + i) % 2);
        }
        qsort(x, n, sizeof(*x), ascending);
        if (kv_kmeans1d(x, w, n, k, centers, &cost, &e))
            fail_msg("%s", e.msg);

        const double bound = 1e-12 * cost_of(x, w, n) + 1e-24;

        assert_within(cost, by_force(x, w, n, k), bound);
        assert_within(cost_with(x, w, n, centers, k), cost, bound);
        for (size_t c = 1; c < k; c++)
            assert_true(centers[c - 1] <= centers[c]);
    }
}

/* By hand: two lumps; a weight that pulls a center; more centers than
 * points. */
static void test_by_hand(void **state)
{
    const double x[] = {-3, -2, -1, 5, 6, 7};
    const double one[] = {1, 1, 1, 1, 1, 1}, pull[] = {0, 0, 1, 3, 1, 0};
    double centers[4], cost;
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_kmeans1d(x, one, 6, 2, centers, &cost, &e), 0);
    assert_within(centers[0], -2, 1e-12);
    assert_within(centers[1], 6, 1e-12);
    assert_within(cost, 4, 1e-12);
    assert_int_equal(kv_kmeans1d(x, pull, 6, 2, centers, NULL, &e), 0);
    assert_within(centers[0], -1, 1e-12);
    assert_within(centers[1], 5.25, 1e-12);
    assert_int_equal(kv_kmeans1d(x, pull, 6, 4, centers, &cost, &e), 0);
    assert_within(centers[1], 5, 1e-12);
    assert_within(centers[2], 6, 1e-12);
    assert_within(centers[3], 6, 1e-12);
    assert_within(cost, 0, 1e-12);
}

static void test_refused(void **state)
{
    const double x[] = {1, 2, 3}, one[] = {1, 1, 1}, none[] = {0, 0, 0};
    const double falls[] = {1, 3, 2}, nan[] = {1, NAN, 2}, minus[] = {1, -1, 1};
    double center = 7;
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_kmeans1d(x, none, 3, 1, &center, NULL, &e), -1);
    assert_says(e, "none of 3 points has a positive weight");
    assert_int_equal(kv_kmeans1d(falls, one, 3, 1, &center, NULL, &e), -1);
    assert_says(e, "point 2 is 2");
    assert_int_equal(kv_kmeans1d(nan, one, 3, 1, &center, NULL, &e), -1);
    assert_says(e, "point 1 is");
    assert_int_equal(kv_kmeans1d(x, minus, 3, 1, &center, NULL, &e), -1);
    assert_says(e, "point 1 has weight -1");
    assert_true(center == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
