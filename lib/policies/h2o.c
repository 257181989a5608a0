/* H2O (arXiv 2306.14048): half of the budget for the newest tokens, half for
 * the heavy hitters, the tokens that got the most attention from all queries so
 * far (algorithm 1).  With grouped queries, the weights of a KV head's query
 * heads are added. */
#include "lib/policies/policies.h"

#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 0.2, 0.001, 1 << 20, false,
     "budget: a share of the tokens to 1, above it tokens"},
    {0},
};

static struct kv_policy_plan h2o_plan(const struct kv_policy_spec *p,
                                      const struct kv_shape *s, size_t layer,
                                      size_t n)
{
    const size_t budget = kv_policy_tokens(kv_policy_get(p, "b"), n);

    (void)s, (void)layer;
    return (struct kv_policy_plan){budget, 0, (budget + 1) / 2};
}

static void h2o_score(const struct kv_policy_spec *p,
                      const struct kv_policy_held *h, double *score)
{
    (void)p;
    memcpy(score, h->mass, h->n * sizeof(*score));
}

const struct kv_policy kv_policy_h2o = {
    .name = "h2o",
    .brief = "H2O: tokens with the most attention so far, and the newest",
    .params = params,
    .mass = KV_MASS_ALL,
    .plan = h2o_plan,
    .score = h2o_score,
};
