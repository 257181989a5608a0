/* lib/tokenizer/gguf_ends: which tokens of a GGUF file end a text. */
#include "lib/base/file.h"
#include "lib/tokenizer/gguf_ends.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"

#include <stdlib.h>

enum { N = 8 };

/* The ends of a vocabulary, which keys may name too: their ids as digits. */
static void check(const char *const tokens[N], const char *key, int32_t id,
                  const char *want)
{
    char *path = kv_path_join(test_folder(), "m.gguf"), got[16] = "";
    struct tiny_gguf t = {0};
    struct kv_gguf g;
    struct kv_err e = {""};
    int32_t *ids;
    size_t n;

    tiny_key_texts(&t, "tokenizer.ggml.tokens", N, tokens);
    if (key)
        tiny_key(&t, key, TINY_I32, &id, 4);
    tiny_gguf_write(&t, path);
    if (kv_gguf_open(&g, path, &e))
        fail_msg("%s", e.msg);
    n = kv_gguf_ends(&g, &ids);
    for (int32_t i = 0; i < N; i++)
        for (size_t k = 0; k < n; k++)
            if (ids[k] == i)
                snprintf(got + strlen(got), sizeof(got) - strlen(got), "%d", i);
    assert_string_equal(got, want);
    assert_int_equal(n, strlen(want));
    free(ids);
    kv_gguf_clear(&g);
    tiny_gguf_clear(&t);
    free(path);
}

#define ID(name) "tokenizer.ggml." name "_token_id"

static void ends_are_llama_cpp_s(void **state)
{
    static const char *const phi[N] = {
        "a", "<|end|>", "<|endoftext|>", "b", "<|user|>", "</s>", "|end|", ""};
    static const char *const qwen[N] = {"<|fim_pad|>",   "<|im_start|>",
                                        "<|im_end|>",    "<|file_sep|>",
                                        "<|repo_name|>", "x",
                                        "<|end",         "<|fim_prefix|>"};
    static const char *const harmony[N] = {
        "<|end|>", "<|call|>", "<|return|>", "<|start|>", "a", "b", "c", "d"};
    static const char *const gemma[N] = {
        "<eos>", "<turn|>", "</s>", "<|tool_response>", "a", "b", "c", "d"};
    static const char *const plain[N] = {"a", "b", "c", "d",
                                         "e", "f", "g", "h"};

    (void)state;
    check(phi, NULL, 0, "125");
    check(phi, ID("eos"), 3, "1235");
    check(phi, ID("eot"), 1, "125");
    check(qwen, NULL, 0, "0234");
    check(qwen, ID("fim_pad"), 5, "2345");
    check(harmony, NULL, 0, "12");
    check(harmony, ID("eos"), 0, "12");
    check(gemma, NULL, 0, "013");
    check(plain, ID("eom"), 7, "7");
    check(plain, ID("eos"), -1, "");
    check(plain, ID("eot"), 8, "");
    check(plain, NULL, 0, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ends_are_llama_cpp_s)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
