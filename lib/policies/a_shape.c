/* The A-shape pattern of MInference (arXiv 2407.02490), in every head: a query
 * sees the first tokens and the newest tokens. */
#include "lib/policies/policies.h"

static const struct kv_param params[] = {
    {"s", NULL, 64, 0, 1 << 20, false, "first tokens that a query sees"},
    {"w", NULL, 0.2, 0.001, 1 << 20, false,
     "newest tokens: a share of the prompt to 1, above it tokens"},
    {0},
};

static int a_shape_find(const struct kv_policy_spec *p,
                        const struct kv_calib *calib, const struct kv_shape *s,
                        size_t layer, size_t n, struct kv_pattern *head,
                        struct kv_err *e)
{
    (void)calib, (void)layer, (void)e;
    for (size_t h = 0; h < s->n_heads; h++)
        head[h] =
            (struct kv_pattern){KV_A_SHAPE, (size_t)kv_policy_get(p, "s"),
                                kv_policy_tokens(kv_policy_get(p, "w"), n)};
    return 0;
}

static const struct kv_policy_patterns patterns = {.find = a_shape_find};

const struct kv_policy kv_policy_a_shape = {
    .name = "a-shape",
    .brief = "A-shape: in a prompt, first tokens and the newest",
    .params = params,
    .patterns = &patterns,
};
