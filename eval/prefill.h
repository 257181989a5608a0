/* Attention of prompts, dense or by a policy's patterns (lib/policy.h), and its
 * cost. */
#ifndef KV_PREFILL_H
#define KV_PREFILL_H

#include "eval/protocol.h"
#include "lib/calib.h"
#include "lib/codec.h"
#include "lib/model/model.h"
#include "lib/policy.h"

struct kv_prefill {
    const struct kv_policy_spec *policy; /* a spec without patterns attends
                                          * densely */
    const struct kv_calib *calib;        /* for the policy's find(); may be
                                          * NULL */
    /* Totals so far, over layers without a sliding window: computed pairs of a
     * query and a token, and dense attention's pairs.  The time includes
     * choosing the pairs. */
    double pairs, all_pairs, seconds;
};

/* Whether a spec whose policy has patterns can run under this protocol, with
 * this layer's codecs.  Fails with the reason. */
int kv_prefill_check(const struct kv_prefill *p, const struct kv_spec *spec,
                     const struct kv_protocol *protocol,
                     struct kv_codec *const *codec, struct kv_err *e);

/* The job's queries are each window's first, in x's layer and in host memory.
 * A sliding layer has no pattern. */
int kv_prefill_attend(struct kv_prefill *p, const struct kv_qkv *x,
                      const struct kv_attend_job *job, struct kv_err *e);

#endif
