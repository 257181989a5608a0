/* Attention error under a policy that drops tokens: dense attention over exact
 * keys and values against attention over the kept, quantized tokens. */
#ifndef KV_POLICY_ERROR_H
#define KV_POLICY_ERROR_H

#include "eval/attn_error.h"
#include "eval/protocol.h"
#include "lib/seq/policy_cache.h"

/* How a dump's window enters the cache: token by token (stream) or, if the
 * policy drops tokens of a prompt, with half of the window's n tokens as
 * prefill. */
struct kv_protocol kv_policy_protocol(const struct kv_policy *p, size_t n);

/* A window of one layer.  at: n_at query positions, ascending, each below
 * tokens.n; positions in the prompt do not count. */
struct kv_policy_window {
    const struct kv_spec *spec; /* kv_policy_check() accepts it */
    struct kv_codec *const *codec;
    uint64_t seed;
    struct kv_tokens tokens;
    const size_t *at;
    size_t n_at;
};

/* Adds the error of each query at its time, and the bits [KV_SIDES] at the end.
 * Logits are compared for kept tokens.  The divergence is
 *
 *   -ln (weight of kept tokens) + KL(exact over kept tokens || stored),
 *
 * which is KL(exact || stored) where nothing was dropped.  Output errors are
 * attention over kept tokens with keys, values or both replaced by the stored
 * ones; the case "both" takes the scheme's own attention, if it has one. */
int kv_policy_error_add(struct kv_attn_error *sum, struct kv_bits *bits,
                        const struct kv_policy_window *w, struct kv_err *e);

#endif
