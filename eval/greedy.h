/* Text by the most probable token, one at a time, with the real cache. */
#ifndef KV_GREEDY_H
#define KV_GREEDY_H

#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/model/model.h"
#include "lib/seq/bits.h"

/* What a text is and becomes. */
struct kv_greedy {
    const struct kv_spec *spec; /* fitted */
    int32_t *ids; /* [n_prompt + n_new], of which the prompt is there */
    size_t n_prompt, n_new;
    const int32_t *end; /* ids after which it is over, [n_ends] */
    size_t n_ends;
    size_t made; /* out: new tokens, the one that ends it among them */
    double prompt_seconds, seconds; /* out: to the first new token; after it */
    struct kv_bits bits; /* out: of the caches at the end, without shared_bytes
                          * and nominal; a policy drops tokens after the prompt
                          * or every token */
};

/* Continues n prompts, n_prompt >= 1 each, by their n_new >= 1 tokens at most,
 * each under its spec, of which kv_policy_check() takes specs with a policy as
 * prefill:n_prompt, or kv_prefill_check() where the policy has patterns.  They
 * decode together, so that a step reads the weights once: seconds are of all.
 * A prompt is appended at once (schemes whose prompt attends at full precision
 * do so, and share the pass of the same prompt), the rest token by token, by
 * products in f32 (kv_model_few_in_f32(), which holds afterwards too).  On
 * the CPU a text has the same ids whatever is made beside it.  Ties: the lowest
 * id.  progress: NULL, or the largest n_new steps.  Fails when a logit is not
 * finite. */
int kv_greedy(struct kv_model *m, struct kv_greedy *g, size_t n,
              const struct kv_calib *calib, uint64_t seed,
              struct kv_progress *progress, struct kv_err *e);

#endif
