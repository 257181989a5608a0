/* TOVA (arXiv 2401.06104): drops the token that gets the least attention from
 * the newest query, averaged over the heads of the layer (section 3.2). */
#include "lib/policies/policies.h"

#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 0.2, 0.001, 1 << 20, false,
     "budget: a share of the tokens to 1, above it tokens"},
    {0},
};

static size_t queries(const struct kv_policy_spec *p)
{
    (void)p;
    return 1;
}

static struct kv_policy_plan tova_plan(const struct kv_policy_spec *p,
                                       const struct kv_shape *s, size_t layer,
                                       size_t n)
{
    (void)s, (void)layer;
    return (struct kv_policy_plan){kv_policy_tokens(kv_policy_get(p, "b"), n),
                                   0, 0};
}

static void tova_score(const struct kv_policy_spec *p,
                       const struct kv_policy_held *h, double *score)
{
    (void)p;
    memcpy(score, h->mass, h->n * sizeof(*score));
}

const struct kv_policy kv_policy_tova = {
    .name = "tova",
    .brief = "TOVA: drops what the newest query attends to least",
    .params = params,
    .by_layer = true,
    .mass = KV_MASS_NEWEST,
    .queries = queries,
    .plan = tova_plan,
    .score = tova_score,
};
