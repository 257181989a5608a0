/* Vocabularies of GGUF files, made here. */
#include "tests/charsmap.h"
#include "tests/tiny_gguf.h"
#include "tests/tokenizer_setup.h"

#include <math.h>

#define KEY "tokenizer.ggml."

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

struct token {
    const char *text;
    int32_t type;
    float score;
};

enum { MOST = 32 };

static void put_tokens(struct tiny_gguf *g, const struct token *t, size_t n,
                       bool scored)
{
    const char *text[MOST];
    int32_t type[MOST];
    float score[MOST];

    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        text[i] = t[i].text;
        type[i] = t[i].type;
        score[i] = t[i].score;
    }
    tiny_key_texts(g, KEY "tokens", n, text);
    tiny_key_array(g, KEY "token_type", TINY_I32, n, type, n * sizeof(*type));
    if (scored)
        tiny_key_array(g, KEY "scores", TINY_F32, n, score, n * sizeof(*score));
}

static void put_flag(struct tiny_gguf *g, const char *key, bool x)
{
    tiny_key(g, key, TINY_BOOL, &x, 1);
}

/* Writes g and clears it. */
static int open_gguf(struct kv_tokenizer **t, struct tiny_gguf *g,
                     struct kv_err *e)
{
    const char *dir = test_folder();
    char *path = kv_path_join(dir, "x.gguf");
    int rc;

    tiny_gguf_write(g, path);
    tiny_gguf_clear(g);
    rc = kv_tokenizer_open(t, path, e);
    unlink(path);
    rmdir(dir);
    free(path);
    return rc;
}

static struct kv_tokenizer *must_open_gguf(struct tiny_gguf *g)
{
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};

    if (open_gguf(&t, g, &e))
        fail_msg("%s", e.msg);
    return t;
}

static void refused(struct tiny_gguf *g, const char *why)
{
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};

    assert_int_equal(open_gguf(&t, g, &e), -1);
    assert_says(e, "x.gguf: ");
    assert_says(e, why);
}

#define SPACE "\xe2\x96\x81"

static const struct token pieces[] = {
    {"<unk>", UNKNOWN, 0}, {"<s>", CONTROL, 0},     {"</s>", CONTROL, 0},
    {"<0x0A>", BYTE, 0},   {SPACE, NORMAL, -9},     {"a", NORMAL, -8},
    {"b", NORMAL, -7},     {SPACE "a", NORMAL, -2}, {"ab", NORMAL, -1},
    {"  ", USER, 0},       {"", UNUSED, 0},         {"s", NORMAL, -6},
    {"<s", NORMAL, -4},    {"<", NORMAL, -5},       {">", NORMAL, -5}};

static void put_llama(struct tiny_gguf *g)
{
    tiny_key_text(g, KEY "model", "llama");
    put_tokens(g, pieces, COUNT(pieces), true);
}

/* "ab" has the better score than " a"; a control token is made of no text. */
static void scores(void **state)
{
    const int32_t ids[] = {4, 8, 7, 3};
    struct tiny_gguf g = {0};
    struct kv_tokenizer *t;

    (void)state;
    put_llama(&g);
    tiny_key_u32(&g, KEY "bos_token_id", 1);
    t = must_open_gguf(&g);
    assert_int_equal(kv_tokenizer_vocab(t), COUNT(pieces));
    assert_int_equal(kv_tokenizer_bos(t), 1);
    assert_true(kv_tokenizer_adds_bos(t));
    check_ids(t, "ab a\n", false, "4 8 7 3 ");
    check_ids(t, "a  a", false, "7 9 7 ");
    check_ids(t, "<s>a", false, "4 12 14 5 ");
    check_ids(t, "<s>a", true, "1 7 ");
    check_ids(t, "c", false, "4 0 ");
    check_text(t, ids, COUNT(ids), false, "ab a\n");
    kv_tokenizer_free(t);
}

static void scores_without_prefix(void **state)
{
    const int32_t ids[] = {8, 7};
    struct tiny_gguf g = {0};
    struct kv_tokenizer *t;

    (void)state;
    put_llama(&g);
    put_flag(&g, KEY "add_space_prefix", false);
    put_flag(&g, KEY "add_bos_token", false);
    t = must_open_gguf(&g);
    assert_int_equal(kv_tokenizer_bos(t), -1);
    assert_false(kv_tokenizer_adds_bos(t));
    check_ids(t, "ab a", false, "8 7 ");
    check_text(t, ids, COUNT(ids), false, "ab a");
    kv_tokenizer_free(t);
}

