/* vocab.json, merges.txt and tokenizer_config.json, a zero byte between them,
 * and one text. */
#include "tests/fuzz/read_text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"vocab.json", "merges.txt",
                                        "tokenizer_config.json"};
    static const char text[] = "abba<s> ab 12 <|endoftext|>\n\xc3\xa9\xc3";

    for (size_t i = 0; i < 3; i++) {
        const uint8_t *end = n ? memchr(data, 0, n) : NULL;
        const size_t part = end ? (size_t)(end - data) : n;

        fuzz_file(names[i], data, part);
        data += part + (end != NULL);
        n -= part + (end != NULL);
    }
    fuzz_text(fuzz_folder(), text, sizeof(text) - 1);
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
