/* One window of a layer whose cache keeps the tokens that a policy names
 * (lib/policy.h). */
#ifndef KV_POLICY_LOOP_H
#define KV_POLICY_LOOP_H

#include "eval/protocol.h"
#include "lib/cache.h"
#include "lib/columns.h"
#include "lib/model/model.h"
#include "lib/policy.h"

/* Whether a spec with a policy can run: under this protocol, in windows of n
 * tokens, by this layer's codecs.  Says why not. */
int kv_policy_check(const struct kv_spec *spec, const struct kv_protocol *p,
                    struct kv_codec *const *codec, size_t n, struct kv_err *e);

struct kv_policy_window {
    const struct kv_policy_spec *policy;
    const struct kv_protocol *protocol;
    const struct kv_cache *cache; /* holds the whole window */
    size_t n, prompt, step; /* tokens; of the prompt; appended at a time */
    const float *q;         /* [n][n_heads][head_dim] */
    const float *exact_k;   /* [n][n_kv_heads][head_dim], after RoPE */
    /* Forms of all tokens, keys after RoPE; until [n]. */
    struct kv_attend_side k, v;
    float *out; /* as q; rows of the prompt are left as they are */
};

/* Attends step by step, and drops tokens on the way.  bits: of what is held at
 * the end, K and V; added to. */
void kv_policy_attend(const struct kv_policy_window *w, struct kv_bits *bits);

#endif