/* The same letter again and again is joined from the left. */
static void repeats(void **state)
{
    static const struct token row[] = {{"<unk>", UNKNOWN, 0},
                                       {"a", NORMAL, -3},
                                       {"aa", NORMAL, -1},
                                       {"aaa", NORMAL, -2}};
    struct tiny_gguf g = {0};
    struct kv_tokenizer *t;

    (void)state;
    tiny_key_text(&g, KEY "model", "llama");
    put_tokens(&g, row, COUNT(row), true);
    put_flag(&g, KEY "add_space_prefix", false);
    put_flag(&g, KEY "add_bos_token", false);
    t = must_open_gguf(&g);
    check_ids(t, "aaaa", false, "2 2 ");
    check_ids(t, "aaaaa", false, "2 3 ");
    kv_tokenizer_free(t);
}

/* \xc4\xa0 represents a space in the alphabet of bytes, \xc4\x8a represents
 * \n. */
static const struct token words[] = {
    {"1", NORMAL, 0},         {"2", NORMAL, 0},        {"3", NORMAL, 0},
    {"4", NORMAL, 0},         {"12", NORMAL, 0},       {"123", NORMAL, 0},
    {"1234", NORMAL, 0},      {"a", NORMAL, 0},        {"B", NORMAL, 0},
    {"aB", NORMAL, 0},        {"'", NORMAL, 0},        {"S", NORMAL, 0},
    {"'S", NORMAL, 0},        {"!", NORMAL, 0},        {"\xc4\xa0", NORMAL, 0},
    {"\xc4\xa0!", NORMAL, 0}, {"\xc4\x8a", NORMAL, 0}, {"!\xc4\x8a", NORMAL, 0},
    {"<|end|>", CONTROL, 0},  {"<tool>", USER, 0},     {"321", NORMAL, 0}};

static const char *const joins[] = {"1 2", "12 3",       "123 4",     "a B",
                                    "' S", "! \xc4\x8a", "\xc4\xa0 !"};

static void put_gpt2(struct tiny_gguf *g, const char *pre)
{
    tiny_key_text(g, KEY "model", "gpt2");
    if (pre)
        tiny_key_text(g, KEY "pre", pre);
    put_tokens(g, words, COUNT(words), false);
    tiny_key_texts(g, KEY "merges", COUNT(joins), joins);
    tiny_key_u32(g, KEY "bos_token_id", 18);
}

