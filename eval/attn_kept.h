/* What a policy leaves of the inputs of attention (attn_bench.h), to time. */
#ifndef KV_ATTN_KEPT_H
#define KV_ATTN_KEPT_H

#include "eval/attn_bench.h"

struct kv_attn_kept {
    struct kv_attn_inputs inputs;
    struct kv_bits bits; /* both sides, over all tokens; without shared_bytes
                          * and nominal */
    double rel_err;
};

/* Whether the spec's policy can run on a layer of so many tokens and queries.
 * no_layer: the shape is of no layer in particular; then fails where layers
 * keep different numbers of tokens. */
int kv_attn_kept_check(const struct kv_attn_inputs *in,
                       const struct kv_spec *spec, const struct kv_calib *calib,
                       bool no_layer, struct kv_err *e);

/* The tokens before the newest nq are a prompt, of which the policy drops what
 * it will; a budget is a share of it.  Then these nq come in, and attend:
 * rel_err is against in->exact, dense attention over all n.
 *
 * inputs: as many tokens as attention passes over (kv_policy_cache_span()): the
 * rows that are kept, each KV head's own, moved together, over again where
 * blocks hold dropped ones.  Their values and positions are not those that were
 * measured: they serve to take the time.
 *
 * in: with all_q where the policy counts attention. */
int kv_attn_kept_new(struct kv_attn_kept *k, const struct kv_attn_inputs *in,
                     const struct kv_spec *spec, const struct kv_calib *calib,
                     uint64_t seed, struct kv_err *e);
void kv_attn_kept_clear(struct kv_attn_kept *k);

#endif
