/* Massive tokens (lib/massive_tokens.h) that one side of a cache keeps in fp16
 * beside their codes, at any position. */
#ifndef KV_KEPT_TOKENS_H
#define KV_KEPT_TOKENS_H

#include "lib/base/public.h"

#include <stddef.h>
#include <stdint.h>

KV_PUBLIC_BEGIN

struct kv_kept_tokens {
    size_t row;   /* values of a token */
    size_t n;     /* tokens */
    uint32_t *at; /* [n] their indices, ascending */
    uint16_t *x;  /* [n][row] fp16 */
    size_t capacity;
};

/* x: [row], the token's values as they enter the cache. */
void kv_kept_tokens_push(struct kv_kept_tokens *k, size_t at, const float *x);
void kv_kept_tokens_clear(struct kv_kept_tokens *k);

/* Overwrites the kept tokens among x [n][row], tokens [first, first + n), with
 * their fp16 values. */
void kv_kept_tokens_restore(const struct kv_kept_tokens *k, size_t first,
                            size_t n, float *x);

/* The kept tokens from index token on; points into k. */
struct kv_kept_tokens kv_kept_tokens_from(const struct kv_kept_tokens *k,
                                          size_t token);

/* Bytes of one kept token: its values and its index. */
static inline size_t kv_kept_token_bytes(const struct kv_kept_tokens *k)
{
    return k->row * sizeof(*k->x) + sizeof(*k->at);
}

KV_PUBLIC_END

#endif
