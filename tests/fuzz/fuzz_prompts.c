/* Prompts as JSON lines: read whole, or refused in a sentence. */
#include "eval/prompts.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const taken[] = {"text", NULL};
    const char *path = fuzz_file("p.jsonl", data, n);
    struct kv_prompts p;
    struct kv_err e = {""};
    const int rc = kv_prompts_read(&p, path, false, taken, &e);

    fuzz_expect_sentence(rc, &e);
    for (size_t i = 0; i < p.n && !rc; i++) {
        const struct kv_prompt *one = &p.at[i];

        fuzz_expect(!one->text == !!one->messages, "one of the two");
        for (size_t j = 0; j < one->n_stops; j++)
            fuzz_expect(*one->stop[j] != 0, "no stop is empty");
    }
    if (!rc)
        kv_prompts_clear(&p);
    return 0;
}

void fuzz_make_seeds(void)
{
    static const char text[] =
        "{\"prompt\": \"a\", \"id\": 1, \"stop\": [\"b\", \"\\n\"]}\n\n"
        "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"},"
        " {\"role\": \"user\", \"content\": \"\\u00e9\"},"
        " {\"role\": \"assistant\", \"content\": \"\"}],"
        " \"max_tokens\": 5, \"other\": {\"x\": [null, 1e9]}}\r\n";

    fuzz_seed("both", text, strlen(text));
}
