/* The block-sparse pattern of MInference (arXiv 2407.02490), in every head: a
 * query sees the blocks of tokens with the largest products of mean query and
 * mean key. */
#include "lib/policies/policies.h"

static const struct kv_param params[] = {
    {"k", NULL, 0.2, 0.001, 1 << 20, false,
     "blocks of 64 tokens: a share of the prompt's to 1, above it blocks"},
    {0},
};

static int block_sparse_find(const struct kv_policy_spec *p,
                             const struct kv_calib *calib,
                             const struct kv_shape *s, size_t layer, size_t n,
                             struct kv_pattern *head, struct kv_err *e)
{
    const size_t blocks = (n + KV_PATTERN_BLOCK - 1) / KV_PATTERN_BLOCK;

    (void)calib, (void)layer, (void)e;
    for (size_t h = 0; h < s->n_heads; h++)
        head[h] = (struct kv_pattern){
            KV_BLOCK_SPARSE, kv_policy_tokens(kv_policy_get(p, "k"), blocks),
            0};
    return 0;
}

static const struct kv_policy_patterns patterns = {.find = block_sparse_find};

const struct kv_policy kv_policy_block_sparse = {
    .name = "block-sparse",
    .brief = "Block-sparse: in a prompt, blocks by their means",
    .params = params,
    .patterns = &patterns,
};
