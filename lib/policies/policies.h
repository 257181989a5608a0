/* All token policies: one file in this folder, one name in this list. */
#ifndef KV_POLICIES_H
#define KV_POLICIES_H

#include "lib/policy.h"

#define KV_POLICIES(X) \
    X(streamingllm)    \
    X(h2o)             \
    X(tova)            \
    X(knorm)           \
    X(snapkv)          \
    X(pyramidkv)       \
    X(minference)      \
    X(a_shape)         \
    X(vertical_slash)  \
    X(block_sparse)

#define KV_DECLARE_POLICY(name) extern const struct kv_policy kv_policy_##name;
KV_POLICIES(KV_DECLARE_POLICY)
#undef KV_DECLARE_POLICY

#endif
