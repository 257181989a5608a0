/* PyramidKV (arXiv 2406.02069): SnapKV's votes, with budgets that fall from the
 * first layer to the last in equal steps and have the given mean (section 4.2).
 * Not counting the w newest tokens, the last layer keeps 1 / beta of the mean,
 * and the first layer keeps the number that gives this mean.  If the prompt is
 * shorter than that number, the first layer keeps the whole prompt, and the
 * last layer the number that gives the mean, as in the authors' code. */
#include "lib/policies/snapkv.h"

#include <math.h>

static const struct kv_param params[] = {
    KV_SNAPKV_PARAMS,
    {"a", NULL, 20, 1, 1000, false, "beta: mean over the last layer's share"},
    {0},
};

static struct kv_policy_plan pyramidkv_plan(const struct kv_policy_spec *p,
                                            const struct kv_shape *s,
                                            size_t layer, size_t n)
{
    const size_t mean = kv_policy_tokens(kv_policy_get(p, "b"), n);
    const size_t newest = kv_snapkv_queries(p);
    const double at =
        s->n_layers > 1 ? (double)layer / (double)(s->n_layers - 1) : 0.5;

    if (mean >= n || mean < newest)
        return kv_snapkv_plan(p, mean < n ? mean : n);

    const double more = (double)(mean - newest);
    const double last = floor(more / kv_policy_get(p, "a"));
    const double first = fmin(2 * more - last, (double)(n - newest));

    /* round() is symmetric, so budgets above and below the mean add up
     * exactly. */
    return kv_snapkv_plan(
        p, (size_t)((double)mean + round((first - more) * (1 - 2 * at))));
}

const struct kv_policy kv_policy_pyramidkv = {
    .name = "pyramidkv",
    .brief = "PyramidKV: SnapKV with more tokens in lower layers",
    .params = params,
    .prompt = true,
    .mass = KV_MASS_NEWEST,
    .queries = kv_snapkv_queries,
    .plan = pyramidkv_plan,
    .score = kv_snapkv_score,
};
