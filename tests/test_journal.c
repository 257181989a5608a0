/* lib/journal.h: what was finished is found again, exactly. */
#include "lib/base/file.h"
#include "lib/journal.h"
#include "tests/test.h"

#include <math.h>

static void test_journal(void **state)
{
    char *path = kv_path_join(test_folder(), "rows.partial");
    const double a[3] = {0.1, -1e300, NAN}, b[3] = {3, 4, INFINITY};
    struct kv_journal *j;
    struct kv_err e = {""};
    double got[3];
    FILE *f;

    (void)state;
    assert_int_equal(kv_journal_open(&j, path, "run 1", &e), 0);
    assert_false(kv_journal_find(j, "a", got, 3));
    assert_int_equal(kv_journal_add(j, "a", a, 3, &e), 0);
    assert_int_equal(kv_journal_add(j, "a,more", b, 3, &e), 0);
    kv_journal_close(j);

    f = fopen(path, "a"); /* killed in the middle of a line */
    fputs("c\t 0x1p+0", f);
    fclose(f);
    assert_int_equal(kv_journal_open(&j, path, "run 1", &e), 0);
    assert_int_equal(kv_journal_items(j), 2);
    assert_true(kv_journal_find(j, "a", got, 3));
    assert_true(got[0] == a[0] && got[1] == a[1] && isnan(got[2]));
    assert_true(kv_journal_find(j, "a,more", got, 3));
    assert_true(got[1] == 4 && isinf(got[2]));
    assert_false(kv_journal_find(j, "c", got, 1));
    assert_int_equal(kv_journal_add(j, "c", b, 1, &e), 0);
    kv_journal_close(j);

    assert_int_equal(kv_journal_open(&j, path, "run 2", &e), -1);
    assert_says(e, "another run");
    assert_int_equal(kv_journal_open(&j, path, "run 1", &e), 0);
    assert_true(kv_journal_find(j, "c", got, 1));
    kv_journal_finish(j);
    assert_false(kv_file_exists(path));

    f = fopen(path, "w"); /* stopped before the first item was whole */
    fputs("run 1\na\t 0x1p+0", f);
    fclose(f);
    assert_int_equal(kv_journal_open(&j, path, "run 2", &e), 0);
    assert_int_equal(kv_journal_items(j), 0);
    assert_int_equal(kv_journal_add(j, "b", b, 1, &e), 0);
    kv_journal_close(j);
    assert_int_equal(kv_journal_open(&j, path, "run 1", &e), -1);
    assert_int_equal(kv_journal_open(&j, path, "run 2", &e), 0);
    assert_true(kv_journal_find(j, "b", got, 1));
    kv_journal_finish(j);
    assert_int_equal(kv_journal_open(&j, "/nowhere/x", "run", &e), -1);
    assert_says(e, "cannot write /nowhere/x");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_journal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
