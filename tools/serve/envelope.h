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

/* Makes the object of a choice, for a whole answer or for a chunk.  text may be
 * NULL in a chunk; log_probs (whose reference is taken) and finish may be
 * NULL. */
json_t *kv_envelope_choice(const struct kv_request *r, size_t index,
                           const char *text, size_t bytes, json_t *log_probs,
                           const char *finish);
/* Makes the first choice of a chat's stream, which has only a role. */
json_t *kv_envelope_role(size_t index);

/* Makes the whole response; takes the references of choices and usage (NULL:
 * none). */
json_t *kv_envelope_close(const struct kv_envelope *v, json_t *choices,
                          json_t *usage);

/* Makes the usage object; each prompt counts once, whatever the number of its
 * answers. */
json_t *kv_envelope_usage(size_t prompt_tokens, size_t tokens);

#endif
