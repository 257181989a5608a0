/* Tokens of several sequences in one pass, each sequence at positions of its
 * own. */
#ifndef KV_BATCH_H
#define KV_BATCH_H

#include <stddef.h>
#include <stdint.h>

/* n >= 1 consecutive tokens of a sequence, at positions first, first + 1, ...
 */
struct kv_span {
    size_t sequence; /* the sequence's number, chosen by the caller; a batch has
                      * at most one span of each sequence */
    size_t first, n;
};

/* token: the spans' tokens, one span after the other. */
struct kv_batch {
    size_t n_spans; /* at least 1 */
    const struct kv_span *span;
    const int32_t *token;
};

static inline size_t kv_batch_tokens(const struct kv_batch *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n_spans; i++)
        n += b->span[i].n;
    return n;
}

#endif
