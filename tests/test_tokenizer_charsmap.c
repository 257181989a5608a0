/* SentencePiece's table of characters, read as in SentencePiece and as in
 * Hugging Face's library. */
#include "lib/base/base64.h"
#include "lib/tokenizer/tokenizer_charsmap.h"
#include "tests/charsmap.h"
#include "tests/tokenizer_setup.h"

static struct kv_charsmap *open_table(const uint8_t *table, size_t n,
                                      struct kv_err *e)
{
    struct kv_charsmap *m = NULL;
    char *base64 = kv_base64_encode(table, n);

    if (kv_charsmap_new(&m, base64, e))
        m = NULL;
    free(base64);
    return m;
}

static void check(const struct kv_charsmap *m, bool longest, const char *text,
                  const char *expected)
{
    struct kv_text out = {0};
    struct kv_watch w;
    struct kv_err e = {""};

    kv_watch_init(&w, strlen(text));
    if (kv_charsmap_run(m, longest, text, strlen(text), &out, &w, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(out.n, strlen(expected));
    if (out.n)
        assert_memory_equal(out.s, expected, out.n);
    kv_text_clear(&out);
}

#define WIDE "\xef\xbc\xa1"
#define ACUTE "\xcc\x81"

static void both_ways(void **state)
{
    static const struct {
        const char *text, *longest, *cluster;
    } rows[] = {
        {"", "", ""},
        {"xyz", "xyz", "xyz"},
        {WIDE "x" WIDE, "axa", "axa"},
        {"e", "E", "E"},
        {"e" ACUTE "e",
         "\xc3\xa9"
         "E",
         "EE"}, /* the shortest, e, replaces the whole cluster */
        {WIDE ACUTE, "a" ACUTE, "a"},
        /* clusters above 5 bytes: each character */
        {"e" ACUTE ACUTE ACUTE, "\xc3\xa9" ACUTE ACUTE, "E" ACUTE ACUTE ACUTE},
        {"\xef\xbc\xa2", "\xef\xbc\xa2", "\xef\xbc\xa2"}, /* half the key */
    };
    uint8_t table[CHARSMAP_BYTES];
    struct kv_err e = {""};
    struct kv_charsmap *m;

    (void)state;
    make_charsmap(table);
    m = open_table(table, sizeof(table), &e);
    assert_non_null(m);
    for (size_t i = 0; i < COUNT(rows); i++) {
        check(m, true, rows[i].text, rows[i].longest);
        check(m, false, rows[i].text, rows[i].cluster);
    }
    kv_charsmap_free(m);
}

/* The step of tokenizer.json. */
static void in_json(void **state)
{
    static const char before[] =
        "{'model': {'vocab': {'E': 0, 'a': 1, '\\u00e9': 2}, 'merges': []},"
        " 'normalizer': {'type': 'Precompiled', 'precompiled_charsmap': '";
    uint8_t table[CHARSMAP_BYTES];
    char *base64, *json;
    struct kv_tokenizer *t;

    (void)state;
    make_charsmap(table);
    base64 = kv_base64_encode(table, sizeof(table));
    json = kv_alloc(strlen(before) + strlen(base64) + 8, 1);
    sprintf(json, "%s%s'}}", before, base64);
    t = must_open(json);
    check_ids(t, "e" WIDE "e" ACUTE, false, "0 1 0 ");
    kv_tokenizer_free(t);
    free(json);
    free(base64);
}

/* A changed byte, or a table that ends early, gives a sentence or some result,
 * but never a read outside the table. */
static void broken(void **state)
{
    static const char text[] = "e" ACUTE WIDE "\xef\xbc\xa2"
                               "x" ACUTE;
    static const uint8_t others[] = {0, 1, 0x7f, 0xff};
    uint8_t table[CHARSMAP_BYTES];

    (void)state;
    make_charsmap(table);
    for (size_t i = 0; i < sizeof(table) * COUNT(others); i++) {
        uint8_t *byte = &table[i / COUNT(others)];
        const uint8_t old = *byte;
        struct kv_err e = {""};
        struct kv_charsmap *m;
        struct kv_text out = {0};
        struct kv_watch w;

        if (!old && i / COUNT(others) % 64) /* most are alike */
            continue;
        *byte = others[i % COUNT(others)];
        m = open_table(table, sizeof(table), &e);
        *byte = old;
        kv_watch_init(&w, strlen(text));
        for (int longest = 0; m && longest < 2; longest++)
            if (kv_charsmap_run(m, longest, text, strlen(text), &out, &w, &e))
                assert_says(e, "precompiled_charsmap names no text");
        assert_true(m || *e.msg);
        kv_text_clear(&out);
        kv_charsmap_free(m);
    }
}

static void refuses(void **state)
{
    uint8_t table[CHARSMAP_BYTES];
    struct kv_charsmap *m;
    struct kv_err e = {""};

    (void)state;
    make_charsmap(table);
    assert_int_equal(kv_charsmap_new(&m, "abc", &e), -1);
    assert_says(e, "precompiled_charsmap: it is not base64");
    assert_null(open_table(table, 3, &e));
    assert_says(e, "a trie of 0 bytes in a table of 3");
    assert_null(open_table(table, sizeof(table) - 8, &e));
    assert_says(e, "a trie of 8192 bytes in a table of 8196");
    assert_null(open_table(table, sizeof(table) - 2, &e));
    assert_says(e, "not UTF-8 with a zero at the end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways),
        cmocka_unit_test(in_json),
        cmocka_unit_test(broken),
        cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("tokenizer_charsmap", tests, NULL, NULL);
}
