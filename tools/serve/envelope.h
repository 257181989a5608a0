/* OpenAI's response objects around choices. */
#ifndef KV_SERVE_ENVELOPE_H
#define KV_SERVE_ENVELOPE_H

#include "tools/serve/choice.h"

#include <time.h>

struct kv_envelope {
    const struct kv_request *request;
    const char *model; /* name and spec */
    unsigned long number;
    time_t created;
};

/* The parts of a choice in one object: a whole answer, or a chunk's.  text may
 * be NULL in a chunk; log_probs (taken) and finish may be NULL. */
json_t *kv_envelope_choice(const struct kv_request *r, size_t index,
                           const char *text, size_t bytes, json_t *log_probs,
                           const char *finish);
/* A chunk's first, of a chat. */
json_t *kv_envelope_role(size_t index);

/* choices and usage (NULL: none) are taken. */
json_t *kv_envelope_close(const struct kv_envelope *v, json_t *choices,
                          json_t *usage);

/* Each prompt counts once. */
json_t *kv_envelope_usage(size_t prompt_tokens, size_t tokens);

#endif
