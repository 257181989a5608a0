/* A request for completions, as OpenAI's clients write it. */
#ifndef KV_SERVE_REQUEST_H
#define KV_SERVE_REQUEST_H

#include "eval/prompts.h"
#include "eval/sampler.h"

#include <pthread.h>

enum {
    KV_REQUEST_CHOICES = 1024, /* most answers to a request */
    KV_REQUEST_STOPS = 64,
    KV_REQUEST_TOP = 20 /* most log-probabilities of a token */
};

/* The server's settings for all requests. */
struct kv_request_rules {
    struct kv_prompt_encoder encoder;  /* without its clock */
    const struct kv_chat_clock *clock; /* NULL: now */
    size_t ctx;                        /* tokens of a prompt and its answer */
    size_t chat_tokens;   /* max_tokens of a chat that gives none */
    pthread_mutex_t *one; /* one request is read at a time, as JSON and tokens
                           * take many times the memory of their text */
};

struct kv_request_prompt {
    int32_t *ids; /* [n] */
    size_t n;
    char *text; /* text to echo; NULL: without echo */
};

struct kv_request {
    bool chat;
    char *model;
    struct kv_request_prompt *prompt; /* [n_prompts] */
    size_t n_prompts;
    size_t n; /* answers to each prompt */
    size_t max_tokens, min_tokens;
    struct kv_sampling sampling;
    uint64_t seed;
    bool seeded; /* the request gives the seed */
    char **stop; /* [n_stops] */
    size_t n_stops;
    bool log_probs, echo, stream, usage;
    size_t n_top; /* with log_probs */
};

/* Why a request is refused, with 400: a sentence and the field. */
struct kv_request_fault {
    char field[64]; /* "": none */
    const char *code;
    struct kv_err e;
};

/* Reads body [bytes]; chat: for /v1/chat/completions.  Refuses a field that
 * would change the answer but is not implemented.  The caller calls
 * kv_request_clear(), also after a failure. */
int kv_request_read(struct kv_request *r, const struct kv_request_rules *rules,
                    bool chat, const char *body, size_t bytes,
                    struct kv_request_fault *f);
void kv_request_clear(struct kv_request *r);

/* Whether the request asks for the prompt's log-probabilities.  Then only the
 * first token runs as the prompt, and the others are decoded one by one. */
bool kv_request_scores(const struct kv_request *r);

#endif
