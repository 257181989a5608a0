/* Makes tokenizers from a few lines of JSON, and checks their results. */
#ifndef KV_TESTS_TOKENIZER_SETUP_H
#define KV_TESTS_TOKENIZER_SETUP_H

#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/tokenizer/tokenizer.h"
#include "tests/test.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* The smallest valid tokenizer.json, without its braces. */
#define MODEL "'model': {'vocab': {'a': 0, 'b': 1}, 'merges': []}"

/* JSON is written with ' for " here. */
static inline char *quoted(const char *json)
{
    char *s = kv_strdup(json);

    for (char *p = s; *p; p++)
        if (*p == '\'')
            *p = '"';
    return s;
}

static inline void write_file(const char *dir, const char *name,
                              const char *text)
{
    char *path = kv_path_join(dir, name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(path);
}

static inline void remove_folder(const char *dir)
{
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer_config.json",
        "added_tokens.json", "special_tokens_map.json",
        "vocab.json",        "merges.txt",
        "config.json",       "generation_config.json"};

    for (size_t i = 0; i < COUNT(names); i++) {
        char *path = kv_path_join(dir, names[i]);

        unlink(path);
        free(path);
    }
    rmdir(dir);
}

/* Opens a folder with these files; config may be NULL. */
static inline int open_json(struct kv_tokenizer **t, const char *json,
                            const char *config, struct kv_err *e)
{
    const char *dir = test_folder();
    char *main_text = quoted(json);
    int rc;

    write_file(dir, "tokenizer.json", main_text);
    if (config) {
        char *config_text = quoted(config);

        write_file(dir, "tokenizer_config.json", config_text);
        free(config_text);
    }
    rc = kv_tokenizer_open(t, dir, e);
    remove_folder(dir);
    free(main_text);
    return rc;
}

static inline struct kv_tokenizer *must_open(const char *json)
{
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};

    if (open_json(&t, json, NULL, &e))
        fail_msg("%s", e.msg);
    return t;
}

/* Checks the ids of a text; expected: the ids, each with a space behind it. */
static inline void check_ids(const struct kv_tokenizer *t, const char *text,
                             bool special, const char *expected)
{
    struct kv_err e = {""};
    int32_t *ids;
    size_t n = 0, at = 0;
    char *got;

    if (kv_tokenizer_encode(t, text, strlen(text), special, &ids, &n, NULL, &e))
        fail_msg("%s", e.msg);
    got = kv_alloc(12 * n + 1, 1);
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(got + at, "%d ", (int)ids[i]);
    if (strcmp(got, expected))
        fail_msg("\"%s\": %s instead of %s", text, got, expected);
    free(got);
    free(ids);
}

static inline void check_text(const struct kv_tokenizer *t, const int32_t *ids,
                              size_t n, bool special, const char *expected)
{
    struct kv_err e = {""};
    char *text;
    size_t n_bytes;

    if (kv_tokenizer_decode(t, ids, n, special, &text, &n_bytes, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(text, expected);
    assert_int_equal(n_bytes, strlen(expected));
    free(text);
}

#endif
