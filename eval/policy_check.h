/* Which specs with a policy can run. */
#ifndef KV_POLICY_CHECK_H
#define KV_POLICY_CHECK_H

#include "eval/protocol.h"
#include "lib/codec.h"
#include "lib/spec.h"

/* Whether a spec with a policy can run under this protocol, in windows of n
 * tokens, with this layer's codecs.  Fails with the reason. */
int kv_policy_check(const struct kv_spec *spec, const struct kv_protocol *p,
                    struct kv_codec *const *codec, size_t n, struct kv_err *e);

/* The number of tokens of which a budget is a share, in a window of n: the
 * prompt's, or all. */
size_t kv_policy_share_of(const struct kv_protocol *p, size_t n);

#endif
