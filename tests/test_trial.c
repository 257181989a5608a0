/* A trial in a process of its own, for every way to end. */
#include "lib/base/file.h"
#include "lib/base/trial.h"
#include "tests/test.h"

#include <signal.h>

enum { MS = 200, BYTES = 64 << 20 };

static int seen;

static void well(const void *arg)
{
    seen = *(const int *)arg;
}

static void crash(const void *arg)
{
    raise(*(const int *)arg);
}

static void go_on(const void *arg)
{
    for (volatile unsigned i = 0;; i++)
        (void)arg;
}

static void wait_for_ever(const void *arg)
{
    for (;;)
        (void)arg, pause();
}

/* Ends well if memory is limited.  (AddressSanitizer deadlocks without a
 * limit.) */
static void take(const void *arg)
{
    size_t n = 0;

    (void)arg;
    while (n <= BYTES && calloc(1 << 20, 1))
        n += 1 << 20;
    if (n > BYTES)
        raise(SIGABRT);
}

static void test_ends(void **state)
{
    const int seven = 7, segv = SIGSEGV, prof = SIGKILL;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_trial(well, &seven, MS, BYTES, &e), 0);
    assert_int_equal(seen, 0); /* it was another process's */
    assert_int_equal(kv_trial(crash, &segv, MS, BYTES, &e), -1);
    assert_says(e, "it crashed (Segmentation fault)");
    assert_int_equal(kv_trial(crash, &prof, MS, BYTES, &e), -1);
    assert_says(e, "it crashed (Killed)");
    assert_int_equal(kv_trial(go_on, NULL, MS, BYTES, &e), -1);
    assert_says(e, "it was not done in 200 ms");
    assert_int_equal(kv_trial(wait_for_ever, NULL, MS, BYTES, &e), -1);
    assert_says(e, "it was not done in 200 ms");
#ifndef __SANITIZE_ADDRESS__
    if (kv_trial(take, NULL, 5000, BYTES, &e))
        fail_msg("%s", e.msg);
#else
    (void)take;
#endif
}

/* Handlers of this process stay here: its unfinished outputs are not removed
 * when its copy ends. */
static void test_outputs_stay(void **state)
{
    char *path = kv_path_join(test_folder(), "out.csv");
    const int segv = SIGSEGV;
    struct kv_out out;
    struct kv_err e = {""};

    (void)state;
    kv_catch_signals();
    assert_int_equal(kv_out_open(&out, path, true, &e), 0);
    assert_int_equal(kv_trial(crash, &segv, MS, BYTES, &e), -1);
    assert_int_equal(kv_trial(go_on, NULL, MS, BYTES, &e), -1);
    assert_true(kv_file_exists(out.temp));
    assert_int_equal(kv_out_commit(&out, &e), 0);
    assert_true(kv_file_exists(path));
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_outputs_stay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
