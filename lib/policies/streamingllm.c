/* StreamingLLM (arXiv 2309.17453): keeps the first tokens (attention sinks) and
 * the newest tokens.  Tokens get their positions inside the cache (section
 * 3.2), so a query sees the sinks right before the window, however long the
 * text is. */
#include "lib/policies/policies.h"

static const struct kv_param params[] = {
    {"s", NULL, 4, 0, 1 << 20, false, "first tokens kept"},
    {"w", NULL, 1020, 1, 1 << 20, false, "newest tokens kept"},
    {0},
};

static struct kv_policy_plan streamingllm_plan(const struct kv_policy_spec *p,
                                               const struct kv_shape *s,
                                               size_t layer, size_t n)
{
    const size_t first = (size_t)kv_policy_get(p, "s");
    const size_t newest = (size_t)kv_policy_get(p, "w");

    (void)s, (void)layer, (void)n;
    return (struct kv_policy_plan){first + newest, first, newest};
}

const struct kv_policy kv_policy_streamingllm = {
    .name = "streamingllm",
    .brief = "StreamingLLM: sinks and the newest tokens, positions reassigned",
    .params = params,
    .by_layer = true,
    .reassigns = true,
    .plan = streamingllm_plan,
};
