/* Tables of results read back, and rows added to them. */
#include "lib/base/file.h"
#include "lib/results.h"
#include "lib/results_file.h"
#include "lib/spec_columns.h"
#include "tests/test.h"

#include <math.h>

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
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

/* A file that was written is read as the cells that were put. */
static void test_read_back(void **state)
{
    static const char *const columns[] = {"a", "b", NULL};
    static const char *const cells[] = {"plain", "",        "a,\"b\"", "\"",
                                        "\n",    "a\tb\\t", "\\",      "\r\n",
                                        " x ",   "\\"};
    enum { N = sizeof(cells) / sizeof(*cells) };
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/back", test_folder());
    for (int tsv = 0; tsv < 2; tsv++) {
        const struct kv_results_form form = {.path = path,
                                             .format = tsv ? "tsv" : "csv"};
        struct kv_results_file t;
        struct kv_results *r;
        struct kv_err e = {""};

        assert_int_equal(kv_results_open(&r, &form, columns, &e), 0);
        for (size_t i = 0; i < N; i += 2) {
            kv_results_text(r, "a", cells[i]);
            kv_results_text(r, "b", cells[i + 1]);
            assert_int_equal(kv_results_row(r, &e), 0);
        }
        assert_int_equal(kv_results_close(r, &e), 0);
        if (kv_results_file_read(&t, path, tsv ? '\t' : ',', &e))
            fail_msg("%s", e.msg);
        assert_int_equal(t.n, 2);
        assert_int_equal(t.n_rows, N / 2);
        assert_string_equal(t.cell[1], "b");
        for (size_t i = 0; i < N; i++)
            assert_string_equal(kv_results_file_cell(&t, i / 2, i % 2),
                                cells[i]);
        assert_int_equal(kv_results_file_find(&t, "b"), 1);
        assert_int_equal(kv_results_file_find(&t, "c"), 2);
        kv_results_file_clear(&t);
        unlink(path);
    }
}

static void test_read_odd(void **state)
{
    static const struct {
        char separator;
        const char *text, *says; /* or the cells, a bar after each */
    } odd[] = {{',', "", ""},
               {',', "a,b\n", "a|b|"},
               {',', "a\r\n\"b\"\r\n", "a|b|"},
               {',', "\"a\"\"\",\"\"\n", "a\"||"},
               {',', "a\\tb\n", "a\\tb|"},
               {',', "\n", "|"},
               {'\t', "\"a\tb\\t\\\\n\\x\\\n", "\"a|b\t\\n\\x\\|"},
               {',', "a,b", "odd:1: the last line has no end"},
               {',', "a\n1\n2", "odd:3: the last line has no end"},
               {',', "a\n\"1\n2", "odd:3: a quote has no partner"},
               {',', "a\n\"1\"2\n", "odd:2: text follows a cell in quotes"},
               {',', "a\n\"1\n\n\"\n1,2\n", "odd:5: 2 cells, where"},
               {',', "a,b\n\n", "odd:2: 1 cells, where the header has 2"},
               {'\t', "a\tb\n1\n", "odd:2: 1 cells"}};
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/odd", test_folder());
    for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++) {
        struct kv_results_file t;
        struct kv_err e = {""};
        char cells[64] = "";

        write_text(path, odd[i].text);
        if (kv_results_file_read(&t, path, odd[i].separator, &e)) {
            assert_says(e, odd[i].says);
            continue;
        }
        for (size_t j = 0; j < t.n_cells; j++)
            strcat(strcat(cells, t.cell[j]), "|");
        assert_string_equal(cells, odd[i].says);
        kv_results_file_clear(&t);
    }
    unlink(path);
}

/* ---- adding -------------------------------------------------------------- */

static struct kv_spec parsed(const char *text)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e))
        fail_msg("%s", e.msg);
    return s;
}

/* A table of version, spec, text and kl to which these specs are added. */
static int open_keyed(struct kv_results **r, const char *path, bool append,
                      const char *const *texts, struct kv_err *e)
{
    static const char *const own[] = {"version", "spec", "text", "kl", NULL};
    static const char *const key[] = {"spec", "text", NULL};
    static const struct kv_results_keys keys = {
        .key = key, .full = "kl", .alike = {{"version", "1"}}};
    struct kv_spec spec[8];
    struct kv_results_form form = {
        .path = path, .format = "csv", .keys = &keys, .append = append};
    char **params;
    size_t n = 0;
    int rc;

    for (; texts[n]; n++)
        spec[n] = parsed(texts[n]);
    form.params = params = kv_spec_columns(spec, n);
    rc = kv_results_open(r, &form, own, e);
    kv_spec_columns_free(params);
    return rc;
}

