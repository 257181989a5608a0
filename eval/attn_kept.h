/* The tokens of attention's inputs (attn_bench.h) that a policy keeps, for
 * timing. */
#ifndef KV_ATTN_KEPT_H
#define KV_ATTN_KEPT_H

#include "eval/attn_bench.h"

struct kv_attn_kept {
    struct kv_attn_inputs inputs;
    struct kv_bits bits; /* bits of both sides, over all tokens; without
                          * shared_bytes and nominal */
    double rel_err;
};

/* Whether the spec's policy can run on a layer with the inputs' numbers of
 * tokens and queries.  no_layer: the inputs represent any layer; it then fails
 * if layers keep different numbers of tokens. */
int kv_attn_kept_check(const struct kv_attn_inputs *in,
                       const struct kv_spec *spec, const struct kv_calib *calib,
                       bool no_layer, struct kv_err *e);

/* The tokens before the newest nq are a prompt.  The policy drops tokens of
 * this prompt; its budget is a share of the prompt.  Then the newest nq tokens
 * are appended and attend.  rel_err is against in->exact, dense attention over
 * all n.
 *
 * k->inputs has as many tokens as attention passes over
 * (kv_policy_cache_span()).  Each KV head's kept rows stand together; in
 * blocks, kept rows also fill the places of dropped rows.  Values and positions
 * differ from the run that gave rel_err, so these inputs serve only for timing.
 *
 * in: has all_q if the policy counts attention. */
int kv_attn_kept_new(struct kv_attn_kept *k, const struct kv_attn_inputs *in,
                     const struct kv_spec *spec, const struct kv_calib *calib,
                     uint64_t seed, struct kv_err *e);
void kv_attn_kept_clear(struct kv_attn_kept *k);

#endif
