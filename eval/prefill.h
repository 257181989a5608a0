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
    const struct kv_calib *calib;        /* the policy's find() reads it; may be
                                          * NULL */
    /* Totals so far, over layers without a sliding window: pairs of a query and
     * a token that were computed, the pairs of dense attention, and the time,
     * which includes choosing the pairs. */
    double pairs, all_pairs, seconds;
};

/* Fails, with the reason, unless a spec whose policy has patterns can run under
 * this protocol, with this layer's codecs. */
int kv_prefill_check(const struct kv_prefill *p, const struct kv_spec *spec,
                     const struct kv_protocol *protocol,
                     struct kv_codec *const *codec, struct kv_err *e);

/* Attends for the first queries of each window of x, in host memory, as the job
 * says.  A layer with a sliding window has no pattern. */
int kv_prefill_attend(struct kv_prefill *p, const struct kv_qkv *x,
                      const struct kv_attend_job *job, struct kv_err *e);

#endif
