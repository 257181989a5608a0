/* Text by the most probable token, one at a time, with the real cache. */
#ifndef KV_GREEDY_H
#define KV_GREEDY_H

#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/model/model.h"

/* What a text is and becomes. */
struct kv_greedy {
    const struct kv_spec *spec; /* fitted */
    int32_t *ids; /* [n_prompt + n_new], of which the prompt is there */
    size_t n_prompt, n_new;
    const int32_t *end; /* ids after which it is over, [n_ends] */
    size_t n_ends;
    size_t made; /* out: new tokens, the one that ends it among them */
    double prompt_seconds, seconds; /* out: to the first new token; after it */
    double kept; /* out: the share of tokens held at the end; 1 without a
                  * policy that drops them, after the prompt or every token */
};

/* Continues the same prompt, n_prompt >= 1, by the same n_new tokens at most
 * under each of n specs, of which kv_policy_check() takes those with a policy
 * as prefill:n_prompt, or kv_prefill_check() where it has patterns.  They
 * decode together, so that a step reads the weights once: what it takes is
 * seconds of all.  The prompt is appended at once (schemes whose prompt attends
 * at full precision do so, and share its pass), the rest token by token.  On
 * the CPU a text has the same ids whatever is made beside it.  Ties: the lowest
 * id.  progress: NULL, or n_new steps. Fails when a logit is not finite. */
int kv_greedy(struct kv_model *m, struct kv_greedy *g, size_t n,
              const struct kv_calib *calib, uint64_t seed,
              struct kv_progress *progress, struct kv_err *e);

#endif
