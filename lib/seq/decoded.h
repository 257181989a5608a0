/* The tokens of a cache as attention reads them: decoded, keys rotated.  They
 * stay from one step to the next, so that a block is decoded once and only the
 * fp16 tail anew.  A workspace: kv_cache_bytes() does not count it, --memory
 * does. */
#ifndef KV_DECODED_H
#define KV_DECODED_H

#include "kernels/attend.h"
#include "lib/seq/cache.h"

/* At first zeros. */
struct kv_decoded {
    float *x[KV_SIDES];        /* [tokens][n_kv_heads][head_dim]; V of a latent
                                * is NULL */
    size_t settled[KV_SIDES];  /* tokens at the beginning (sinks and blocks),
                                * which no append changes */
    size_t capacity[KV_SIDES]; /* tokens */
};

/* Attention over all tokens of c in plain C (kernels/attend.h), for codecs
 * without attend().  view, q, out: as of kv_cache_attend().  d is used with one
 * cache. */
void kv_decoded_attend(struct kv_decoded *d, const struct kv_cache *c,
                       struct kv_attend_view view, const float *q, float *out);
void kv_decoded_clear(struct kv_decoded *d);

#endif
