/* Real vocabularies: the counts of reference.csv, llama.cpp's vectors. */
#include "tests/tokenizer_setup.h"

/* Every row of reference.csv: the count includes the BOS where one belongs,
 * and special tokens in the text are read as text. */
static void reference_counts(void **state)
{
    const char *shared = test_shared();
    char path[8192], model[64], file[64];
    size_t ctx, windows, expected;
    FILE *f;

    (void)state;
    if (!shared)
        skip();
    snprintf(path, sizeof(path), "%s/models/reference.csv", shared);
    f = fopen(path, "r");
    if (!f)
        skip();
    assert_non_null(fgets(path, sizeof(path), f));
    while (fscanf(f, "%63[^,],%63[^,],%zu,%zu,%zu,%*s\n", model, file, &ctx,
                  &windows, &expected) == 5) {
        struct kv_err e = {""};
        struct kv_tokenizer *t;
        size_t n_bytes = 0, n = 0, n_back = 0;
        char *text = NULL, *back = NULL;
        int32_t *ids = NULL;

        snprintf(path, sizeof(path), "%s/models/%s", shared, model);
        if (kv_tokenizer_open(&t, path, &e))
            fail_msg("%s", e.msg);
        snprintf(path, sizeof(path), "%s/text/%s", shared, file);
        if (kv_file_read(path, &text, &n_bytes, &e) ||
            kv_tokenizer_encode(t, text, n_bytes, false, &ids, &n, NULL, &e) ||
            kv_tokenizer_decode(t, ids, n, true, &back, &n_back, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(n + kv_tokenizer_adds_bos(t), expected);
        assert_int_equal(n_back, n_bytes);
        assert_memory_equal(back, text, n_bytes);
        free(ids);
        free(text);
        free(back);
        kv_tokenizer_free(t);
    }
    fclose(f);
}

/* llama.cpp's vectors: .inp holds texts, each with this line after it, .out a
 * line of ids for each. */
static const char after_text[] = "\n__ggml_vocab_test__\n";

static void check_vectors(const char *stem)
{
    char path[8192], *texts, *lines, *text, *line, *end;
    struct kv_err e = {""};
    struct kv_tokenizer *t;
    size_t n_bytes, n = 0;

    if (kv_tokenizer_open(&t, stem, &e))
        fail_msg("%s", e.msg);
    snprintf(path, sizeof(path), "%s.inp", stem);
    assert_int_equal(kv_file_read(path, &texts, &n_bytes, &e), 0);
    snprintf(path, sizeof(path), "%s.out", stem);
    assert_int_equal(kv_file_read(path, &lines, &n_bytes, &e), 0);
    text = texts;
    line = lines;
    for (; *text; n++) {
        char expected[4096] = "", *eol = strchr(line, '\n');

        end = strstr(text, after_text); /* one file lacks the last */
        assert_non_null(eol);
        *eol = 0;
        if (end)
            *end = 0;
        if (*line) /* " 1 2", in one file "1 2" -> "1 2 " */
            snprintf(expected, sizeof(expected), "%s ", line + (*line == ' '));
        check_ids(t, text, false, expected);
        text = end ? end + strlen(after_text) : text + strlen(text);
        line = eol + 1;
    }
    assert_true(n > 0 && !*line);
    free(texts);
    free(lines);
    kv_tokenizer_free(t);
}

/* All that llama.cpp has of a kind that is read; those that are there. */
static void llama_cpp_vectors(void **state)
{
    static const char *const names[] = {
        "command-r", "deepseek-coder", "deepseek-llm", "falcon",   "gemma-4",
        "gpt-2",     "llama-bpe",      "llama-spm",    "mpt",      "phi-3",
        "qwen2",     "qwen35",         "refact",       "starcoder"};
    const char *shared = test_shared();
    size_t n = 0;

    (void)state;
    for (size_t i = 0; shared && i < COUNT(names); i++) {
        char stem[5000];

        snprintf(stem, sizeof(stem), "%s/tokenizers/ggml-vocab-%s.gguf", shared,
                 names[i]);
        if (!kv_file_exists(stem))
            continue;
        check_vectors(stem);
        n++;
    }
    if (!n)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_counts),
        cmocka_unit_test(llama_cpp_vectors),
    };

    return cmocka_run_group_tests_name("tokenizer_shared", tests, NULL, NULL);
}
