/* The table of MInference's patterns, which the search writes and minference.c
 * reads: "patterns" of a layer without a sliding window,
 * [n_heads][KV_MINFERENCE_COLUMNS].
 *
 * Sizes are shares of the prompt's tokens, or of its blocks, so that a prompt
 * of any length computes about the same share of its pairs. */
#ifndef KV_MINFERENCE_H
#define KV_MINFERENCE_H

#include "lib/policies/policies.h"

enum {
    KV_MINFERENCE_KIND,   /* enum kv_pattern_kind */
    KV_MINFERENCE_FIRST,  /* a share; for a-shape a number of tokens */
    KV_MINFERENCE_SECOND, /* a share; for block-sparse 0 */
    KV_MINFERENCE_ERROR,  /* error of the output, |x' - x| / |x| */
    KV_MINFERENCE_COLUMNS
};

/* The number of tokens or blocks that a kind's shares refer to, in a prompt of
 * n tokens. */
static inline size_t kv_minference_whole(enum kv_pattern_kind kind, size_t n)
{
    return kind == KV_BLOCK_SPARSE
               ? (n + KV_PATTERN_BLOCK - 1) / KV_PATTERN_BLOCK
               : n;
}

int kv_minference_check_dump(struct kv_dump *dump, struct kv_err *e);
int kv_minference_search(const struct kv_policy_spec *p, struct kv_dump *dump,
                         struct kv_calib_set *out, struct kv_err *e);

#endif
