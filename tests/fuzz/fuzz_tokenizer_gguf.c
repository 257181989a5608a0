/* A GGUF file with a vocabulary, and one text. */
#include "tests/fuzz/read_text.h"
#include "tests/tiny_gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] =
        "<s>abba ab<unk> a bb  aab123'S\n\xc3\xa9\xf0\x9f\x98\x80\xc3";

    fuzz_text(fuzz_file("x.gguf", data, n), text, sizeof(text) - 1);
    return 0;
}

#define KEY "tokenizer.ggml."

static void seed(const char *name, const char *model, const char *pre,
                 const char *const *tokens, const int32_t *types, size_t n)
{
    static const char *const merges[] = {"a b", "b b", "ab ba"};
    const float scores[16] = {0, 0, -1, -2, -3, -4, -5};
    struct tiny_gguf g = {0};
    struct tiny_bytes b;

    tiny_key_text(&g, KEY "model", model);
    tiny_key_text(&g, KEY "pre", pre);
    tiny_key_texts(&g, KEY "tokens", n, tokens);
    tiny_key_array(&g, KEY "token_type", TINY_I32, n, types,
                   n * sizeof(*types));
    tiny_key_array(&g, KEY "scores", TINY_F32, n, scores, n * sizeof(*scores));
    tiny_key_texts(&g, KEY "merges", 2, merges);
    tiny_key_u32(&g, KEY "bos_token_id", 0);
    tiny_key_u32(&g, KEY "unknown_token_id", 1);
    tiny_key(&g, KEY "add_bos_token", TINY_BOOL, "\1", 1);
    tiny_key(&g, KEY "add_space_prefix", TINY_BOOL, "", 1);
    b = tiny_gguf_bytes(&g);
    fuzz_seed(name, b.data, b.n);
    free(b.data);
    tiny_gguf_clear(&g);
}

void fuzz_make_seeds(void)
{
    static const char *const bytes[] = {"<s>",      "<unk>", "a",  "b",
                                        "\xc4\xa0", "ab",    "bb", "1"};
    static const char *const pieces[] = {
        "<s>", "<unk>", "a", "b", "ab", "bb", "\xe2\x96\x81", "<0xC3>"};
    const int32_t types[] = {3, 2, 1, 1, 1, 1, 1, 6};

    seed("gpt2", "gpt2", "gpt-2", bytes, types, 8);
    seed("llama3", "gpt2", "llama-bpe", bytes, types, 8);
    seed("gpt4o", "gpt2", "gpt-4o", bytes, types, 8);
    seed("llama", "llama", "default", pieces, types, 8);
}
