/* The L2 norm of keys (arXiv 2406.11430): keys with a small norm get the most
 * attention, so tokens whose keys have the largest norms are dropped, in every
 * layer except the first two (section 4). */
#include "lib/policies/policies.h"

static const struct kv_param params[] = {
    {"b", NULL, 0.5, 0.001, 1 << 20, false,
     "budget: a share of the tokens to 1, above it tokens"},
    {"l", NULL, 2, 0, KV_MAX_LAYERS, false, "first layers that keep all"},
    {0},
};

static struct kv_policy_plan knorm_plan(const struct kv_policy_spec *p,
                                        const struct kv_shape *s, size_t layer,
                                        size_t n)
{
    const size_t budget = kv_policy_tokens(kv_policy_get(p, "b"), n);
    const bool all = (double)layer < kv_policy_get(p, "l");

    (void)s;
    return (struct kv_policy_plan){all ? SIZE_MAX : budget, 0, 0};
}

static void knorm_score(const struct kv_policy_spec *p,
                        const struct kv_policy_held *h, double *score)
{
    (void)p;
    for (size_t i = 0; i < h->n; i++)
        for (size_t c = 0; c < h->head_dim; c++) {
            const double x = (double)h->key[i * h->head_dim + c];

            score[i] -= x * x;
        }
}

const struct kv_policy kv_policy_knorm = {
    .name = "knorm",
    .brief = "L2 norm: keys of the smallest norm",
    .params = params,
    .plan = knorm_plan,
    .score = knorm_score,
};
