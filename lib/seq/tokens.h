/* Tokens of one layer on their way into a cache. */
#ifndef KV_TOKENS_H
#define KV_TOKENS_H

#include "lib/base/public.h"
#include "lib/shape.h"

#include <stddef.h>

KV_PUBLIC_BEGIN

/* n tokens that come in together, in the order of their positions.
 *
 * q: queries after RoPE, [n][n_heads][head_dim]; NULL without queries.
 * k: keys after RoPE, [n][n_kv_heads][head_dim].
 * k_pre: keys before RoPE, as k; NULL if no codec is pre_rope.
 * v: values, as k. */
struct kv_tokens {
    size_t n;
    const float *q, *k, *k_pre, *v;
};

struct kv_codec;

/* The array of t that codec c stores: values, or keys before or after RoPE. */
const float *kv_tokens_stored(const struct kv_tokens *t,
                              const struct kv_codec *c);

/* Tokens [first, first + n) of t. */
static inline struct kv_tokens kv_tokens_part(const struct kv_tokens *t,
                                              const struct kv_shape *s,
                                              size_t first, size_t n)
{
    const size_t q = first * s->n_heads * s->head_dim;
    const size_t kv = first * s->n_kv_heads * s->head_dim;

    return (struct kv_tokens){.n = n,
                              .q = t->q ? t->q + q : NULL,
                              .k = t->k ? t->k + kv : NULL,
                              .k_pre = t->k_pre ? t->k_pre + kv : NULL,
                              .v = t->v ? t->v + kv : NULL};
}

KV_PUBLIC_END

#endif
