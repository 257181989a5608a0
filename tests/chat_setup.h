/* Renders chat templates around one conversation. */
#ifndef KV_TESTS_CHAT_SETUP_H
#define KV_TESTS_CHAT_SETUP_H

#include "tests/test.h"

#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_template.h"

#include <string.h>

static const char talk[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \"A\"},"
    " {\"role\": \"assistant\", \"content\": \"B\"},"
    " {\"role\": \"user\", \"content\": \"C\"}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\","
    " \"eos_token\": \"</s>\"}";

/* 2025-01-31T12:00:00 */
static struct kv_chat_clock noon = {.now = 1738324800};

static inline char *render(const char *template, const char *values,
                           struct kv_err *e)
{
    json_t *v = json_loads(values, 0, NULL);
    char *text = NULL;
    size_t n = 0;

    assert_non_null(v);
    if (!kv_chat_render("m", template, v, &noon, &text, &n, e))
        assert_int_equal(strlen(text), n);
    json_decref(v);
    return text;
}

static inline void gives_of(const char *template, const char *values,
                            const char *want)
{
    struct kv_err e = {""};
    char *text = render(template, values, &e);

    if (!text)
        fail_msg("%s: %s", template, e.msg);
    assert_string_equal(text, want);
    free(text);
}

static inline void gives(const char *template, const char *want)
{
    gives_of(template, talk, want);
}

static inline void refuses(const char *template, const char *words)
{
    struct kv_err e = {""};

    assert_null(render(template, talk, &e));
    assert_says(e, words);
    assert_says(e, "m: the chat template, line ");
}

#endif