/* Each way to cut, on one text. */
static void cuts(void **state)
{
    static const struct {
        const char *pre, *ids;
    } rows[] = {
        {"gpt-2", "6 9 10 11 15 16 "},
        {"mpt", "6 9 10 11 15 16 "},
        {"smollm", "0 1 2 3 9 10 11 15 16 "},
        {"command-r", "0 1 2 3 9 10 11 15 16 "},
        {"falcon", "5 3 9 10 11 14 13 16 "},
        {"default", "5 3 9 10 11 14 13 16 "},
        {"llama-bpe", "5 3 9 12 14 17 "},
        {"dbrx", "5 3 9 12 14 17 "},
        {"glm4", "5 3 9 12 14 17 "},
        {"qwen2", "0 1 2 3 9 12 14 17 "},
        {"qwen35", "0 1 2 3 9 12 14 17 "},
        {"tekken", "0 1 2 3 7 8 12 14 17 "},
        {"gpt-4o", "5 3 7 8 12 14 17 "},
        {"deepseek-llm", "6 9 10 11 15 16 "},
        {"deepseek-coder", "0 1 2 3 9 10 11 15 16 "},
        {"deepseek-v3", "5 3 9 12 14 17 "},
        {"bloom", "6 9 12 14 17 "},
        {"viking", "0 1 2 3 9 12 14 17 "},
        {"bailingmoe", "0 1 2 3 9 12 14 17 "},
        {"seed-coder", "0 1 2 3 9 12 15 16 "},
        {"minicpm5", "5 3 9 12 14 17 "},
        {"hy_v4", "5 3 9 12 14 17 "},
        {"spark2_5", "0 1 2 3 9 12 15 16 "},
        {"afmoe", "0 1 2 3 9 12 14 17 "},
        {"youtu", "0 1 2 3 7 8 12 14 17 "},
        {"granite-embed-multi-97m", "5 3 7 8 12 14 17 "},
        {"tiny_aya", "5 3 7 8 12 14 17 "},
        {"laguna", "0 1 2 3 9 12 15 16 "},
        {"ufakzeka", "0 1 2 3 9 12 14 17 "},
        {"jais-2", "5 3 9 12 14 17 "},
        {"exaone-moe", "0 1 2 3 9 12 14 17 "},
        {"chameleon", "0 1 2 3 9 10 11 14 13 16 "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct tiny_gguf g = {0};
        struct kv_tokenizer *t;

        put_gpt2(&g, rows[i].pre);
        t = must_open_gguf(&g);
        check_ids(t, "1234aB'S !\n", false, rows[i].ids);
        kv_tokenizer_free(t);
    }
}

static void added(void **state)
{
    struct tiny_gguf g = {0};
    struct kv_tokenizer *t;

    (void)state;
    put_gpt2(&g, "gpt-2");
    t = must_open_gguf(&g);
    check_ids(t, "a<tool>a", false, "7 19 7 ");
    check_ids(t, "a<|end|>1", true, "7 18 0 ");
    assert_int_equal(kv_tokenizer_bos(t), 18);
    assert_false(kv_tokenizer_adds_bos(t));
    check_text(t, (int32_t[]){9, 15, 17, 19, 18}, 5, false, "aB !!\n<tool>");
    kv_tokenizer_free(t);
}

/* Llama 3's vocabulary is looked into before its merges, and begins a text. */
static void whole_words(void **state)
{
    struct tiny_gguf g = {0};
    struct kv_tokenizer *t;

    (void)state;
    put_gpt2(&g, "llama-bpe");
    t = must_open_gguf(&g);
    check_ids(t, "321", false, "20 ");
    assert_true(kv_tokenizer_adds_bos(t));
    kv_tokenizer_free(t);
}

/* Characters represent themselves, and lines are separate pieces. */
static void raw(void **state)
{
    static const struct token row[] = {
        {"<unk>", UNKNOWN, 0}, {"a", NORMAL, 0},   {"b", NORMAL, 0},
        {SPACE, NORMAL, 0},    {"\n", NORMAL, 0},  {SPACE "a", NORMAL, 0},
        {"\n\n", NORMAL, 0},   {"a\n", NORMAL, 0}, {"<0xC3>", BYTE, 0},
        {"<0xA9>", BYTE, 0}};
    static const char *const merges[] = {"a \n", SPACE " a", "\n \n"};
    static const char *const names[][2] = {{"gemma4", NULL},
                                           {"gpt2", "sarvam-moe"}};

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct tiny_gguf g = {0};
        struct kv_tokenizer *t;

        tiny_key_text(&g, KEY "model", names[i][0]);
        if (names[i][1])
            tiny_key_text(&g, KEY "pre", names[i][1]);
        put_tokens(&g, row, COUNT(row), false);
        tiny_key_texts(&g, KEY "merges", COUNT(merges), merges);
        tiny_key_u32(&g, KEY "unknown_token_id", 0);
        t = must_open_gguf(&g);
        check_ids(t, "b a\n\n\xc3\xa9", false, "2 5 6 8 9 ");
        check_text(t, (int32_t[]){2, 5, 6, 8, 9}, 5, false, "b a\n\n\xc3\xa9");
        kv_tokenizer_free(t);
    }
}

/* Names that llama.cpp knows, for embeddings or with rules of their own. */
static void refuses_cuts(void **state)
{
    static const char *const names[] = {"whitespace", "roberta-bpe",
                                        "jina-v1-en", "jina-v2-code",
                                        "kimi-k2",    "superbpe"};

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct tiny_gguf g = {0};

        put_gpt2(&g, names[i]);
        refused(&g, names[i]);
    }
}

static void refuses_models(void **state)
{
    static const float none[2];
    struct tiny_gguf g = {0};

    (void)state;
    refused(&g, "no key tokenizer.ggml.tokens");
    put_tokens(&g, words, COUNT(words), false);
    refused(&g, "no key tokenizer.ggml.model: the file has no vocabulary");
    put_tokens(&g, words, COUNT(words), false);
    tiny_key_text(&g, KEY "model", "bert");
    refused(&g, "model is \"bert\", which is not supported, only gpt2, gemma4");
    put_gpt2(&g, NULL);
    refused(&g, "no key tokenizer.ggml.pre");
    put_gpt2(&g, "gpt");
    refused(&g, "pre is \"gpt\", which is not supported");
    put_tokens(&g, words, COUNT(words), false);
    tiny_key_text(&g, KEY "model", "gpt2");
    tiny_key_text(&g, KEY "pre", "gpt-2");
    refused(&g, "no key tokenizer.ggml.merges");
    put_tokens(&g, pieces, COUNT(pieces), false);
    tiny_key_text(&g, KEY "model", "llama");
    refused(&g, "no key tokenizer.ggml.scores");
    put_tokens(&g, pieces, COUNT(pieces), false);
    tiny_key_text(&g, KEY "model", "llama");
    tiny_key_array(&g, KEY "scores", TINY_F32, 2, none, sizeof(none));
    refused(&g, "scores has 2 values for 15 tokens");
}

