#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "tests/test.h"

#include "lib/base/file.h"
#include "lib/calib.h"
#include "lib/columns.h"
#include "lib/spec_columns.h"

#include <math.h>

static const char *const columns[] = {"name", "count", "value", NULL};

/* chosen: --columns, or NULL. */
static int open_table(struct kv_results **r, const char *path,
                      const char *format, const char *chosen, struct kv_err *e)
{
    const struct kv_results_form form = {
        .path = path, .format = format, .chosen = chosen};

    return kv_results_open(r, &form, columns, e);
}

/* Writes the awkward rows and gives back the file's text. */
static char *table(const char *path, const char *format)
{
    struct kv_err e = {""};
    struct kv_results *r;
    char *text;
    size_t n;

    assert_int_equal(open_table(&r, path, format, NULL, &e), 0);
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

static void test_tsv(void **state)
{
    (void)state;
    check_table("tsv", "name\tcount\tvalue\n"
                       "a,\"b\"|c\\nd\t18446744073709551615\t0.1\n"
                       "\t\t\n"
                       "plain\t\tinf\n"
                       "\t\t-0.333333333\n");
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
    assert_int_equal(open_table(&r, path, "csv", NULL, &e), 0);
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
    assert_int_equal(open_table(&r, path, "csv", NULL, &e), 0);
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
    assert_int_equal(open_table(&r, NULL, "xml", NULL, &e), -1);
    assert_says(e, "--format xml: expected csv, tsv, jsonl or md");
    assert_int_equal(open_table(&r, "/nowhere/at/all.csv", "csv", NULL, &e),
                     -1);
    assert_says(e, "/nowhere/at/all.csv");
    if (access("/dev/full", W_OK))
        skip();

    /* A full disk is noticed at the first row already. */
    FILE *keep = stdout;

    stdout = fopen("/dev/full", "w");
    assert_int_equal(open_table(&r, NULL, "csv", NULL, &e), 0);
    assert_int_equal(kv_results_row(r, &e), -1);
    kv_results_discard(r);
    fclose(stdout);
    stdout = keep;
    assert_says(e, "standard output");
    assert_says(e, "No space left");
}

static const char *const full_columns[] = {KV_CONDITION_COLUMNS,
                                           KV_BITS_COLUMNS, NULL};

static struct kv_spec parsed(const char *text)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e))
        fail_msg("%s", e.msg);
    return s;
}

/* Returns the conditions and the bits as one CSV line, without the version. */
static char *row_of(const struct kv_conditions *c, const struct kv_calib *calib,
                    const struct kv_bits *b)
{
    const struct kv_spec spec = parsed("absmax:b4");
    char path[5000], *text;
    const struct kv_results_form form = {.path = path, .format = "csv"};
    struct kv_err e = {""};
    struct kv_results *r;
    size_t n;

    snprintf(path, sizeof(path), "%s/row.csv", test_folder());
    assert_int_equal(kv_results_open(&r, &form, full_columns, &e), 0);
    kv_results_conditions(r, c, &spec, calib, 0.25);
    kv_results_text(r, "spec", "s:b4");
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
                                       .reading = {true, KV_BOS_TEXT, false}};
    const struct kv_conditions bare = {.tool = "t"};
    const struct kv_calib calib = {.hash = "0c", .text = "c.txt"};
    const struct kv_bits bits = {.bytes = 30,
                                 .values = 64,
                                 .quantized_bytes = 20,
                                 .quantized_values = 32,
                                 .shared_bytes = 10,
                                 .nominal = 3,
                                 .clipped = 6,
                                 .declared = true};
    const struct kv_bits none = {.nominal = NAN};
    char *text = row_of(&full, &calib, &bits);

    (void)state;
    assert_string_equal(text,
                        "t,-,s:b4,absmax,m,0a,bf16,x.txt,0b,8,2,all,0c,c.txt,"
                        "0.25,cpu,c,1,7,1,0,f32,3,3.75,5,10,5,6,yes\n");
    free(text);
    text = row_of(&bare, NULL, &none);
    assert_string_equal(text, "t,-,s:b4,absmax,,,,,,,,,,,,,,,0,,,,,,,0,,0,\n");
    free(text);
}

/* ---- which columns ------------------------------------------------------- */

/* The rows of these specs, with --columns. */
static void check_chosen(const char *format, const char *chosen,
                         const char *const *texts, const char *expected)
{
    static const char *const own[] = {"spec", "scheme", "ppl", NULL};
    struct kv_spec spec[8];
    char path[5000], *text, **params;
    struct kv_results_form form = {
        .path = path, .format = format, .chosen = chosen};
    struct kv_err e = {""};
    struct kv_results *r;
    size_t n = 0;

    for (; texts[n]; n++)
        spec[n] = parsed(texts[n]);
    form.params = params = kv_spec_columns(spec, n);
    snprintf(path, sizeof(path), "%s/chosen", test_folder());
    if (kv_results_open(&r, &form, own, &e))
        fail_msg("%s", e.msg);
    kv_spec_columns_free(params);
    for (size_t i = 0; i < n; i++) {
        kv_results_text(r, "scheme", spec[i].scheme->name);
        kv_results_params(r, &spec[i]);
        kv_results_size(r, "ppl", i);
        assert_int_equal(kv_results_row(r, &e), 0);
    }
    assert_int_equal(kv_results_close(r, &e), 0);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    assert_string_equal(text, expected);
    free(text);
    unlink(path);
}

