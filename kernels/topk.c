#include "kernels/topk.h"
#include "lib/base/half.h"

/* The sign bit.  A key has a float's bits flipped so that integers are in the
 * order of the numbers. */
static const uint32_t sign = 0x80000000;

uint64_t kv_topk_key(float x, uint32_t index)
{
    const uint32_t u = kv_f32_bits(x);

    return (uint64_t)(u & sign ? ~u : u | sign) << 32 | (uint32_t)~index;
}

float kv_topk_value(uint64_t key)
{
    const uint32_t u = (uint32_t)(key >> 32);

    return kv_bits_f32(u & sign ? u & ~sign : ~u);
}

/* Sinks the key from place i, whose children are heaps, to its place in the
 * heap. */
static void sink(struct kv_topk *t, size_t i, uint64_t key)
{
    for (size_t child = 2 * i + 1; child < t->n; child = 2 * i + 1) {
        if (child + 1 < t->n && t->key[child + 1] < t->key[child])
            child++;
        if (key <= t->key[child])
            break;
        t->key[i] = t->key[child];
        i = child;
    }
    t->key[i] = key;
}

/* Puts the key at the new end i, or above. */
static void rise(struct kv_topk *t, size_t i, uint64_t key)
{
    for (; i && key < t->key[(i - 1) / 2]; i = (i - 1) / 2)
        t->key[i] = t->key[(i - 1) / 2];
    t->key[i] = key;
}

void kv_topk_push(struct kv_topk *t, uint64_t key)
{
    if (t->n < t->capacity)
        rise(t, t->n++, key);
    else if (t->n && key > t->key[0])
        sink(t, 0, key);
}
