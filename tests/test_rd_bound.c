/* The Gaussian rate-distortion bound: cases by hand, and a dump. */
#include "eval/measure.h"
#include "eval/rd_bound.h"
#include "lib/codec.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <unistd.h>

enum { N_LAYERS = 2 };

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

/* Only the largest coefficient gets bits until its error equals the next
 * variance. */
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

/* Without a metric the transform is a rotation, which keeps the error. */
static void check_rd(const struct kv_spec *spec, const struct kv_measured *m,
                     int side)
{
    const double error = m->rd_error[side];
    const double gap = 10 * log10(error / m->rd_bound[side]);
    const struct kv_reconstruction *reconstruction = &m->reconstruction[side];

    if (m->bits[side].quantized_values == 0)
        assert_true(error == 0 && m->rd_bound[side] == 0);
    else if (!(gap > 0 && gap < 6))
        fail_msg("%s %c: %g dB above the bound", spec->text,
                 kv_side_name((enum kv_side)side), gap);
    if (m->bits[side].quantized_values == m->bits[side].values)
        assert_within(error / reconstruction->e2, 1, 1e-4);
}

/* Transform coding of a dump like its calibration's: only quantized tokens
 * count, for any threads and memory. */
static void test_of_a_dump(void **state)
{
    static const char *const text[] = {"klt:b2,none", "klt:b0.5,none",
                                       "klt:b2s2r3,none", "klt:b2r999,none",
                                       "klt:b2,none,scalar"};
    enum { N = sizeof(text) / sizeof(*text) };
    const struct kv_shape shape = synthetic_shape(64);
    struct kv_spec spec[N];
    struct kv_measure_plan plan = {
        .spec = spec, .n_specs = N, .memory = 1 << 30};
    const int threads = omp_get_max_threads();
    struct kv_err e = {""};
    struct kv_measured a[N * N_LAYERS], b[N * N_LAYERS];
    struct kv_calib *calib;
    char *path;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(kv_spec_parse(&spec[i], text[i], &e), 0);
        assert_int_equal(kv_spec_fit(&spec[i], &shape, &e), 0);
    }
    plan.calib = calib = synthetic_calib(&shape, spec, test_folder());
    synthetic_dump(&shape, 3, 37, test_folder(), &path);
    assert_int_equal(kv_dump_open(&plan.dump, path, &e), 0);
    omp_set_num_threads(1);
    assert_int_equal(kv_measure(&plan, a, &e), 0);
    omp_set_num_threads(3);
    plan.memory = 0; /* one window at a time */
    assert_int_equal(kv_measure(&plan, b, &e), 0);
    omp_set_num_threads(threads);
    assert_memory_equal(a, b, sizeof(a));
    for (size_t i = 0; i < N * N_LAYERS; i++)
        for (int side = 0; side < KV_SIDES; side++)
            check_rd(&spec[i / N_LAYERS], &a[i], side);
    kv_dump_close(plan.dump);
    unlink(path);
    free(path);
    kv_calib_free(calib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_variances),
        cmocka_unit_test(test_water_rises),
        cmocka_unit_test(test_dominating),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_of_a_dump),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
