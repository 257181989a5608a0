/* Appends tokens to a cache, given their arrays. */
#ifndef APPEND_ROWS_H
#define APPEND_ROWS_H

#include "lib/seq/cache.h"

/* Appends n tokens; k: keys in the form that the cache's codec stores (before
 * or after RoPE). */
static inline int append_rows(struct kv_cache *c, const float *q,
                              const float *k, const float *v, size_t n,
                              struct kv_err *e)
{
    const struct kv_tokens t = {.n = n, .q = q, .k = k, .k_pre = k, .v = v};

    return kv_cache_append(c, &t, e);
}

#endif
