/* Text by the most probable token, one at a time, with the real cache. */
#ifndef KV_GREEDY_H
#define KV_GREEDY_H

#include "lib/calib.h"
#include "lib/model/model.h"

/* Continues ids[0 .. n_prompt), n_prompt >= 1, to n_prompt + n_new tokens;
 * ids has room for them.  The prompt is appended at once (schemes whose
 * prompt attends at full precision do so), the rest token by token.  spec is
 * fitted.  Ties: the lowest id.  Fails when a logit is not finite. */
int kv_greedy(struct kv_model *m, const struct kv_spec *spec,
              const struct kv_calib *calib, uint64_t seed, int32_t *ids,
              size_t n_prompt, size_t n_new, struct kv_err *e);

#endif
