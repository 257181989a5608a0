/* Attention error where a policy drops tokens: dense attention over exact keys
 * and values against attention over what is kept, and quantized. */
#ifndef KV_POLICY_ERROR_H
#define KV_POLICY_ERROR_H

#include "eval/attn_error.h"
#include "eval/protocol.h"
#include "lib/seq/policy_cache.h"

/* How the window of a dump meets the cache: as stream, token by token, or,
 * where the policy drops tokens of a prompt, as prefill of half of the window's
 * n tokens. */
struct kv_protocol kv_policy_protocol(const struct kv_policy *p, size_t n);

/* A window of one layer.  at: n_at query positions, ascending, each below
 * tokens.n; positions in the prompt do not count. */
struct kv_policy_window {
    const struct kv_spec *spec; /* that kv_policy_check() takes */
    struct kv_codec *const *codec;
    uint64_t seed;
    struct kv_tokens tokens;
    const size_t *at;
    size_t n_at;
};

/* Adds the error of each query at its time, and the bits at the end, of
 * [KV_SIDES].  Logits are compared of tokens that are held.  The divergence is
 *
 *   -ln (weight of what is held) + KL(exact, of what is held || stored),
 *
 * which is KL(exact || stored) where nothing was dropped.  Output: keys, values
 * or both are what is stored, of what is held in all three cases; both: by the
 * scheme's own attention, if it has one. */
int kv_policy_error_add(struct kv_attn_error *sum, struct kv_bits *bits,
                        const struct kv_policy_window *w, struct kv_err *e);

#endif
