/* Prefetching for loops over tiles.  If a loop handles a cache line faster than
 * memory delivers one, a core keeps memory busy only if it prefetches each line
 * twice: far ahead into the second-level cache, and again shortly before its
 * load into the first.  Loops that work longer on a line prefetch once. */
#ifndef KV_SIMD_PREFETCH_H
#define KV_SIMD_PREFETCH_H

#include "kernels/simd/common.h"

#include <stddef.h>

/* Prefetch distances in bytes, the best ones measured. */
enum {
    KV_NEAR = 2048,
    KV_NEAR_INTEGERS = 4096, /* maximum bytes read together */
    KV_FAR = 16384,
    KV_FAR_INTEGERS = 20480, /* four tiles of values are read in turns */
    KV_FAR_CODES = 5632,     /* for codebooks */
    KV_LINE = 64
};

/* Call when the bytes at p are loaded: prefetches bytes this far ahead. */
ALWAYS_INLINE void kv_prefetch_near(const void *p, size_t ahead, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += KV_LINE)
        __builtin_prefetch((const char *)p + ahead + i, 0, 3);
}

/* Prefetches bytes this far ahead of p.  For any order of loads, p must pass
 * over a tile once, from its first byte to its last, at an even pace. */
ALWAYS_INLINE void kv_prefetch_far(const void *p, size_t ahead, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += KV_LINE)
        __builtin_prefetch((const char *)p + ahead + i, 0, 2);
}

/* Both prefetches, for memory that is read in the order of addresses. */
ALWAYS_INLINE void kv_prefetch(const void *p, size_t bytes)
{
    kv_prefetch_far(p, KV_FAR, bytes);
    kv_prefetch_near(p, KV_NEAR, bytes);
}

#endif
