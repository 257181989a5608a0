/* Values of a token that are stored separately in fp16, with their indices:
 *
 *   | place: u16[n] | value: f16[n] |      32 bits a value */
#ifndef KV_SCHEMES_SPARSE_H
#define KV_SCHEMES_SPARSE_H

#include "lib/base/half.h"

#include <string.h>

static inline size_t kv_sparse_bytes(size_t n)
{
    return 4 * n;
}

/* Stores the value of index i as entry `at` of n. */
static inline void kv_sparse_put(uint8_t *sparse, size_t n, size_t at, size_t i,
                                 float x)
{
    const uint16_t index = (uint16_t)i;

    memcpy(sparse + 2 * at, &index, 2);
    kv_f16_put(sparse + 2 * (n + at), x);
}

/* Returns the index in entry `at` of n; *x: its value. */
static inline size_t kv_sparse_get(const uint8_t *sparse, size_t n, size_t at,
                                   float *x)
{
    uint16_t index;

    memcpy(&index, sparse + 2 * at, 2);
    *x = kv_f16_get(sparse + 2 * (n + at));
    return index;
}

#endif
