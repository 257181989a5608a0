/* One sequence under one spec: the caches of its layers, and the state of the
 * model's layers without attention (shape.h), which no spec changes.
 *
 * A layer has a cache (cache.h).  With layered codecs it stands on the cache of
 * the layer below.  Where the spec's policy drops tokens, the layer has a
 * kv_policy_cache (policy_cache.h) instead.  Queries attend over tiles of the
 * codes (tile_cache.h) where the CPU has kernels for them, through the cache
 * where a scheme attends to codes, else over decoded tokens (decoded.h).
 *
 * Tokens enter a layer in their order; the layers of one sequence may be at
 * different tokens.  Different sequences may be used by different threads. */
#ifndef KV_SEQ_H
#define KV_SEQ_H

#include "lib/seq/bits.h"

KV_PUBLIC_BEGIN

struct kv_policy_cache;
struct kv_seq;
struct kv_tile_cache;

struct kv_seq_plan {
    size_t n_layers;                     /* layers of the model */
    const struct kv_policy_spec *policy; /* kept by pointer; NULL or a policy
                                          * that drops nothing: all tokens
                                          * stay */
    size_t n_states, state_floats;       /* the same as in struct kv_shape */
    size_t share_of; /* the number of tokens that a policy's budget is a share
                      * of */
    uint64_t seed;
};

struct kv_seq *kv_seq_new(const struct kv_seq_plan *p);
void kv_seq_free(struct kv_seq *s); /* NULL is fine */

/* The state [n_states][state_floats], at first zeros; NULL if the model has
 * none.  The model updates it once all earlier tokens are in it. */
float *kv_seq_state(struct kv_seq *s);
size_t kv_seq_state_bytes(const struct kv_seq *s);
/* to: a sequence whose plan has a state of the same size. */
void kv_seq_copy_state(struct kv_seq *to, const struct kv_seq *from);

/* Opens the layer of codec [KV_SIDES].  The codecs must live until the layer is
 * closed, layered ones until s is freed.  Layers of layered codecs are opened
 * from the lowest up.  Fails as kv_cache_new() does. */
int kv_seq_open(struct kv_seq *s, struct kv_codec *const *codec,
                struct kv_err *e);
/* Frees the parts of the layer that layers above do not read.  Afterwards no
 * tokens may enter the layer, and only layers above read it. */
void kv_seq_close(struct kv_seq *s, size_t layer);

/* The tokens enter the layer; under a policy they are the prompt.  Their
 * queries do not attend here: see kv_seq_attend().  Fails as kv_cache_append()
 * does. */
int kv_seq_append(struct kv_seq *s, size_t layer, const struct kv_tokens *t,
                  struct kv_err *e);

/* The tokens enter the layer.  Their queries attend to all tokens that the
 * layer holds, each up to its own.  Then a policy drops tokens.  out:
 * [t->n][n_heads][head_dim].  Called outside of a parallel region, it uses all
 * threads. */
int kv_seq_step(struct kv_seq *s, size_t layer, const struct kv_tokens *t,
                float *out, struct kv_err *e);

/* Attention of the queries of the newest nq tokens; only without a policy.  q,
 * out: [nq][n_heads][head_dim]. */
void kv_seq_attend(struct kv_seq *s, size_t layer, size_t nq, const float *q,
                   float *out);

/* The layer's codes in tiles, up to its newest token; only without a policy.
 * NULL: its codes do not go into tiles. */
const struct kv_tile_cache *kv_seq_tiles(struct kv_seq *s, size_t layer);

/* The layer's cache, for reading.  kv_seq_cache(): only without a policy that
 * drops tokens.  kv_seq_policy_cache(): only with such a policy. */
const struct kv_cache *kv_seq_cache(const struct kv_seq *s, size_t layer);
struct kv_policy_cache *kv_seq_policy_cache(const struct kv_seq *s,
                                            size_t layer);

/* Adds the counts of a side of the layer to bits. */
void kv_seq_bits(const struct kv_seq *s, size_t layer, enum kv_side side,
                 struct kv_bits *bits);

/* Writes the layer's message (cache_bytes.h), for kv_seq_load() of another
 * sequence with the same codecs; the caller frees *bytes.  Layers of layered
 * codecs are loaded from the lowest up.  Fails under a policy, whose cache
 * holds decoded rows. */
int kv_seq_write(const struct kv_seq *s, size_t layer, uint8_t **bytes,
                 size_t *n, struct kv_err *e);
/* Loads a message into a layer that is open and empty.  Fails as
 * kv_cache_load() does. */
int kv_seq_load(struct kv_seq *s, size_t layer, const uint8_t *bytes, size_t n,
                struct kv_err *e);
/* Loads the layer's two sides, in the form of codes.h5 (codes_file.h).  If a
 * codec keeps massive tokens, no tokens may be appended.  Fails as
 * kv_cache_load_sides() does. */
int kv_seq_load_sides(struct kv_seq *s, size_t layer,
                      const struct kv_side_bytes side[KV_SIDES],
                      struct kv_err *e);

/* Write and load the state.  Its message is a checksum, then the state's
 * floats.  Fails on a message that is damaged or has another size; the state is
 * then unchanged. */
void kv_seq_write_state(const struct kv_seq *s, uint8_t **bytes, size_t *n);
int kv_seq_load_state(struct kv_seq *s, const uint8_t *bytes, size_t n,
                      struct kv_err *e);

KV_PUBLIC_END

#endif
