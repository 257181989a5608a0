/* A request for completions, its first byte for which: read, or refused in a
 * sentence with its field. */
#include "tests/fuzz/fuzz.h"
#include "tools/serve/request.h"

#include <string.h>

static const struct kv_request_rules *rules(void)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static const struct kv_chat_clock noon = {.now = 1738324800};
    static struct kv_request_rules r;
    static struct kv_tokenizer *tokenizer;
    static struct kv_chat_model chat;
    struct kv_err e = {""};

    if (!tokenizer)
        fuzz_expect(!kv_tokenizer_open(&tokenizer, "data/model", &e) &&
                        !kv_chat_model_read(&chat, "data/model", &e),
                    "a model");
    r = (struct kv_request_rules){
        .encoder = {.tokenizer = tokenizer,
                    .n_vocab = kv_tokenizer_vocab(tokenizer),
                    .chat = &chat,
                    .model = "model",
                    .template = "chatml"},
        .clock = &noon,
        .ctx = 512,
        .chat_tokens = 16,
        .one = &one};
    return &r;
}

static void check(const struct kv_request *r)
{
    fuzz_expect(r->model && r->n_prompts >= 1 && r->n >= 1, "an answer");
    fuzz_expect(r->n_prompts * r->n <= KV_REQUEST_CHOICES, "answers");
    fuzz_expect(r->max_tokens || r->echo, "tokens");
    fuzz_expect(!kv_sampling_check(&r->sampling, NULL), "a sampler");
    for (size_t i = 0; i < r->n_prompts; i++)
        fuzz_expect(r->prompt[i].n >= 1 && r->prompt[i].n < rules()->ctx &&
                        !!r->prompt[i].text == r->echo,
                    "a prompt");
    for (size_t i = 0; i < r->n_stops; i++)
        fuzz_expect(*r->stop[i] != 0, "no stop is empty");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const bool chat = n && data[0] == 'c';
    struct kv_request_fault f;
    struct kv_request r;
    const int rc = kv_request_read(
        &r, rules(), chat, (const char *)data + (n > 0), n - (n > 0), &f);

    fuzz_expect_sentence(rc, &f.e);
    if (!rc)
        check(&r);
    kv_request_clear(&r);
    return 0;
}

static void seed(const char *name, const char *text)
{
    fuzz_seed(name, text, strlen(text));
}

void fuzz_make_seeds(void)
{
    seed("text", "t{\"model\": \"m,kivi:b2g32\", \"prompt\": \"The old\","
                 " \"max_tokens\": 0, \"echo\": true, \"logprobs\": 5,"
                 " \"temperature\": 0.5, \"top_p\": 0.9, \"top_k\": 40,"
                 " \"repetition_penalty\": 1.1, \"seed\": -1, \"n\": 2,"
                 " \"best_of\": 2, \"stop\": [\"\\n\", \"b\"]}");
    seed("lists", "t{\"model\": \"m\", \"prompt\": [[1, 2], \"a\", [3]],"
                  " \"stream\": true, \"stream_options\":"
                  " {\"include_usage\": true}, \"logit_bias\": {},"
                  " \"suffix\": null, \"echo\": true}");
    seed("chat",
         "c{\"model\": \"m\", \"messages\": ["
         "{\"role\": \"system\", \"content\": \"a\"},"
         " {\"role\": \"user\", \"content\": \"\\u00e9\"}],"
         " \"chat_template\": \"zephyr\", \"logprobs\": true,"
         " \"top_logprobs\": 3, \"max_completion_tokens\": 4,"
         " \"response_format\": {\"type\": \"text\"}, \"user\": \"x\"}");
}
