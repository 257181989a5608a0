/* An answer as a choice of OpenAI's responses: its text, log-probabilities and
 * end. */
#ifndef KV_SERVE_CHOICE_H
#define KV_SERVE_CHOICE_H

#include "lib/json_file.h"
#include "tools/serve/queue.h"
#include "tools/serve/request.h"

struct kv_choice {
    const struct kv_tokenizer *tokenizer;
    const struct kv_request *request;
    const struct kv_request_prompt *prompt;
    const struct kv_answer *answer;
    struct kv_made made; /* the readable part of the answer */
};

/* The answer's inputs, but its spec.  sampling and stops are r's. */
void kv_choice_ask(struct kv_answer *a, const struct kv_request *r,
                   const struct kv_request_prompt *p, size_t ctx);

/* New tokens that the choice shows. */
size_t kv_choice_tokens(const struct kv_choice *c);
/* "length" or "stop" */
const char *kv_choice_finish(const struct kv_choice *c);

/* With the prompt where echo is asked for, and up to a stop string.  *sure: the
 * bytes that no later token changes; all of them once it has ended.  *text is
 * the caller's to free. */
int kv_choice_text(const struct kv_choice *c, char **text, size_t *bytes,
                   size_t *sure, struct kv_err *e);

/* Tokens that have log-probabilities, with the prompt's where echo is asked
 * for, and those from `from` on as the request's kind of response has them;
 * *offset: characters before them, then at their end.  NULL: failed. */
size_t kv_choice_scored(const struct kv_choice *c);
json_t *kv_choice_log_probs(const struct kv_choice *c, size_t from,
                            size_t *offset, struct kv_err *e);

#endif
