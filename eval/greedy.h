/* Text by the most probable token, one at a time, with the real cache. */
#ifndef KV_GREEDY_H
#define KV_GREEDY_H

#include "lib/calib.h"
#include "lib/model/model.h"

/* What a text is and becomes. */
struct kv_greedy {
    int32_t *ids; /* [n_prompt + n_new], of which the prompt is there */
    size_t n_prompt, n_new;
    const int32_t *end; /* ids after which it is over, [n_ends] */
    size_t n_ends;
    size_t made; /* out: new tokens, the one that ends it among them */
    double prompt_seconds, seconds; /* out: to the first new token; after it */
};

/* Continues g->ids, n_prompt >= 1, by n_new tokens at most.  The prompt is
 * appended at once (schemes whose prompt attends at full precision do so), the
 * rest token by token.  spec is fitted.  Ties: the lowest id.  Fails when a
 * logit is not finite. */
int kv_greedy(struct kv_model *m, const struct kv_spec *spec,
              const struct kv_calib *calib, uint64_t seed, struct kv_greedy *g,
              struct kv_err *e);

#endif
