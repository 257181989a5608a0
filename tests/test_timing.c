#include "eval/timing.h"
#include "tests/test.h"

#include <math.h>

enum { WARMUP = 2, REPS = 9 };

/* The timed function: it takes so long, and counts. */
struct work {
    double seconds;
    size_t calls;
};

static void once(void *arg)
{
    struct work *w = arg;
    const double end = kv_seconds() + w->seconds;

    w->calls++;
    while (kv_seconds() < end)
        ;
}

static void check_calls(struct kv_bench *b, bool warm, bool with_base)
{
    const size_t want = (warm ? 2 : 1) * (WARMUP + REPS);
    struct work run = {.seconds = 1e-3}, base = {.seconds = 4e-3};
    double ratio = NAN;
    struct kv_progress progress;
    struct kv_timing t;
    struct kv_err e;

    kv_progress_init(&progress, "runs", WARMUP + REPS);
    assert_int_equal(kv_bench_time(b, warm, WARMUP, REPS, once, &run,
                                   with_base ? &base : NULL, &progress, &t,
                                   with_base ? &ratio : NULL, &e),
                     0);
    assert_int_equal(progress.done, WARMUP + REPS);
    assert_int_equal(run.calls, want);
    assert_int_equal(base.calls, with_base ? want : 0);
    assert_true(run.seconds <= t.p10 && t.p10 <= t.p50 && t.p50 <= t.p90);
    if (with_base) /* 4, unless the machine has other load */
        assert_true(ratio > 1 && isfinite(ratio));
}

static void test_calls(void **state)
{
    struct kv_bench *b = kv_bench_new(2);

    (void)state;
    for (int way = 0; way < 4; way++)
        check_calls(b, way % 2, way / 2);
    assert_true(kv_bench_bandwidth(b) > 0);
    assert_true(isfinite(kv_bench_bandwidth(b)));
    kv_bench_free(b);
    kv_bench_free(NULL);
}

static void test_quantile(void **state)
{
    double x[] = {4, 1, 3, 2}, alone = 7;

    (void)state;
    assert_true(kv_quantile(x, 4, 0) == 1);
    assert_true(kv_quantile(x, 4, 0.5) == 2.5);
    assert_true(kv_quantile(x, 4, 1) == 4);
    assert_within(kv_quantile(x, 4, 0.1), 1.3, 1e-12);
    assert_within(kv_quantile(x, 4, 0.9), 3.7, 1e-12);
    for (int i = 0; i <= 10; i++)
        assert_true(kv_quantile(&alone, 1, i / 10.0) == 7);
}

/* Four runs, one of which took `slow` times as long: the p90 is the third run's
 * time plus 0.7 of the way to the slow one. */
static bool noisy(double slow)
{
    double seconds[] = {slow, 1, 1, 1};
    const struct kv_timing t = kv_timing_of(seconds, 4);

    assert_true(t.p10 == 1 && t.p50 == 1);
    assert_within(t.p90, 1 + 0.7 * (slow - 1), 1e-12);
    return kv_timing_noisy(&t);
}

static void test_noisy(void **state)
{
    (void)state;
    assert_false(noisy(1));
    assert_false(noisy(2.4));
    assert_true(noisy(2.5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_quantile),
        cmocka_unit_test(test_noisy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
