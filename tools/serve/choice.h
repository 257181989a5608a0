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

/* Sets the answer's inputs, except its spec.  sampling and stops still belong
 * to r. */
void kv_choice_ask(struct kv_answer *a, const struct kv_request *r,
                   const struct kv_request_prompt *p, size_t ctx);

/* The number of new tokens that the choice shows. */
size_t kv_choice_tokens(const struct kv_choice *c);
/* "length" or "stop" */
const char *kv_choice_finish(const struct kv_choice *c);

/* The choice's text: up to a stop string, after the prompt if the request has
 * echo.  *sure: the number of bytes that no later token changes; all bytes once
 * the answer has ended.  The caller frees *text. */
int kv_choice_text(const struct kv_choice *c, char **text, size_t *bytes,
                   size_t *sure, struct kv_err *e);

/* The first returns the number of tokens that have log-probabilities, the
 * prompt's included if the request has echo.  The second returns the
 * log-probabilities from token `from` on, in the form of the request's kind of
 * response; NULL: failed.  *offset: the number of characters before them, then
 * up to their end. */
size_t kv_choice_scored(const struct kv_choice *c);
json_t *kv_choice_log_probs(const struct kv_choice *c, size_t from,
                            size_t *offset, struct kv_err *e);

#endif
