/* Which specs with a policy can run. */
#ifndef KV_POLICY_CHECK_H
#define KV_POLICY_CHECK_H

#include "eval/protocol.h"
#include "lib/codec.h"
#include "lib/spec.h"

/* Fails, with the reason, unless a spec with a policy can run under this
 * protocol, in windows of n tokens, with this layer's codecs. */
int kv_policy_check(const struct kv_spec *spec, const struct kv_protocol *p,
                    struct kv_codec *const *codec, size_t n, struct kv_err *e);

/* The number of tokens that a policy's budget is a share of, in a window of n
 * tokens: the prompt's tokens under prefill:P, else all. */
size_t kv_policy_share_of(const struct kv_protocol *p, size_t n);

#endif
