/* Which protocols a policy can run under. */
#include "eval/policy_check.h"
#include "lib/policy.h"
#include "lib/seq/policy_cache.h"

size_t kv_policy_share_of(const struct kv_protocol *p, size_t n)
{
    return p->kind == KV_PREFILL && p->prefill < n ? p->prefill : n;
}

int kv_policy_check(const struct kv_spec *spec, const struct kv_protocol *p,
                    struct kv_codec *const *codec, size_t n, struct kv_err *e)
{
    const struct kv_policy *policy = spec->policy.policy;

    if (!kv_protocol_steps(p))
        return kv_fail(e,
                       "%s: protocol %s has no steps at which tokens are "
                       "dropped: expected stream or prefill:P",
                       spec->text, p->text);
    if (policy->prompt && p->kind != KV_PREFILL)
        return kv_fail(e,
                       "%s: %s drops tokens of a prompt: expected protocol "
                       "prefill:P, not %s",
                       spec->text, policy->name, p->text);
    if (p->kind == KV_PREFILL && codec[KV_K]->prefill_on_codes)
        return kv_fail(e,
                       "%s: a policy's prompt attends at full precision: "
                       "expected prefill=full",
                       spec->text);
    return kv_policy_cache_takes(spec, codec, kv_policy_share_of(p, n), e);
}
