/* The schemes, protocols and layers that a policy can be composed with. */
#include "eval/policy_check.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"

size_t kv_policy_share_of(const struct kv_protocol *p, size_t n)
{
    return p->kind == KV_PREFILL && p->prefill < n ? p->prefill : n;
}

/* Checks a policy with a scheme that attends on its codes. */
static int check_codes(const struct kv_spec *spec, const struct kv_protocol *p,
                       struct kv_codec *const *codec, struct kv_err *e)
{
    const struct kv_policy *policy = spec->policy.policy;
    const char *scheme = codec[KV_K]->scheme->name;

    if (codec[KV_K]->history || codec[KV_V]->history)
        return kv_fail(e,
                       "%s: no policy can drop tokens of a block that is coded "
                       "anew with each token: expected rqe=yes",
                       spec->text);
    if (policy->reassigns)
        return kv_fail(e,
                       "%s: %s attends on codes of keys, which %s cannot move "
                       "to other positions",
                       spec->text, scheme, policy->name);
    if (p->kind == KV_PREFILL && codec[KV_K]->prefill_on_codes)
        return kv_fail(e,
                       "%s: a policy's prompt attends at full precision: "
                       "expected prefill=full",
                       spec->text);
    return 0;
}

int kv_policy_check(const struct kv_spec *spec, const struct kv_protocol *p,
                    struct kv_codec *const *codec, size_t n, struct kv_err *e)
{
    const struct kv_policy *policy = spec->policy.policy;
    const struct kv_codec *k = codec[KV_K];
    const size_t sinks = kv_spec_size(&k->spec, KV_K, "s");
    struct kv_policy_plan plan;

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
    if (kv_spec_layered(spec))
        return kv_fail(e,
                       "%s: no policy can drop tokens of %s, which predicts "
                       "layers from lower ones",
                       spec->text, k->scheme->name);
    if (kv_codec_attends(k) && check_codes(spec, p, codec, e))
        return -1;
    if (k->shape.alibi && !policy->reassigns)
        return kv_fail(e,
                       "%s: the model has ALiBi, whose distances %s does "
                       "not keep",
                       spec->text, policy->name);
    plan = policy->plan(&spec->policy, &k->shape, k->layer,
                        kv_policy_share_of(p, n));
    if (!plan.budget || plan.first + plan.newest > plan.budget)
        return kv_fail(e,
                       "%s: layer %zu keeps %zu tokens, fewer than the %zu "
                       "that it always keeps",
                       spec->text, k->layer, plan.budget,
                       plan.first + plan.newest);
    if (plan.budget < sinks)
        return kv_fail(e,
                       "%s: layer %zu keeps %zu tokens, fewer than its %zu "
                       "sinks",
                       spec->text, k->layer, plan.budget, sinks);
    return 0;
}
