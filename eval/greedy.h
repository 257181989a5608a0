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

/* The tokens' losses by the same literal loop of append and attend: position
 * i of tokens [n] scored against token i + 1, nll [n - 1].  The definition
 * that `stream` is held to. */
int kv_stream_literal(struct kv_model *m, const struct kv_spec *spec,
                      const struct kv_calib *calib, uint64_t seed,
                      const int32_t *tokens, size_t n, double *nll,
                      struct kv_err *e);

#endif
