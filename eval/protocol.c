#include "eval/protocol.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kv_protocol_parse(struct kv_protocol *p, const char *text, bool keep_window,
                      struct kv_err *e)
{
    const size_t n = strcspn(text, ":");
    const char *number = text[n] ? text + n + 1 : NULL;
    char *end = NULL;
    unsigned long long value = 0;

    *p = (struct kv_protocol){.step = 1, .keep_window = keep_window};
    errno = 0;
    if (number)
        value = strtoull(number, &end, 10);
    if (number && (*number < '0' || *number > '9' || *end || !value || errno ||
                   value > SIZE_MAX / 2))
        return kv_fail(e,
                       "protocol '%s': expected a count of tokens after "
                       "the colon",
                       text);
    if (!strcmp(text, "all")) {
        p->kind = KV_ALL_TOKENS;
    } else if (!strcmp(text, "llama.cpp")) {
        p->kind = KV_LLAMA_CPP;
    } else if (n == 6 && !memcmp(text, "stream", n)) {
        p->kind = KV_STREAM;
        p->step = number ? value : 1;
    } else if (n == 7 && !memcmp(text, "prefill", n) && number) {
        p->kind = KV_PREFILL;
        p->prefill = value;
    } else {
        return kv_fail(e,
                       "unknown protocol '%s': expected all, stream, "
                       "stream:TOKENS, prefill:TOKENS or llama.cpp",
                       text);
    }
    if (keep_window && kv_protocol_steps(p))
        return kv_fail(e,
                       "--keep-window goes with the protocols all and "
                       "llama.cpp: %s always keeps sinks and residual",
                       text);
    if (p->kind == KV_STREAM && p->step > 1)
        snprintf(p->text, sizeof(p->text), "stream:%zu", p->step);
    else if (p->kind == KV_PREFILL)
        snprintf(p->text, sizeof(p->text), "prefill:%zu", p->prefill);
    else
        snprintf(p->text, sizeof(p->text), "%.*s%s", (int)n, text,
                 keep_window ? "+window" : "");
    return 0;
}

int kv_protocol_own(struct kv_protocol *p, size_t n_prompt, size_t n,
                    double temperature, struct kv_err *e)
{
    const size_t end = strlen(p->text);
    char *to = p->text + end;

    if (!kv_protocol_steps(p) || p->step > 1)
        return kv_fail(e,
                       "--own goes with the protocols stream and prefill:P, "
                       "which take one token at a time: not with %s",
                       p->text);
    if (p->prefill > n_prompt)
        return kv_fail(e,
                       "protocol %s: with --own it goes to the end of the "
                       "prompt at most, which has %zu tokens (-c)",
                       p->text, n_prompt);
    p->own = n;
    if (temperature > 0)
        snprintf(to, sizeof(p->text) - end, "+own:%zu@%g", n, temperature);
    else
        snprintf(to, sizeof(p->text) - end, "+own:%zu", n);
    return 0;
}

void kv_protocol_spec(const struct kv_protocol *p, struct kv_spec *s)
{
    if (kv_protocol_steps(p) || p->keep_window)
        return;
    for (int side = 0; side < KV_SIDES; side++) {
        kv_spec_set(s, (enum kv_side)side, "s", 0);
        kv_spec_set(s, (enum kv_side)side, "r", 0);
    }
    kv_spec_print(s);
}

bool kv_protocol_steps(const struct kv_protocol *p)
{
    return p->kind == KV_STREAM || p->kind == KV_PREFILL;
}

void kv_protocol_scored(const struct kv_protocol *p, size_t n, size_t *first,
                        size_t *last)
{
    *first = 0;
    *last = n - 1;
    if (p->kind == KV_PREFILL)
        *first = p->prefill;
    if (p->kind == KV_LLAMA_CPP)
        *first = n / 2;
    if (p->own && *first < n - 1 - p->own)
        *first = n - 1 - p->own;
}
