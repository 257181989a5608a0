/* The votes of SnapKV, which PyramidKV uses too. */
#ifndef KV_SNAPKV_H
#define KV_SNAPKV_H

#include "lib/policies/policies.h"

#define KV_SNAPKV_PARAMS                                                  \
    {"b",                                                                 \
     NULL,                                                                \
     0.2,                                                                 \
     0.001,                                                               \
     1 << 20,                                                             \
     false,                                                               \
     "budget: a share of the prompt to 1, above it tokens"},              \
        {"w",                                                             \
         NULL,                                                            \
         32,                                                              \
         1,                                                               \
         1 << 16,                                                         \
         false,                                                           \
         "newest tokens of the prompt: kept, and their queries vote"},    \
    {                                                                     \
        "k", NULL, 7, 1, 255, false, "tokens that a vote's maximum spans" \
    }

size_t kv_snapkv_queries(const struct kv_policy_spec *p); /* w */

/* A plan of budget tokens in all, w of them the newest. */
struct kv_policy_plan kv_snapkv_plan(const struct kv_policy_spec *p,
                                     size_t budget);

/* The score of a token before the w newest is the greatest mass among the k
 * tokens around it, without the w newest; the w newest have score 0. */
void kv_snapkv_score(const struct kv_policy_spec *p,
                     const struct kv_policy_held *h, double *score);

#endif
