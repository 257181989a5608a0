/* vocab.json, merges.txt and tokenizer_config.json, a zero byte between them,
 * and one text. */
#include "lib/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"vocab.json", "merges.txt",
                                        "tokenizer_config.json"};
    static const char text[] = "abba<s> ab 12 <|endoftext|>\n\xc3\xa9\xc3";
    struct kv_tokenizer *t;
    struct kv_err e = {""};
    int32_t *ids;
    size_t n_ids;
    int rc;

    for (size_t i = 0; i < 3; i++) {
        const uint8_t *end = n ? memchr(data, 0, n) : NULL;
        const size_t part = end ? (size_t)(end - data) : n;

        fuzz_file(names[i], data, part);
        data += part + (end != NULL);
        n -= part + (end != NULL);
    }
    rc = kv_tokenizer_open(&t, fuzz_folder(), &e);
    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    rc = kv_tokenizer_encode(t, text, sizeof(text) - 1, true, &ids, &n_ids,
                             NULL, &e);
    fuzz_expect_sentence(rc, &e);
    for (size_t i = 0; !rc && i < n_ids; i++)
        fuzz_expect(ids[i] >= 0 && (size_t)ids[i] < kv_tokenizer_vocab(t),
                    "ids of the vocabulary");
    if (!rc)
        free(ids);
    kv_tokenizer_free(t);
    return 0;
}

void fuzz_make_seeds(void)
{
    static const char gpt2[] =
        "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<s>\": 3, \"<|endoftext|>\": 4}\0"
        "#version: 0.2\na b\n\0"
        "{\"tokenizer_class\": \"GPT2Tokenizer\", \"add_bos_token\": true,"
        " \"bos_token\": {\"content\": \"<s>\"}}";
    static const char qwen2[] =
        "{\"1\": 0, \"2\": 1, \"12\": 2}\0"
        "1 2\n\0"
        "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"added_tokens_decoder\":"
        " {\"3\": {\"content\": \"<s>\", \"special\": true}}}";

    fuzz_seed("gpt2", gpt2, sizeof(gpt2) - 1);
    fuzz_seed("qwen2", qwen2, sizeof(qwen2) - 1);
}