static void test_params(void **state)
{
    const char *const one[] = {"f32", "kivi:b4g32", NULL};
    const char *const sides[] = {"kivi:K-b4/V-b2", "kivi:b3",
                                 "h2o:b0.5+K-q8_0:s1/V-f16", NULL};

    (void)state;
    check_chosen("csv", NULL, one,
                 "spec,scheme,ppl,params.axis,params.b,params.g,params.r,"
                 "params.s\n"
                 ",f32,0,,,,0,0\n"
                 ",kivi,1,paper,4,32,128,0\n");
    check_chosen("jsonl", NULL, one,
                 "{\"spec\": null, \"scheme\": \"f32\", \"ppl\": 0, "
                 "\"params\": {\"r\": 0, \"s\": 0}}\n"
                 "{\"spec\": null, \"scheme\": \"kivi\", \"ppl\": 1, "
                 "\"params\": {\"axis\": \"paper\", \"b\": 4, \"g\": 32, "
                 "\"r\": 128, \"s\": 0}}\n");
    check_chosen("tsv", NULL, sides,
                 "spec\tscheme\tppl\tparams.axis\tparams.b\tparams.g\t"
                 "params.r\tparams.s\tparams.K.b\tparams.K.rot\tparams.K.s\t"
                 "params.V.b\tparams.V.s\tparams.policy.name\t"
                 "params.policy.b\n"
                 "\tkivi\t0\tpaper\t\t32\t128\t0\t4\t\t0\t2\t0\t\t\n"
                 "\tkivi\t1\tpaper\t3\t32\t128\t0\t3\t\t0\t3\t0\t\t\n"
                 "\tmixed\t2\t\t\t\t0\t\t\tno\t1\t\t0\th2o\t0.5\n");
    check_chosen("jsonl", "params,scheme", &sides[2],
                 "{\"params\": {\"r\": 0, \"K\": {\"rot\": \"no\", \"s\": 1}, "
                 "\"V\": {\"s\": 0}, \"policy\": {\"name\": \"h2o\", "
                 "\"b\": 0.5}}, \"scheme\": \"mixed\"}\n");
}

static void test_chosen(void **state)
{
    const char *const specs[] = {"kivi:b4", NULL};

    (void)state;
    check_chosen("csv", "ppl,scheme", specs, "ppl,scheme\n0,kivi\n");
    check_chosen("csv", "params.b,ppl,params", specs,
                 "params.b,ppl,params.axis,params.g,params.r,params.s\n"
                 "4,0,paper,32,128,0\n");
    /* a parameter that no row has, and one side's parameter */
    check_chosen("csv", "params.l,params.V.b", specs,
                 "params.l,params.V.b\n,4\n");
    check_chosen("jsonl", "params.V.b,ppl,params.b,params.l", specs,
                 "{\"params\": {\"b\": 4, \"V\": {\"b\": 4}}, \"ppl\": 0}\n");
    check_chosen("md", "scheme", specs, "| scheme |\n|---|\n| kivi |\n");
}

static void test_chosen_wrong(void **state)
{
    static const struct {
        const char *chosen, *says;
    } wrong[] = {
        {"", "--columns: a name is missing: expected names of columns with "},
        {"name,", "a name is missing"},
        {"name,,value", "a name is missing"},
        {"name,ppl", "unknown column 'ppl': expected some of name, count, "
                     "value"},
        {"Name", "unknown column 'Name'"},
        {" name", "unknown column ' name'"},
        {"params", "unknown column 'params'"},
        {"params.b", "unknown column 'params.b'"},
        {"name,value,name", "name is given twice"},
    };
    static const char *const of_specs[][2] = {
        {"params,name,params", "params is given twice"},
        {"params.b,params.b", "params.b is given twice"},
        {"params.nothing", "unknown column 'params.nothing': expected some of "
                           "name, count, value, params (all parameters), "
                           "params.b (one)"},
        {"params.", "unknown column 'params.'"},
        {"params.K", "unknown column 'params.K'"},
        {"params.Q.b", "unknown column 'params.Q.b'"},
        {"params.policy.x", "unknown column"},
    };
    char *none[] = {NULL};
    struct kv_err e = {""};
    struct kv_results *r;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(open_table(&r, NULL, "csv", wrong[i].chosen, &e), -1);
        assert_says(e, wrong[i].says);
    }
    for (size_t i = 0; i < sizeof(of_specs) / sizeof(*of_specs); i++) {
        const struct kv_results_form form = {
            .format = "csv", .chosen = of_specs[i][0], .params = none};

        assert_int_equal(kv_results_open(&r, &form, columns, &e), -1);
        assert_says(e, of_specs[i][1]);
    }
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
        {"tsv", "\xef\xbf\xbd\xef\xbf\xbd|\x1b[m\xe2\x82\xac\xc2\x9b\\\\|"
                "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x7f\xef\xbf\xbd"
                "\xef\xbf\xbd\t\t\n"},
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

        assert_int_equal(open_table(&r, path, want[i].format, NULL, &e), 0);
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
        cmocka_unit_test(test_tsv),
        cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_md),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_discard_leaves_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_conditions_and_bits),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_chosen_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