static int open_append(struct kv_results **r, const char *path,
                       const char *const *texts, struct kv_err *e)
{
    return open_keyed(r, path, true, texts, e);
}

static void set_row(struct kv_results *r, const char *spec, double kl)
{
    const struct kv_spec s = parsed(spec);

    kv_results_text(r, "version", "1");
    kv_results_text(r, "spec", spec);
    kv_results_text(r, "text", "t,\n");
    kv_results_real(r, "kl", kl);
    kv_results_params(r, &s);
}

static void add_rows(const char *path, const char *const *texts, double kl)
{
    struct kv_err e = {""};
    struct kv_results *r;

    if (open_append(&r, path, texts, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; texts[i]; i++) {
        set_row(r, texts[i], kl);
        kv_results_find_row(r, !isnan(kl));
        assert_int_equal(kv_results_row(r, &e), 0);
    }
    if (kv_results_close(r, &e))
        fail_msg("%s", e.msg);
}

static void check_text(const char *path, const char *expected)
{
    char *text = text_of(path);

    assert_string_equal(text, expected);
    free(text);
}

static void test_append(void **state)
{
    static const char *const one[] = {"f16", NULL};
    static const char *const two[] = {"f16", "f16:K-s1/V-s2", NULL};
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/append.csv", test_folder());
    write_text(path, ""); /* mktemp(1) makes an empty file */
    for (int i = 0; i < 2; i++) {
        add_rows(path, one, NAN);
        check_text(path, "version,spec,text,kl,params.r,params.s\n"
                         "1,f16,\"t,\n\",,0,0\n");
    }
    add_rows(path, two, NAN);
    check_text(path, "version,spec,text,kl,params.r,params.s,params.K.s,"
                     "params.V.s\n"
                     "1,f16,\"t,\n\",,0,0,0,0\n"
                     "1,f16:K-s1/V-s2,\"t,\n\",,0,,1,2\n");
    add_rows(path, one, 0.5); /* with a column that the row there lacks */
    add_rows(path, one, NAN);
    add_rows(path, one, 0.25);
    check_text(path, "version,spec,text,kl,params.r,params.s,params.K.s,"
                     "params.V.s\n"
                     "1,f16,\"t,\n\",,0,0,0,0\n"
                     "1,f16:K-s1/V-s2,\"t,\n\",,0,,1,2\n"
                     "1,f16,\"t,\n\",0.5,0,0,0,0\n");
    unlink(path);
}

/* Two tables that are open at once lose no rows, and neither adds the
 * other's. */
static void test_side_by_side(void **state)
{
    static const char *const texts[][2] = {{"f16", NULL},
                                           {"f16:K-s1/V-s2", NULL}};
    struct kv_results *r[2];
    struct kv_err e = {""};
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/both.csv", test_folder());
    for (int i = 0; i < 2; i++) {
        assert_int_equal(open_append(&r[i], path, texts[i], &e), 0);
        for (int j = 0; j <= i; j++) {
            set_row(r[i], texts[j][0], NAN);
            assert_int_equal(kv_results_row(r[i], &e), 0);
        }
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(kv_results_close(r[i], &e), 0);
    check_text(path, "version,spec,text,kl,params.r,params.s,params.K.s,"
                     "params.V.s\n"
                     "1,f16,\"t,\n\",,0,0,0,0\n"
                     "1,f16:K-s1/V-s2,\"t,\n\",,0,,1,2\n");
    unlink(path);
}

/* A run that ends early leaves its rows in the journal.  The next one finds
 * them, whatever it adds to; rows of other runs stay there. */
static void test_journal(void **state)
{
    static const char *const one[] = {"f16", NULL};
    static const char *const two[] = {"f16:K-s1/V-s2", "f16", NULL};
    static const char head[] = "version,spec,text,kl,params.r,params.s";
    struct kv_results *r;
    struct kv_err e = {""};
    char path[5000], journal[5010], text[500];

    (void)state;
    snprintf(path, sizeof(path), "%s/long.csv", test_folder());
    snprintf(journal, sizeof(journal), "%s" KV_RESULTS_JOURNAL, path);
    for (int append = 0; append < 2; append++) {
        write_text(path, append ? "" : "another table\n");
        assert_int_equal(open_keyed(&r, path, append, one, &e), 0);
        set_row(r, "f16", 0.5);
        assert_false(kv_results_find_row(r, false));
        assert_int_equal(kv_results_row(r, &e), 0);
        kv_results_discard(r);
        snprintf(text, sizeof(text), "%s\n1,f16,\"t,\n\",0.5,0,0\n", head);
        check_text(journal, text);

        assert_int_equal(open_keyed(&r, path, append, two, &e), 0);
        set_row(r, two[0], 0.25);
        assert_int_equal(kv_results_row(r, &e), 0);
        set_row(r, "f16", NAN);
        assert_true(kv_results_find_row(r, true));
        assert_int_equal(kv_results_row(r, &e), 0);
        assert_int_equal(kv_results_close(r, &e), 0);
        assert_false(kv_file_exists(journal));
        snprintf(text, sizeof(text),
                 "%s,params.K.s,params.V.s\n"
                 "1,f16:K-s1/V-s2,\"t,\n\",0.25,0,,1,2\n"
                 "1,f16,\"t,\n\",0.5,0,0,0,0\n",
                 head);
        check_text(path, text);

        write_text(journal, text);
        assert_int_equal(open_keyed(&r, path, append, one, &e), 0);
        set_row(r, "f16", NAN);
        assert_true(kv_results_find_row(r, true));
        assert_int_equal(kv_results_row(r, &e), 0);
        assert_int_equal(kv_results_close(r, &e), 0);
        check_text(append ? path : journal, text);
        assert_int_equal(kv_file_exists(journal), !append);
        unlink(path);
        unlink(journal);
    }
    write_text(journal, "x\n");
    assert_int_equal(open_keyed(&r, path, false, one, &e), -1);
    assert_says(e, "no column version: remove it to start anew");
    unlink(journal);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"version,spec,text\n", "w.csv has no column kl: --append wants"},
        {"version,text,spec,kl\n",
         "w.csv has its column 2 called text, not spec"},
        {"version,spec,text,kl,more\n", "w.csv has a column more, which no"},
        {"version,spec,text,kl,params.nothing\n", "a column params.nothing"},
        {"version,spec,text,kl\n1,f16,t,\n2,f16,t,\n",
         "w.csv has rows of version 2, here it is 1: --append wants the same"},
        {"version,spec,text,kl\n1,f16,t\n", "w.csv:2: 3 cells"},
        {"version,spec,text,kl\n1,f16,t,", "w.csv:2: the last line has no end"},
        {"x\n", "w.csv has no column version"}};
    static const char *const specs[] = {"f16", NULL};
    struct kv_results *r;
    struct kv_err e = {""};
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/w.csv", test_folder());
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        write_text(path, wrong[i].text);
        assert_int_equal(open_append(&r, path, specs, &e), -1);
        assert_says(e, wrong[i].says);
        check_text(path, wrong[i].text);
    }
    unlink(path);
    assert_int_equal(open_append(&r, test_folder(), specs, &e), -1);
    assert_says(e, "is not a regular file");

    /* one that came to be another while the rows were made */
    assert_int_equal(open_append(&r, path, specs, &e), 0);
    set_row(r, "f16", NAN);
    assert_int_equal(kv_results_row(r, &e), 0);
    write_text(path, wrong[4].text);
    assert_int_equal(kv_results_close(r, &e), -1);
    assert_says(e, wrong[4].says);
    check_text(path, wrong[4].text);
    unlink(path);
}

