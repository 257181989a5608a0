#include "tests/test.h"

#include "lib/base/file.h"
#include "lib/calib.h"
#include "lib/columns.h"

#include <math.h>

static const char *const columns[] = {"name", "count", "value", NULL};

/* Writes the awkward rows and gives back the file's text. */
static char *table(const char *path, const char *format)
{
    struct kv_err e = {""};
    struct kv_results *r;
    char *text;
    size_t n;

    assert_int_equal(kv_results_open(&r, path, format, columns, &e), 0);
    kv_results_text(r, "name", "a,\"b\"|c\nd");
    kv_results_size(r, "count", UINT64_MAX);
    kv_results_real(r, "value", 0.1);
    assert_int_equal(kv_results_row(r, &e), 0);
    kv_results_real(r, "value", NAN); /* blank */
    assert_int_equal(kv_results_row(r, &e), 0);
    kv_results_text(r, "name", "plain");
    kv_results_real(r, "value", 1);
    kv_results_real(r, "value", INFINITY); /* the last one counts */
    assert_int_equal(kv_results_row(r, &e), 0);
    kv_results_text(r, "name", NULL);
    kv_results_real(r, "value", -1.0 / 3);
    assert_int_equal(kv_results_row(r, &e), 0);
    assert_false(kv_file_exists(path)); /* not before it is whole */
    assert_int_equal(kv_results_close(r, &e), 0);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    return text;
}

static void check_table(const char *format, const char *expected)
{
    char path[5000];
    char *text;

    snprintf(path, sizeof(path), "%s/table", test_folder());
    text = table(path, format);
    assert_string_equal(text, expected);
    free(text);
    unlink(path);
}

static void test_csv(void **state)
{
    (void)state;
    check_table("csv", "name,count,value\n"
                       "\"a,\"\"b\"\"|c\nd\",18446744073709551615,0.1\n"
                       ",,\n"
                       "plain,,inf\n"
                       ",,-0.333333333\n");
}

static void test_jsonl(void **state)
{
    (void)state;
    check_table("jsonl",
                "{\"name\": \"a,\\\"b\\\"|c\\u000ad\", "
                "\"count\": 18446744073709551615, \"value\": 0.1}\n"
                "{\"name\": null, \"count\": null, \"value\": null}\n"
                "{\"name\": \"plain\", \"count\": null, \"value\": null}\n"
                "{\"name\": null, \"count\": null, \"value\": -0.333333333}\n");
}

static void test_md(void **state)
{
    (void)state;
    check_table("md", "| name | count | value |\n|---|---|---|\n"
                      "| a,\"b\"\\|c d | 18446744073709551615 | 0.1 |\n"
                      "|  |  |  |\n"
                      "| plain |  | inf |\n"
                      "|  |  | -0.333333333 |\n");
}

static void test_no_rows(void **state)
{
    const char *folder = test_folder();
    struct kv_err e = {""};
    struct kv_results *r;
    char path[5000], *text;
    size_t n;

    (void)state;
    snprintf(path, sizeof(path), "%s/empty.csv", folder);
    assert_int_equal(kv_results_open(&r, path, "csv", columns, &e), 0);
    assert_int_equal(kv_results_close(r, &e), 0);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    assert_string_equal(text, "name,count,value\n");
    free(text);
    unlink(path);
}

static void test_discard_leaves_nothing(void **state)
{
    struct kv_err e = {""};
    struct kv_results *r;
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/gone.csv", test_folder());
    assert_int_equal(kv_results_open(&r, path, "csv", columns, &e), 0);
    kv_results_text(r, "name", "half a row");
    kv_results_discard(r);
    assert_false(kv_file_exists(path));
    kv_results_discard(NULL);
}

static void test_refusals(void **state)
{
    struct kv_err e = {""};
    struct kv_results *r;

    (void)state;
    assert_int_equal(kv_results_open(&r, NULL, "xml", columns, &e), -1);
    assert_says(e, "--format xml: expected csv, jsonl or md");
    assert_int_equal(
        kv_results_open(&r, "/nowhere/at/all.csv", "csv", columns, &e), -1);
    assert_says(e, "/nowhere/at/all.csv");
    if (access("/dev/full", W_OK))
        skip();

    /* A full disk is noticed at the first row already. */
    FILE *keep = stdout;

    stdout = fopen("/dev/full", "w");
    assert_int_equal(kv_results_open(&r, NULL, "csv", columns, &e), 0);
    assert_int_equal(kv_results_row(r, &e), -1);
    kv_results_discard(r);
    fclose(stdout);
    stdout = keep;
    assert_says(e, "standard output");
    assert_says(e, "No space left");
}

