/* Reads SentencePiece files that the test makes byte by byte. */
#include "tests/tokenizer_setup.h"

/* A field of bytes, at most 127 of them. */
static size_t put(uint8_t *to, unsigned field, const void *data, size_t n)
{
    to[0] = (uint8_t)(field << 3 | 2);
    to[1] = (uint8_t)n;
    memcpy(to + 2, data, n);
    return n + 2;
}

/* A number below 128. */
static size_t put_number(uint8_t *to, unsigned field, uint8_t x)
{
    size_t n = 0;

    if (field > 15) {
        to[n++] = (uint8_t)(field << 3 | 0x80);
        to[n++] = (uint8_t)(field >> 4);
    } else {
        to[n++] = (uint8_t)(field << 3);
    }
    to[n++] = x;
    return n;
}

static size_t put_piece(uint8_t *to, const char *text, float score,
                        uint8_t type)
{
    uint8_t piece[64];
    size_t n = put(piece, 1, text, strlen(text));

    piece[n++] = 2 << 3 | 5;
    memcpy(piece + n, &score, sizeof(score));
    n += sizeof(score);
    n += put_number(piece + n, 3, type);
    return put(to, 1, piece, n);
}

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };
enum { UNIGRAM = 1, BPE = 2 };
#define SPACE "\xe2\x96\x81"

/* extra: remove_extra_whitespaces. */
static size_t make(uint8_t *to, uint8_t type, bool extra)
{
    uint8_t inner[64];
    size_t n = 0, m;

    n += put_piece(to + n, "<unk>", 0, UNKNOWN);
    n += put_piece(to + n, "<s>", 0, CONTROL);
    n += put_piece(to + n, "<0x0A>", 0, BYTE);
    n += put_piece(to + n, SPACE, -9, NORMAL);
    n += put_piece(to + n, "a", -8, NORMAL);
    n += put_piece(to + n, "b", -7, NORMAL);
    n += put_piece(to + n, SPACE "a", -10, NORMAL);
    n += put_piece(to + n, "ab", -1, NORMAL);
    n += put_piece(to + n, SPACE SPACE, 0, USER);
    m = put_number(inner, 3, type);
    m += put_number(inner + m, 35, true);
    n += put(to + n, 2, inner, m);
    m = put_number(inner, 4, extra);
    n += put(to + n, 3, inner, m);
    return n;
}

static int open_bytes(struct kv_tokenizer **t, const uint8_t *data, size_t n,
                      const char *config, struct kv_err *e)
{
    const char *dir = test_folder();
    char *path = kv_path_join(dir, "tokenizer.model");
    FILE *f = fopen(path, "wb");
    int rc;

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
    if (config)
        write_file(dir, "tokenizer_config.json", config);
    rc = kv_tokenizer_open(t, dir, e);
    unlink(path);
    remove_folder(dir);
    free(path);
    return rc;
}

static void bpe(void **state)
{
    uint8_t data[512];
    const size_t n = make(data, BPE, false);
    struct kv_tokenizer *t;
    struct kv_err e = {""};

    (void)state;
    if (open_bytes(&t, data, n, NULL, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(kv_tokenizer_bos(t), 1);
    assert_true(kv_tokenizer_adds_bos(t));
    check_ids(t, "ab a\n", false, "3 7 6 2 ");
    check_ids(t, "a  a", false, "6 8 6 ");
    check_text(t, (int32_t[]){3, 7, 6, 8, 2}, 5, false, "ab a  \n");
    kv_tokenizer_free(t);
}

static void unigram(void **state)
{
    uint8_t data[512];
    const size_t n = make(data, UNIGRAM, false);
    struct kv_tokenizer *t;
    struct kv_err e = {""};

    (void)state;
    if (open_bytes(&t, data, n, "{\"add_bos_token\": false}", &e))
        fail_msg("%s", e.msg);
    assert_false(kv_tokenizer_adds_bos(t));
    check_ids(t, "ab a\n", false, "3 7 6 2 ");
    check_ids(t, "c", false, "3 0 ");
    kv_tokenizer_free(t);
}

/* A space at either end is removed. */
static void extra_spaces(void **state)
{
    uint8_t data[512];
    const size_t n = make(data, UNIGRAM, true);
    struct kv_tokenizer *t;
    struct kv_err e = {""};

    (void)state;
    if (open_bytes(&t, data, n, NULL, &e))
        fail_msg("%s", e.msg);
    check_ids(t, " ab a ", false, "3 7 6 ");
    check_ids(t, " ", false, "");
    check_ids(t, "ab\n a", false, "3 7 2 6 ");
    kv_tokenizer_free(t);
}

/* Every file that ends too early, and every one with a byte that is another,
 * opens or says why not. */
static void broken(void **state)
{
    uint8_t data[512];
    const size_t n = make(data, BPE, false);
    struct kv_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct kv_err e = {""};
        const uint8_t old = data[i];

        if (!open_bytes(&t, data, i, NULL, &e))
            kv_tokenizer_free(t);
        else
            assert_says(e, "tokenizer.model: ");
        data[i] = 0xff;
        if (!open_bytes(&t, data, n, NULL, &e))
            kv_tokenizer_free(t);
        else
            assert_says(e, "tokenizer.model: ");
        data[i] = old;
    }
}

static void refuses(void **state)
{
    uint8_t data[512];
    struct kv_tokenizer *t;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(open_bytes(&t, data, make(data, 3, false), NULL, &e), -1);
    assert_says(e, "tokenizer.model: model type 3 is not supported");
    assert_int_equal(open_bytes(&t, (const uint8_t *)"\x0a\x09x", 3, NULL, &e),
                     -1);
    assert_says(e, "a field of 9 bytes where 1 follow");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe),          cmocka_unit_test(unigram),
        cmocka_unit_test(extra_spaces), cmocka_unit_test(broken),
        cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("tokenizer_sentencepiece", tests, NULL,
                                       NULL);
}
