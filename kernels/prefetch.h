/* Prefetching for loops over tiles.  One core keeps memory busy only if each
 * line is asked for twice: far ahead, into the second-level cache, and again
 * shortly before it is loaded, into the first. */
#ifndef KV_PREFETCH_H
#define KV_PREFETCH_H

#include "kernels/unroll.h"

#include <stddef.h>

enum { KV_NEAR = 2048, KV_FAR = 16384, KV_LINE = 64 }; /* bytes */

/* The bytes at p are loaded now: those KV_NEAR further on. */
ALWAYS_INLINE void kv_prefetch_near(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += KV_LINE)
        __builtin_prefetch((const char *)p + KV_NEAR + i, 0, 3);
}

/* Bytes KV_FAR further on than p.  Whatever the order of the loads, p goes over
 * a tile once, from its first byte to its last, at an even pace. */
ALWAYS_INLINE void kv_prefetch_far(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += KV_LINE)
        __builtin_prefetch((const char *)p + KV_FAR + i, 0, 2);
}

/* Both, of what is loaded in the order of addresses. */
ALWAYS_INLINE void kv_prefetch(const void *p, size_t bytes)
{
    kv_prefetch_far(p, bytes);
    kv_prefetch_near(p, bytes);
}

#endif