static const char *const full_columns[] = {KV_CONDITION_COLUMNS,
                                           KV_BITS_COLUMNS, NULL};

/* The conditions and the bits as one CSV line, the version left out. */
static char *row_of(const struct kv_conditions *c, const struct kv_calib *calib,
                    const struct kv_bits *b)
{
    struct kv_err e = {""};
    struct kv_results *r;
    char path[5000], *text;
    size_t n;

    snprintf(path, sizeof(path), "%s/row.csv", test_folder());
    assert_int_equal(kv_results_open(&r, path, "csv", full_columns, &e), 0);
    kv_results_conditions(r, c, "s:b4", calib, 0.25);
    kv_results_text(r, "version", "-");
    kv_results_bits(r, b);
    assert_int_equal(kv_results_row(r, &e), 0);
    assert_int_equal(kv_results_close(r, &e), 0);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    unlink(path);
    memmove(text, strchr(text, '\n') + 1, strlen(strchr(text, '\n')));
    return text;
}

static void test_conditions_and_bits(void **state)
{
    const struct kv_conditions full = {.tool = "t",
                                       .model = "m",
                                       .model_hash = "0a",
                                       .weights = "bf16",
                                       .text = "x.txt",
                                       .text_hash = "0b",
                                       .protocol = "all",
                                       .device = "cpu",
                                       .level = "c",
                                       .gemm = "f32",
                                       .ctx = 8,
                                       .windows = 2,
                                       .threads = 1,
                                       .seed = 7,
                                       .reading = {true, true, false}};
    const struct kv_conditions bare = {.tool = "t"};
    const struct kv_calib calib = {.hash = "0c", .text = "c.txt"};
    const struct kv_bits bits = {.bytes = 30,
                                 .values = 64,
                                 .quantized_bytes = 20,
                                 .quantized_values = 32,
                                 .shared_bytes = 10,
                                 .nominal = 3};
    const struct kv_bits none = {.nominal = NAN};
    char *text = row_of(&full, &calib, &bits);

    (void)state;
    assert_string_equal(text, "t,-,s:b4,m,0a,bf16,x.txt,0b,8,2,all,0c,c.txt,"
                              "0.25,cpu,c,1,7,1,0,f32,3,3.75,5,10,5\n");
    free(text);
    text = row_of(&bare, NULL, &none);
    assert_string_equal(text, "t,-,s:b4,,,,,,,,,,,,,,,0,,,,,,,0,\n");
    free(text);
}

/* Whatever bytes names and texts hold. */
static void test_bytes(void **state)
{
    static const char odd[] =
        "\xff\xc3|\x1b[m\xe2\x82\xac\xc2\x9b\\|\xed\xa0\x80"
        "\x7f\0\xf0\x9f\x98";
    static const struct {
        const char *format, *row;
    } want[] = {
        {"jsonl",
         "{\"name\": \"\xef\xbf\xbd\xef\xbf\xbd|\\u001b[m\xe2\x82\xac\\u009b"
         "\\\\|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\\u007f\\u0000"
         "\xef\xbf\xbd\", \"count\": null, \"value\": null}\n"},
        {"csv", "\xef\xbf\xbd\xef\xbf\xbd|\x1b[m\xe2\x82\xac\xc2\x9b\\|"
                "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x7f\xef\xbf\xbd"
                "\xef\xbf\xbd,,\n"},
        {"md", "| \xef\xbf\xbd\xef\xbf\xbd\\|\x1b[m\xe2\x82\xac\xc2\x9b\\\\\\|"
               "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x7f\xef\xbf\xbd"
               "\xef\xbf\xbd |  |  |\n"},
    };
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/table", test_folder());
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct kv_err e = {""};
        struct kv_results *r;
        char *text;
        size_t n, m = strlen(want[i].row);

        assert_int_equal(kv_results_open(&r, path, want[i].format, columns, &e),
                         0);
        kv_results_bytes(r, "name", odd, sizeof(odd) - 1);
        assert_int_equal(kv_results_row(r, &e), 0);
        assert_int_equal(kv_results_close(r, &e), 0);
        assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
        assert_true(n >= m);
        assert_string_equal(text + n - m, want[i].row);
        free(text);
        unlink(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_md),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_discard_leaves_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_conditions_and_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
