/* lib/journal.h: finished rows are found again, exactly. */
#include "lib/base/alloc.h"
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
    assert_int_equal(kv_journal_finish(j), 2); /* of others */
    assert_int_equal(kv_journal_open(&j, path, "run 1", &e), 0);
    assert_true(kv_journal_find(j, "a", got, 3));
    assert_true(kv_journal_find(j, "a,more", got, 3));
    assert_true(kv_journal_find(j, "c", got, 1));
    assert_int_equal(kv_journal_finish(j), 0);
    assert_false(kv_file_exists(path));

    free(path);
}

static struct kv_journal *opened(const char *path, const char *run)
{
    struct kv_journal *j;
    struct kv_err e = {""};

    if (kv_journal_open(&j, path, run, &e))
        fail_msg("%s", e.msg);
    return j;
}

static void refused(const char *path, const char *run, const char *words)
{
    struct kv_journal *j;
    struct kv_err e = {""};

    assert_int_equal(kv_journal_open(&j, path, run, &e), -1);
    assert_says(e, path);
    assert_says(e, words);
}

static void put_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");

    fwrite(text, 1, n, f);
    fclose(f);
}

/* A run that left no item hands its file to the next; anything else that is
 * not this run's is kept. */
static void test_others(void **state)
{
    char *path = kv_path_join(test_folder(), "others.partial"), *text;
    const double b = 3;
    struct kv_journal *j = opened(path, "tool run 1");
    struct kv_err e = {""};
    double got;
    size_t n;

    (void)state;
    kv_journal_close(j);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    for (size_t cut = 0; cut < n; cut++) { /* also within the first line */
        put_file(path, text, cut);
        j = opened(path, "tool run 2");
        assert_int_equal(kv_journal_items(j), 0);
        kv_journal_close(j);
    }
    j = opened(path, "tool run 2");
    assert_int_equal(kv_journal_add(j, "b", &b, 1, &e), 0);
    kv_journal_close(j);
    refused(path, "tool run 1", "another run");
    j = opened(path, "tool run 2");
    assert_true(kv_journal_find(j, "b", &got, 1));
    assert_false(kv_journal_find(j, "b", (double[2]){0}, 2));
    assert_int_equal(kv_journal_finish(j), 0);

    put_file(path, "tool run 2\nb\t 0x1p+0\n", 22); /* format 1 */
    refused(path, "tool run 2", "another version");
    put_file(path, "kvtools-partial 3 tool run 2\t00000000\n", 39);
    refused(path, "tool run 2", "another version");
    put_file(path, "my notes", 8);
    refused(path, "tool run 2", "holds no rows of kvtools");
    assert_int_equal(kv_journal_open(&j, "/nowhere/x", "run", &e), -1);
    assert_says(e, "cannot write /nowhere/x");
    free(text);
    free(path);
}

/* Every bit of a file, flipped, and every line of it, taken away or doubled:
 * items before the place are taken, none after it. */
static void test_damage(void **state)
{
    enum { ITEMS = 4 };
    static const char *const item[ITEMS] = {"a", "b:c,d", "ab", "e"};
    char *path = kv_path_join(test_folder(), "damage.partial"), *text, *bad;
    struct kv_journal *j = opened(path, "tool run");
    struct kv_err e = {""};
    size_t start[ITEMS + 2], n, line = 0;

    (void)state;
    for (size_t i = 0; i < ITEMS; i++)
        assert_int_equal(
            kv_journal_add(j, item[i], (double[2]){(double)i, 0.1}, 2, &e), 0);
    kv_journal_close(j);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    start[0] = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n')
            start[++line] = i + 1;
    assert_int_equal(line, ITEMS + 1);
    bad = kv_alloc(2 * n, 1);
    for (size_t bit = 8 * start[1]; bit < 8 * n; bit++) {
        memcpy(bad, text, n);
        bad[bit / 8] = (char)(bad[bit / 8] ^ 1 << bit % 8);
        for (line = 1; start[line + 1] <= bit / 8; line++)
            ;
        put_file(path, bad, n);
        j = opened(path, "tool run");
        assert_int_equal(kv_journal_items(j), line - 1);
        if (bit / 8 < n - 1) /* the last end of line: a line cut short */
            assert_int_equal(kv_journal_damaged(j), line + 1);
        for (size_t i = 0; i < ITEMS; i++)
            assert_int_equal(kv_journal_find(j, item[i], (double[2]){0}, 2),
                             i + 1 < line);
        kv_journal_close(j);
    }
    for (line = 1; line < ITEMS; line++) {
        const size_t from = start[line], to = start[line + 1];

        memcpy(bad, text, from);
        memcpy(bad + from, text + to, n - to);
        put_file(path, bad, n - (to - from));
        j = opened(path, "tool run");
        assert_int_equal(kv_journal_items(j), line - 1);
        kv_journal_close(j);

        memcpy(bad, text, to);
        memcpy(bad + to, text + from, n - from);
        put_file(path, bad, n + (to - from));
        j = opened(path, "tool run");
        assert_int_equal(kv_journal_items(j), line);
        kv_journal_close(j);
    }
    memcpy(bad, text, n);
    bad[start[1] - 2] ^= 1;
    put_file(path, bad, n);
    refused(path, "tool run", "its first line is damaged");
    free(bad);
    free(text);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_journal),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
