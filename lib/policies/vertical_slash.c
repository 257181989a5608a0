/* The vertical-slash pattern of MInference (arXiv 2407.02490), in every head:
 * vertical and diagonal lines of the attention matrix, chosen by the prompt's
 * last queries. */
#include "lib/policies/policies.h"

static const struct kv_param params[] = {
    {"v", NULL, 0.1, 0.001, 1 << 20, false,
     "vertical lines: a share of the prompt to 1, above it tokens"},
    {"s", NULL, 0.1, 0.001, 1 << 20, false,
     "slash lines: a share of the prompt to 1, above it distances"},
    {0},
};

static int vertical_slash_find(const struct kv_policy_spec *p,
                               const struct kv_calib *calib,
                               const struct kv_shape *s, size_t layer, size_t n,
                               struct kv_pattern *head, struct kv_err *e)
{
    (void)calib, (void)layer, (void)e;
    for (size_t h = 0; h < s->n_heads; h++)
        head[h] = (struct kv_pattern){
            KV_VERTICAL_SLASH, kv_policy_tokens(kv_policy_get(p, "v"), n),
            kv_policy_tokens(kv_policy_get(p, "s"), n)};
    return 0;
}

static const struct kv_policy_patterns patterns = {.find = vertical_slash_find};

const struct kv_policy kv_policy_vertical_slash = {
    .name = "vertical-slash",
    .brief = "Vertical-slash: in a prompt, lines of the most weight",
    .params = params,
    .patterns = &patterns,
};
