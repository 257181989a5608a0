/* Shared by the tests of weights: blocks of every type. */
#ifndef KV_WEIGHTS_SETUP_H
#define KV_WEIGHTS_SETUP_H

#include "kernels/weights/weights.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/weights_goldens.h"

/* Makes n blocks of random bytes, changed where they would decode to NaN or
 * infinity. */
static inline uint8_t *test_blocks(enum kv_stored type, size_t n)
{
    const size_t bytes = kv_stored_bytes(type);
    uint8_t *b = kv_alloc(n, bytes);

    for (size_t i = 0; i < n * bytes; i++)
        b[i] = (uint8_t)kv_random(bytes, i);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0;
             h < 2 && goldens[type].values && goldens[type].halves[h] >= 0;
             h++) {
            uint8_t *high = b + i * bytes + goldens[type].halves[h] + 1;

            if ((*high & 0x7c) == 0x7c)
                *high &= 0xbf;
        }
    for (size_t i = 0; i < n && type == KV_STORED_MXFP4; i++)
        b[i * bytes] %= 250;
    for (size_t i = 0; i < n && type == KV_STORED_IQ1_M; i++)
        b[i * bytes + 55] &= 0xbf;
    for (size_t i = 0; i < n && kv_stored_values(type) == 1; i++)
        b[i * bytes + bytes - 1] &= 0xbf;
    return b;
}

#endif
