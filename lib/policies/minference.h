/* The table of MInference's patterns, between its search and what reads it:
 * "patterns" of a layer that does not slide, [n_heads][KV_MINFERENCE_COLUMNS].
 *
 * Sizes are shares, so that a prompt of any length costs about the same share
 * of its pairs: of the prompt's tokens, or of its blocks. */
#ifndef KV_MINFERENCE_H
#define KV_MINFERENCE_H

#include "lib/policies/policies.h"

enum {
    KV_MINFERENCE_KIND,   /* enum kv_pattern_kind */
    KV_MINFERENCE_FIRST,  /* a share; of a-shape tokens */
    KV_MINFERENCE_SECOND, /* a share; of block-sparse 0 */
    KV_MINFERENCE_ERROR,  /* relative, of the head's output: |x' - x| / |x| */
    KV_MINFERENCE_COLUMNS
};

/* What the shares of a kind are of, in a prompt of n tokens. */
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
