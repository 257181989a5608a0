/* Tables in which no cell is a formula of a spreadsheet. */
#include "lib/base/file.h"
#include "lib/results.h"
#include "tests/test.h"

#include <math.h>

static const char *const columns[] = {"name", "value", NULL};

/* A cell's text, its form in CSV, and its form in TSV. */
static const struct {
    const char *text, *csv, *tsv;
} rows[] = {
    {"=1+1", "'=1+1", "'=1+1"},
    {"+1", "'+1", "'+1"},
    {"-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"},
    {"@SUM(A1)", "'@SUM(A1)", "'@SUM(A1)"},
    {"\t=1", "'\t=1", "'\\t=1"},
    {"\r=1", "\"'\r=1\"", "'\\r=1"},
    {"\n=1", "\"'\n=1\"", "'\\n=1"},
    {"\uff1d1", "'\uff1d1", "'\uff1d1"},
    {"\uff0b1", "'\uff0b1", "'\uff0b1"},
    {"\uff0d1", "'\uff0d1", "'\uff0d1"},
    {"\uff201", "'\uff201", "'\uff201"},
    {"=a,\"b\"", "\"'=a,\"\"b\"\"\"", "'=a,\"b\""},
    {"'=1", "''=1", "''=1"}, /* so the cell can be read back */
    {"'a", "''a", "''a"},
    {"-1+2", "'-1+2", "'-1+2"},
    {"-", "'-", "'-"},
    {"-1.5", "-1.5", "-1.5"},
    {"-1e-07", "-1e-07", "-1e-07"},
    {"a=1", "a=1", "a=1"},
    {" =1", " =1", " =1"},
};

enum { N = sizeof(rows) / sizeof(*rows) };

static const char *table_path(void)
{
    static char path[5000];

    if (!*path)
        snprintf(path, sizeof(path), "%s/safe", test_folder());
    return path;
}

static char *text_of(const char *path)
{
    struct kv_err e = {""};
    char *text;
    size_t n;

    if (kv_file_read(path, &text, &n, &e))
        fail_msg("%s", e.msg);
    return text;
}

static int open_table(struct kv_results **r, const char *format, bool safe,
                      bool adds, struct kv_err *e)
{
    static const char *const key[] = {"name", NULL};
    static const struct kv_results_keys keys = {.key = key, .full = "value"};
    const struct kv_results_form form = {.path = table_path(),
                                         .format = format,
                                         .safe = safe,
                                         .keys = adds ? &keys : NULL,
                                         .append = adds};

    return kv_results_open(r, &form, columns, e);
}

/* All rows, each with its value below zero. */
static void write_rows(const char *format, bool safe, bool adds)
{
    struct kv_results *r;
    struct kv_err e = {""};

    if (open_table(&r, format, safe, adds, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < N; i++) {
        kv_results_text(r, "name", rows[i].text);
        kv_results_real(r, "value", i ? -0.5 * (double)i : -INFINITY);
        assert_int_equal(kv_results_row(r, &e), 0);
    }
    if (kv_results_close(r, &e))
        fail_msg("%s", e.msg);
}

/* The file is these rows, guarded, and nothing else. */
static void expect_safe(bool tsv)
{
    char *text = text_of(table_path()), want[4096];
    size_t n =
        (size_t)snprintf(want, sizeof(want), "name%cvalue\n", tsv ? '\t' : ',');

    for (size_t i = 0; i < N; i++) {
        n +=
            (size_t)snprintf(want + n, sizeof(want) - n, "%s%c",
                             tsv ? rows[i].tsv : rows[i].csv, tsv ? '\t' : ',');
        n += (size_t)snprintf(want + n, sizeof(want) - n,
                              i ? "%.9g\n" : "-inf\n", -0.5 * (double)i);
    }
    assert_string_equal(text, want);
    free(text);
}

static void test_cells(void **state)
{
    (void)state;
    for (int tsv = 0; tsv < 2; tsv++) {
        write_rows(tsv ? "tsv" : "csv", true, false);
        expect_safe(tsv);
    }
    unlink(table_path());
}

/* Existing rows are recognized and stay unchanged. */
static void test_append(void **state)
{
    (void)state;
    for (int tsv = 0; tsv < 2; tsv++) {
        for (int time = 0; time < 2; time++)
            write_rows(tsv ? "tsv" : "csv", true, true);
        expect_safe(tsv);
        unlink(table_path());
    }
}

/* A table without guards gets them with the next row; numbers get none. */
static void test_made_safe(void **state)
{
    struct kv_results *r;
    struct kv_err e = {""};
    FILE *f = fopen(table_path(), "w");
    char *text;

    (void)state;
    fputs("name,value\n=1,-2.5\n'a,-inf\n", f);
    fclose(f);
    assert_int_equal(open_table(&r, "csv", true, true, &e), 0);
    kv_results_text(r, "name", "@b");
    assert_int_equal(kv_results_row(r, &e), 0);
    assert_int_equal(kv_results_close(r, &e), 0);
    text = text_of(table_path());
    assert_string_equal(text, "name,value\n'=1,-2.5\n''a,-inf\n'@b,\n");
    free(text);
    unlink(table_path());
}

static void test_refused(void **state)
{
    struct kv_results *r;
    struct kv_err e = {""};

    (void)state;
    write_rows("csv", true, true);
    assert_int_equal(open_table(&r, "csv", false, true, &e), -1);
    assert_says(e, "has a cell '=1+1, as --safe-csv writes it: rows are "
                   "added with --safe-csv too");
    unlink(table_path());
    for (int md = 0; md < 2; md++) {
        assert_int_equal(open_table(&r, md ? "md" : "jsonl", true, false, &e),
                         -1);
        assert_says(e, "--safe-csv goes with --format csv or tsv");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells), cmocka_unit_test(test_append),
        cmocka_unit_test(test_made_safe), cmocka_unit_test(test_refused)};

    return cmocka_run_group_tests_name("safe_csv", tests, NULL, NULL);
}
