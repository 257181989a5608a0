/* The length of chunks in a sliding layer. */
#ifndef KV_CHUNK_H
#define KV_CHUNK_H

#include "lib/codec.h"

/* Halves n while four chunks are longer than the layer's window and `unit`
 * divides the result: the cache holds the whole chunk of the window's first
 * token, so long chunks would hold many tokens outside the window.  Returns n,
 * a multiple of unit, if the layer sees all tokens. */
static inline size_t kv_chunk(const struct kv_codec *c, size_t n, size_t unit)
{
    while (c->shape.window && 4 * n > c->shape.window && n % (2 * unit) == 0)
        n /= 2;
    return n;
}

#endif
