/* SnapKV (arXiv 2404.14469): after the prompt, keeps its last w tokens (the
 * window), and the tokens before them that the window's queries attend to most
 * (section 4.1).  The votes of these queries are pooled over k neighbouring
 * tokens outside the window (listing 1).  All tokens decoded later are kept. */
#include "lib/policies/snapkv.h"

#include <math.h>

static const struct kv_param params[] = {KV_SNAPKV_PARAMS, {0}};

size_t kv_snapkv_queries(const struct kv_policy_spec *p)
{
    return (size_t)kv_policy_get(p, "w");
}

struct kv_policy_plan kv_snapkv_plan(const struct kv_policy_spec *p,
                                     size_t budget)
{
    return (struct kv_policy_plan){budget, 0, kv_snapkv_queries(p)};
}

void kv_snapkv_score(const struct kv_policy_spec *p,
                     const struct kv_policy_held *h, double *score)
{
    const size_t half = (size_t)kv_policy_get(p, "k") / 2;
    const size_t newest = kv_snapkv_queries(p);
    const size_t end = h->n > newest ? h->n - newest : 0;

    for (size_t i = 0; i < end; i++) {
        const size_t from = i > half ? i - half : 0;

        for (size_t j = from; j < end && j <= i + half; j++)
            score[i] = fmax(score[i], h->mass[j]);
    }
}

static struct kv_policy_plan snapkv_plan(const struct kv_policy_spec *p,
                                         const struct kv_shape *s, size_t layer,
                                         size_t n)
{
    (void)s, (void)layer;
    return kv_snapkv_plan(p, kv_policy_tokens(kv_policy_get(p, "b"), n));
}

const struct kv_policy kv_policy_snapkv = {
    .name = "snapkv",
    .brief = "SnapKV: of a prompt, what its last queries attend to",
    .params = params,
    .prompt = true,
    .mass = KV_MASS_NEWEST,
    .queries = kv_snapkv_queries,
    .plan = snapkv_plan,
    .score = kv_snapkv_score,
};
