/* How a text enters the cache.  Perplexities of different protocols cannot be
 * compared; every row names its protocol.
 *
 * all          The window is encoded whole at s = r = 0 (unless kept), every
 *              query attends to the decoded window.  Scored: n - 1 targets.
 * stream       The real cache: tokens are appended `step` at a time; sinks,
 *              residual and open blocks behave as in deployment; each query
 *              sees the cache's state at its own step.  Scored: n - 1 targets.
 * prefill:P    The first P tokens attend at full precision (hack: on codes,
 *              with prefill=codes) and are then compressed; the others are
 *              decoded against the compressed cache, one at a time.  Scored:
 *              n - 1 - P targets, of the queries that see this cache.
 * llama.cpp    As `all`, but a BOS replaces the first token of each window
 *              when the tokenizer adds one, and only the second half is scored.
 *
 * stream+own:N, prefill:P+own:N
 *              The last N tokens of a window are text that the model wrote
 *              (eval/own_text.h), and are the only ones scored. */
#ifndef KV_PROTOCOL_H
#define KV_PROTOCOL_H

#include "lib/base/err.h"
#include "lib/spec.h"

#include <stdbool.h>

enum kv_protocol_kind { KV_ALL_TOKENS, KV_STREAM, KV_PREFILL, KV_LLAMA_CPP };

struct kv_protocol {
    enum kv_protocol_kind kind;
    size_t prefill;   /* KV_PREFILL: P */
    size_t step;      /* KV_STREAM: tokens appended at a time, 1 unless told */
    size_t own;       /* kv_protocol_own(): N; 0: no own text */
    bool keep_window; /* KV_ALL_TOKENS, KV_LLAMA_CPP: keep the spec's s and r */
    char text[80];    /* canonical text: "stream", "stream:16", "prefill:512",
                       * "stream+own:512", "stream+own:512@0.8" */
};

int kv_protocol_parse(struct kv_protocol *p, const char *text, bool keep_window,
                      struct kv_err *e);

/* Adds n >= 1 tokens of the model's own text to the end of each window, after a
 * prompt of n_prompt tokens.  temperature: the sampling temperature of these
 * tokens; 0: greedy.  Fails for other protocols than stream and prefill:P, for
 * steps of several tokens, and for a P beyond the prompt: a token would see
 * another cache than a running model's. */
int kv_protocol_own(struct kv_protocol *p, size_t n_prompt, size_t n,
                    double temperature, struct kv_err *e);

/* Changes the spec as this protocol requires: s = r = 0 if windows are encoded
 * whole. */
void kv_protocol_spec(const struct kv_protocol *p, struct kv_spec *s);

/* Whether the cache's state is a function of time (stream, prefill). */
bool kv_protocol_steps(const struct kv_protocol *p);

/* Sets the scored positions of a window of n tokens to [first, last); the
 * logits of position i predict token i + 1. */
void kv_protocol_scored(const struct kv_protocol *p, size_t n, size_t *first,
                        size_t *last);

#endif
