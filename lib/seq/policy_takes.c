/* The schemes and layers that a policy can be composed with. */
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/policy_cache.h"

/* Checks a policy with a scheme that attends on its codes. */
static int check_codes(const struct kv_spec *spec,
                       struct kv_codec *const *codec, struct kv_err *e)
{
    const struct kv_policy *policy = spec->policy.policy;

    if (codec[KV_K]->history || codec[KV_V]->history)
        return kv_fail(e,
                       "%s: no policy can drop tokens of a block that is coded "
                       "anew with each token: expected rqe=yes",
                       spec->text);
    if (policy->reassigns)
        return kv_fail(e,
                       "%s: %s attends on codes of keys, which %s cannot move "
                       "to other positions",
                       spec->text, codec[KV_K]->scheme->name, policy->name);
    return 0;
}

int kv_policy_cache_takes(const struct kv_spec *spec,
                          struct kv_codec *const *codec, size_t n,
                          struct kv_err *e)
{
    const struct kv_policy *policy = spec->policy.policy;
    const struct kv_codec *k = codec[KV_K];
    const size_t sinks = kv_spec_size(&k->spec, KV_K, "s");
    struct kv_policy_plan plan;

    if (kv_spec_reads_below(spec))
        return kv_fail(e,
                       "%s: no policy can drop tokens of %s, which predicts "
                       "layers from lower ones",
                       spec->text, k->scheme->name);
    if (kv_codec_attends(k) && check_codes(spec, codec, e))
        return -1;
    if (k->shape.alibi && !policy->reassigns)
        return kv_fail(e,
                       "%s: the model has ALiBi, whose distances %s does "
                       "not keep",
                       spec->text, policy->name);
    plan = policy->plan(&spec->policy, &k->shape, k->layer, n);
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
