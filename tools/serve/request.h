/* A request for completions, as OpenAI's clients write it. */
#ifndef KV_SERVE_REQUEST_H
#define KV_SERVE_REQUEST_H

#include "eval/prompts.h"
#include "eval/sampler.h"

#include <pthread.h>

enum {
    KV_REQUEST_CHOICES = 1024, /* answers to a request, at most */
    KV_REQUEST_STOPS = 64,
    KV_REQUEST_TOP = 20 /* log-probabilities of a token */
};

/* The server's settings for all requests. */
struct kv_request_rules {
    struct kv_prompt_encoder encoder;  /* without its clock */
    const struct kv_chat_clock *clock; /* NULL: now */
    size_t ctx;                        /* tokens of a prompt and its answer */
    size_t chat_tokens;   /* max_tokens of a chat that does not say */
    pthread_mutex_t *one; /* one request is read at a time, as JSON and tokens
                           * take many times the memory of their text */
};

struct kv_request_prompt {
    int32_t *ids; /* [n] */
    size_t n;
    char *text; /* text to echo; NULL: no echo was asked */
};

struct kv_request {
    bool chat;
    char *model;
    struct kv_request_prompt *prompt; /* [n_prompts] */
    size_t n_prompts;
    size_t n; /* answers to each */
    size_t max_tokens, min_tokens;
    struct kv_sampling sampling;
    uint64_t seed;
    bool seeded; /* the request says which */
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

/* Reads body [bytes], for /v1/chat/completions where chat.  A field that would
 * change the answer, and is not implemented, is refused.  *r is for
 * kv_request_clear(), also when it fails. */
int kv_request_read(struct kv_request *r, const struct kv_request_rules *rules,
                    bool chat, const char *body, size_t bytes,
                    struct kv_request_fault *f);
void kv_request_clear(struct kv_request *r);

/* The log-probabilities of the prompt are asked for: its first token is the
 * prompt, and the rest come one by one. */
bool kv_request_scores(const struct kv_request *r);

#endif