/* Normalized by a table, with superfluous spaces removed. */
static void unigram(void **state)
{
    static const struct token row[] = {
        {"<pad>", CONTROL, 0}, {"</s>", CONTROL, 0},    {"<unk>", UNKNOWN, 0},
        {SPACE, NORMAL, -2},   {SPACE "a", NORMAL, -3}, {"a", NORMAL, -2.5f},
        {"b", NORMAL, -4}};
    uint8_t table[CHARSMAP_BYTES];
    struct tiny_gguf g = {0};
    struct kv_tokenizer *t;

    (void)state;
    tiny_key_text(&g, KEY "model", "t5");
    put_tokens(&g, row, COUNT(row), true);
    make_charsmap(table);
    tiny_key_array(&g, KEY "precompiled_charsmap", TINY_I8, sizeof(table),
                   table, sizeof(table));
    put_flag(&g, KEY "add_space_prefix", true);
    put_flag(&g, KEY "remove_extra_whitespaces", true);
    put_flag(&g, KEY "add_eos_token", true);
    tiny_key_u32(&g, KEY "unknown_token_id", 2);
    t = must_open_gguf(&g);
    assert_false(kv_tokenizer_adds_bos(t));
    check_ids(t, "a", false, "4 ");
    check_ids(t, "  \xef\xbc\xa1   b ", false, "4 3 6 ");
    check_ids(t, "ac", false, "4 2 ");
    check_text(t, (int32_t[]){4, 3, 6}, 3, false, "a b");
    kv_tokenizer_free(t);
}

static void refuses_flags(void **state)
{
    struct tiny_gguf g = {0};

    (void)state;
    put_llama(&g);
    refused(&g, "no key tokenizer.ggml.bos_token_id, but a text begins");
    put_llama(&g);
    tiny_key_u32(&g, KEY "bos_token_id", 15);
    refused(&g, "bos_token_id is 15, no id of a vocabulary of 15");
    put_llama(&g);
    put_flag(&g, KEY "add_eos_token", true);
    refused(&g, "add_eos_token is true, which is not supported");
    put_llama(&g);
    put_flag(&g, KEY "remove_extra_whitespaces", true);
    refused(&g, "remove_extra_whitespaces is true");
    put_llama(&g);
    tiny_key_array(&g, KEY "precompiled_charsmap", TINY_I8, 2, "ab", 2);
    refused(&g, "precompiled_charsmap is not supported where");
    tiny_key_text(&g, KEY "model", "t5");
    put_tokens(&g, pieces, COUNT(pieces), true);
    refused(&g, "no key tokenizer.ggml.unknown_token_id");
    tiny_key_text(&g, KEY "model", "t5");
    put_tokens(&g, pieces, COUNT(pieces), true);
    tiny_key_u32(&g, KEY "unknown_token_id", 0);
    tiny_key_array(&g, KEY "precompiled_charsmap", TINY_I8, 2, "ab", 2);
    refused(&g, "precompiled_charsmap: a trie of 0 bytes in a table of 2");
    put_llama(&g);
    put_flag(&g, KEY "normalizer.lowercase", true);
    refused(&g, "key tokenizer.ggml.normalizer.lowercase is not supported");
    put_gpt2(&g, "gpt-2");
    put_flag(&g, KEY "add_space_prefix", true);
    refused(&g, "add_space_prefix is true");
}

static void refused_tokens(struct token second, const char *why)
{
    const struct token both[] = {{"a", NORMAL, 0}, second};
    struct tiny_gguf g = {0};

    tiny_key_text(&g, KEY "model", "llama");
    put_tokens(&g, both, 2, true);
    refused(&g, why);
}

static void refuses_tokens(void **state)
{
    char huge[1026];

    (void)state;
    memset(huge, 'x', sizeof(huge));
    huge[sizeof(huge) - 1] = 0;
    refused_tokens((struct token){"a", NORMAL, 0}, "tokens 0 and 1 are both");
    refused_tokens((struct token){"\xff", NORMAL, 0}, "token 1 is not UTF-8");
    refused_tokens((struct token){"b", 7, 0}, "token 1 has type 7");
    refused_tokens((struct token){huge, NORMAL, 0}, "token 1 has 1025 bytes");
    refused_tokens((struct token){"b", NORMAL, NAN}, "score of token 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores),
        cmocka_unit_test(scores_without_prefix),
        cmocka_unit_test(repeats),
        cmocka_unit_test(cuts),
        cmocka_unit_test(added),
        cmocka_unit_test(whole_words),
        cmocka_unit_test(raw),
        cmocka_unit_test(unigram),
        cmocka_unit_test(refuses_cuts),
        cmocka_unit_test(refuses_models),
        cmocka_unit_test(refuses_flags),
        cmocka_unit_test(refuses_tokens),
    };

    return cmocka_run_group_tests_name("tokenizer_gguf", tests, NULL, NULL);
}