/* A byte order mark, which spreadsheets write, is no part of the first column's
 * name, and stays.  UTF-16, which some of them write too, is refused. */
static void test_marked(void **state)
{
    static const char *const specs[] = {"f16", NULL};
    static const char head[] = "version,spec,text,kl,params.r,params.s\n";
    struct kv_results *r;
    struct kv_err e = {""};
    char path[5000], text[200], longer[300];
    FILE *f;

    (void)state;
    snprintf(path, sizeof(path), "%s/marked.csv", test_folder());
    for (int quoted = 0; quoted < 2; quoted++) {
        snprintf(text, sizeof(text), "\xef\xbb\xbf%s%s1,f32,t,,0,0\r\n",
                 quoted ? "\"version\"" : "version", head + strlen("version"));
        write_text(path, text);
        assert_int_equal(open_append(&r, path, specs, &e), 0);
        set_row(r, "f16", NAN);
        assert_int_equal(kv_results_row(r, &e), 0);
        assert_int_equal(kv_results_close(r, &e), 0);
        snprintf(longer, sizeof(longer),
                 "\xef\xbb\xbf%s1,f32,t,,0,0\n1,f16,\"t,\n\",,0,0\n", head);
        check_text(path, longer);
    }
    f = fopen(path, "w");
    assert_non_null(f);
    fwrite("\xff\xfev\0e\0r\0", 1, 8, f);
    fclose(f);
    assert_int_equal(open_append(&r, path, specs, &e), -1);
    assert_says(e, "marked.csv: byte 0: the mark of UTF-16: UTF-8 is expected");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_back), cmocka_unit_test(test_read_odd),
        cmocka_unit_test(test_append),    cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_marked),
        cmocka_unit_test(test_journal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
