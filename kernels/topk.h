/* Keeps the `capacity` largest of a stream of numbers in a heap; n pushes take
 * n log(capacity) steps.
 *
 * A number and its index become one 64-bit key, so that the order is total:
 * larger numbers first, and of equal ones the lower index.  The complement
 * ~key has the reverse order, so that a second heap keeps the smallest; the two
 * heaps have no number in common if their sizes add up to at most n.  The
 * result does not depend on the order of pushing. */
#ifndef KV_TOPK_H
#define KV_TOPK_H

#include <stddef.h>
#include <stdint.h>

struct kv_topk {
    uint64_t *key; /* [capacity], the caller's; key[0]: the smallest kept */
    size_t n, capacity;
};

/* x must not be NaN. */
uint64_t kv_topk_key(float x, uint32_t index);
float kv_topk_value(uint64_t key);
static inline uint32_t kv_topk_index(uint64_t key)
{
    return ~(uint32_t)key;
}

/* With capacity 0 it keeps nothing. */
void kv_topk_push(struct kv_topk *t, uint64_t key);

#endif
