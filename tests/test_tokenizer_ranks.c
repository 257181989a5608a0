/* tiktoken's files: as many ranks as real ones have, made here. */
#include "lib/base/base64.h"
#include "tests/tokenizer_setup.h"

enum { LLAMA = 128000, QWEN = 151643, PAIRS = 256, TRIPLES = PAIRS + 65536 };

/* Every byte, every pair of bytes, and pairs followed by a z or y. */
static size_t make_token(size_t rank, uint8_t token[3])
{
    const size_t n = rank < PAIRS ? 1 : rank < TRIPLES ? 2 : 3;
    const size_t i = rank - (n == 1 ? 0 : n == 2 ? PAIRS : TRIPLES);

    token[0] = (uint8_t)(n == 1 ? i : i >> 8);
    token[1] = (uint8_t)i;
    token[2] = (uint8_t)('z' - (i >> 16));
    return n;
}

static size_t id_of(const char *pair)
{
    return PAIRS + ((size_t)(uint8_t)pair[0] << 8) + (uint8_t)pair[1];
}

/* first: this line instead of the file's own. */
static void write_ranks(const char *path, size_t n, const char *first)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    for (size_t rank = 0; rank < n; rank++) {
        uint8_t token[3];
        const size_t bytes = make_token(rank, token);
        char *s = kv_base64_encode(token, bytes);

        if (rank || !first)
            fprintf(f, "%s %zu\n", s, rank);
        else
            fputs(first, f);
        free(s);
    }
    fclose(f);
}

static int open_ranks(struct kv_tokenizer **t, const char *name, size_t n,
                      const char *first, const char *config, struct kv_err *e)
{
    const char *dir = test_folder();
    char *path = kv_path_join(dir, name);
    int rc;

    write_ranks(path, n, first);
    if (config) {
        char *text = quoted(config);

        write_file(dir, "tokenizer_config.json", text);
        free(text);
    }
    rc = kv_tokenizer_open(t, dir, e);
    unlink(path);
    remove_folder(dir);
    free(path);
    return rc;
}

static struct kv_tokenizer *must(const char *name, size_t n, const char *config)
{
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};

    if (open_ranks(&t, name, n, NULL, config, &e))
        fail_msg("%s", e.msg);
    return t;
}

static void llama(void **state)
{
    struct kv_tokenizer *t = must("tokenizer.model", LLAMA, NULL);
    char expected[64];

    (void)state;
    assert_int_equal(kv_tokenizer_vocab(t), LLAMA + 256);
    assert_int_equal(kv_tokenizer_bos(t), LLAMA);
    assert_true(kv_tokenizer_adds_bos(t));
    snprintf(expected, sizeof(expected), "%zu %d ", id_of("ab"), 'c');
    check_ids(t, "abc", false, expected);
    snprintf(expected, sizeof(expected), "%zu %zu %d ", id_of("ab") + 65536,
             id_of("12"), '3');
    check_ids(t, "abz123", false, expected);
    snprintf(expected, sizeof(expected), "%zu %zu ", id_of("\xc3\xa9"),
             id_of("\n\n"));
    check_ids(t, "\xc3\xa9\n\n", false, expected);
    check_ids(t, "<|eot_id|><|reserved_special_token_245|>", true,
              "128009 128255 ");
    check_text(t, (int32_t[]){LLAMA, (int32_t)id_of("ab"), 0xc3, 0xa9}, 4,
               false, "ab\xc3\xa9");
    kv_tokenizer_free(t);
}

/* The config's list replaces the known names. */
static void listed(void **state)
{
    struct kv_tokenizer *t =
        must("tokenizer.model", LLAMA,
             "{'bos_token': '<|begin_of_text|>', 'added_tokens_decoder':"
             " {'128000': {'content': '<|begin_of_text|>', 'special': true},"
             " '128001': {'content': '<|mine|>', 'special': true}}}");

    (void)state;
    assert_int_equal(kv_tokenizer_vocab(t), LLAMA + 2);
    check_ids(t, "<|mine|><|begin_of_text|>", true, "128001 128000 ");
    kv_tokenizer_free(t);
}

/* Digits are separate pieces, a text is normalized to NFC, and the class is
 * known. */
static void qwen(void **state)
{
    struct kv_tokenizer *t =
        must("qwen.tiktoken", QWEN,
             "{'tokenizer_class': 'QWenTokenizer', 'auto_map':"
             " {'AutoTokenizer': ['tokenization_qwen.QWenTokenizer', null]}}");
    char expected[64];

    (void)state;
    assert_int_equal(kv_tokenizer_vocab(t), QWEN + 208);
    assert_false(kv_tokenizer_adds_bos(t));
    check_ids(t, "12", false, "49 50 ");
    snprintf(expected, sizeof(expected), "%zu ", id_of("\xc3\xa9"));
    check_ids(t, "e\xcc\x81", false, expected);
    check_ids(t, "<|endoftext|><|im_end|><|extra_204|>", true,
              "151643 151645 151850 ");
    kv_tokenizer_free(t);
}

static void refuses(void **state)
{
    static const struct {
        size_t n;
        const char *first, *why;
    } rows[] = {
        {3, NULL, "fewer ranks than the 128000 of Llama 3"},
        {QWEN, NULL, "more ranks than the 128000 of Llama 3"},
        {3, "AB== 0\n", "line 1 is not a token in base64 and its rank"},
        {3, "AAA 0\n", "line 1 is not a token in base64 and its rank"},
        {3, "AA==\n", "line 1 is not a token in base64 and its rank"},
        {3, "AA== 00\n", "line 1 has not the rank 0"},
        {3, "AA== 0\n\n", "line 2 is not a token in base64"},
        {LLAMA, "AAAAAAAA 0\n", "no token for the byte 0x00"},
        {LLAMA, "AQ== 0\n", "tokens 0 and 1 are both"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t;
        struct kv_err e = {""};

        assert_int_equal(open_ranks(&t, "tokenizer.model", rows[i].n,
                                    rows[i].first, NULL, &e),
                         -1);
        assert_says(e, "tokenizer.model: ");
        assert_says(e, rows[i].why);
    }
}

/* RFC 4648's, there and back. */
static void base64(void **state)
{
    static const char *const rows[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"\xff\xfe", "//4="}};
    static const char *const bad[] = {
        "Zg=", "Zh==", "Zm9=", "=Zg=", "Z g=", "Zg==Zg==", "===="};
    uint8_t out[16];
    size_t n;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *s =
            kv_base64_encode((const uint8_t *)rows[i][0], strlen(rows[i][0]));

        assert_string_equal(s, rows[i][1]);
        assert_int_equal(kv_base64_decode(s, strlen(s), out, &n), 0);
        assert_int_equal(n, strlen(rows[i][0]));
        assert_memory_equal(out, rows[i][0], n);
        free(s);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(kv_base64_decode(bad[i], strlen(bad[i]), out, &n), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),  cmocka_unit_test(listed),
        cmocka_unit_test(qwen),   cmocka_unit_test(refuses),
        cmocka_unit_test(base64),
    };

    return cmocka_run_group_tests_name("tokenizer_ranks", tests, NULL, NULL);
}
