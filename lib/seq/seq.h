/* One sequence under one spec: the caches of its layers.
 *
 * A layer has a cache (cache.h), of a layered codec upon the cache of the layer
 * below; or, where the spec's policy drops tokens, a cache of the tokens that
 * the policy keeps (policy_cache.h).  Queries attend over tiles of the codes
 * (tile_cache.h) where the CPU has kernels for them, else through the cache.
 *
 * Tokens enter a layer in their order; the layers of one sequence may be at
 * different tokens.  Different sequences may be used by different threads. */
#ifndef KV_SEQ_H
#define KV_SEQ_H

#include "lib/seq/bits.h"

KV_PUBLIC_BEGIN

struct kv_policy_cache;
struct kv_seq;

struct kv_seq_plan {
    size_t n_layers;                     /* of the model */
    const struct kv_policy_spec *policy; /* kept by pointer; NULL, or one that
                                          * drops nothing: all tokens stay */
    size_t share_of; /* tokens that a policy's budget is a share of */
    uint64_t seed;
};

struct kv_seq *kv_seq_new(const struct kv_seq_plan *p);
void kv_seq_free(struct kv_seq *s); /* NULL is fine */

/* Opens the layer of codec [KV_SIDES], which must outlive its use: until the
 * layer is closed, of layered codecs until s is freed.  Layers of layered
 * codecs open upward.  Fails as kv_cache_new() does. */
int kv_seq_open(struct kv_seq *s, struct kv_codec *const *codec,
                struct kv_err *e);
/* No more tokens come into the layer, and nothing of it is read but by layers
 * above: frees what these do not read. */
void kv_seq_close(struct kv_seq *s, size_t layer);

/* The tokens enter the layer; a policy takes them for the prompt.  Their
 * queries attend elsewhere, or by kv_seq_attend().  Fails as kv_cache_append()
 * does. */
int kv_seq_append(struct kv_seq *s, size_t layer, const struct kv_tokens *t,
                  struct kv_err *e);

/* The tokens enter the layer, then their queries attend to all that the layer
 * holds, each up to its own token, then a policy drops tokens.  out:
 * [t->n][n_heads][head_dim].  Threads share the work outside of a parallel
 * region. */
int kv_seq_step(struct kv_seq *s, size_t layer, const struct kv_tokens *t,
                float *out, struct kv_err *e);

/* Attention of the newest nq tokens' queries without a policy.  q, out:
 * [nq][n_heads][head_dim]. */
void kv_seq_attend(struct kv_seq *s, size_t layer, size_t nq, const float *q,
                   float *out);

/* The layer's cache, to read, without a policy; and with one. */
const struct kv_cache *kv_seq_cache(const struct kv_seq *s, size_t layer);
struct kv_policy_cache *kv_seq_policy_cache(const struct kv_seq *s,
                                            size_t layer);

/* Adds what the layer holds of a side. */
void kv_seq_bits(const struct kv_seq *s, size_t layer, enum kv_side side,
                 struct kv_bits *bits);

/* The layer's message (cache_bytes.h), for kv_seq_load() of another sequence
 * with the same codecs; the caller frees *bytes.  Layers of layered codecs are
 * loaded upward.  A policy's layer, which holds tokens as they are read, fails.
 */
int kv_seq_write(const struct kv_seq *s, size_t layer, uint8_t **bytes,
                 size_t *n, struct kv_err *e);
/* Into a layer that is open and empty.  Fails as kv_cache_load() does. */
int kv_seq_load(struct kv_seq *s, size_t layer, const uint8_t *bytes, size_t n,
                struct kv_err *e);

KV_PUBLIC_END

#endif
