/* The model's dimensions that a codec depends on. */
#ifndef KV_SHAPE_H
#define KV_SHAPE_H

#include "kernels/attend.h"
#include "kernels/rope.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { KV_MAX_HEAD_DIM = 576, KV_MAX_LAYERS = 4096, KV_MAX_SLOPES = 256 };

enum kv_side { KV_K, KV_V, KV_SIDES };

struct kv_shape {
    size_t n_layers;
    size_t n_heads;    /* query heads */
    size_t n_kv_heads; /* divides n_heads */
    size_t head_dim;   /* even, at most KV_MAX_HEAD_DIM */
    /* Not 0: multi-head latent attention in its absorbed form.  There is one KV
     * head, a token's cache is its key alone, and its value is the key's first
     * `latent` channels.  RoPE turns pairs of the other channels. */
    size_t latent;
    float attn_scale; /* logits are attn_scale * q . k */
    float cap;        /* soft cap of logits; 0: none */
    size_t window;    /* this layer's window; 0: it sees all tokens */
    /* RoPE rotates pair i < n_rot of channels (kv_shape_pairs()) by position *
     * inv_freq[i]; other channels stay (n_rot = head_dim/2 for Llama, 0 without
     * RoPE).  Pairs are channels i and i + n_rot, or neighbours, as in the
     * model, since queries and keys have the model's own order of channels
     * everywhere.  With a latent, channels are counted from the latent's
     * end. */
    size_t n_rot;
    bool neighbours;
    /* llama.cpp's files hold these keys in another order of channels: there
     * RoPE turns neighbours, here it turns the halves of a head. */
    bool ggml_neighbours;
    float inv_freq[KV_MAX_HEAD_DIM / 2];
    /* Sliding layers: bit layer % 64 of word layer / 64; their window and
     * RoPE. */
    uint64_t slides[KV_MAX_LAYERS / 64];
    size_t slide_window;
    float slide_freq[KV_MAX_HEAD_DIM / 2];
    /* The sliding layers' heads if they differ from the other layers'; RoPE
     * then turns all of their channels.  0: the same heads. */
    size_t slide_dim, slide_kv_heads;
    /* Layers of the model after these n_layers, without keys and values of
     * their own.  Each attends with the keys and values of the last of the
     * n_layers of its kind, sliding or not (kv_shape_owner()). */
    size_t n_shared;
    uint64_t still[KV_MAX_LAYERS / 64]; /* layers without RoPE, bits as above */
    /* Layers without attention, which n_layers and numbers of layers leave out:
     * bit i % 64 of a word for layer i of the model's own count.  Each has a
     * state of state_floats f32 per sequence, whose size does not depend on the
     * sequence's length. */
    uint64_t stateful[KV_MAX_LAYERS / 64];
    size_t n_states, state_floats;
    size_t n_bare; /* layers that are an MLP alone: `stateful` has them too, but
                    * they hold nothing and n_states leaves them out */
    bool alibi;    /* then n_heads is at most KV_MAX_SLOPES */
    float slope[KV_MAX_SLOPES];
    /* The bias that the model adds to every key before RoPE:
     * [n_layers][n_kv_heads][head_dim], or [n_kv_heads][head_dim] in the shape
     * of one layer; NULL: none, or not known.  The model or the dump owns the
     * memory. */
    const float *k_bias;
    /* Logits of attention sinks (kernels/attend.h), [n_layers][n_heads], or
     * [n_heads] in the shape of one layer; NULL: the model has none.  Owned as
     * k_bias. */
    const float *sink_logit;
    /* Scales of an fp8 cache that the model's files hold, value = scale * code:
     * [n_layers][KV_SIDES], or [KV_SIDES] in the shape of one layer; 0: no
     * scale for this layer and side; NULL: no scales.  Owned as k_bias. */
    const float *cache_scale;
};

/* The channels that RoPE turns together, counted from a latent's end. */
static inline struct kv_rope_pairs kv_shape_pairs(const struct kv_shape *s)
{
    return s->neighbours ? (struct kv_rope_pairs){s->n_rot, 2, 1}
                         : (struct kv_rope_pairs){s->n_rot, 1, s->n_rot};
}

/* A layer's bit of [KV_MAX_LAYERS / 64] words. */
static inline bool kv_layer_bit(const uint64_t *words, size_t layer)
{
    return words[layer / 64 % (KV_MAX_LAYERS / 64)] >> layer % 64 & 1;
}

static inline void kv_layer_set(uint64_t *words, size_t layer, bool on)
{
    uint64_t *word = &words[layer / 64 % (KV_MAX_LAYERS / 64)];
    const uint64_t bit = (uint64_t)1 << layer % 64;

    *word = on ? *word | bit : *word & ~bit;
}

static inline bool kv_shape_slides(const struct kv_shape *s, size_t layer)
{
    return kv_layer_bit(s->slides, layer);
}

static inline bool kv_shape_still(const struct kv_shape *s, size_t layer)
{
    return kv_layer_bit(s->still, layer);
}

/* Whether layer `own` of the model's own count is without attention. */
static inline bool kv_shape_stateful(const struct kv_shape *s, size_t own)
{
    return kv_layer_bit(s->stateful, own);
}

/* The number of layers without attention before layer `own` of the model's own
 * count. */
static inline size_t kv_shape_states(const struct kv_shape *s, size_t own)
{
    size_t n = 0;

    for (size_t i = 0; i < own; i++)
        n += kv_shape_stateful(s, i);
    return n;
}

/* The layer's number in the model's own count. */
static inline size_t kv_shape_own(const struct kv_shape *s, size_t layer)
{
    size_t own = 0;

    for (;; own++)
        if (!kv_shape_stateful(s, own) && !layer--)
            return own;
}

/* The sizes of one layer's heads. */
static inline size_t kv_shape_dim(const struct kv_shape *s, size_t layer)
{
    return s->slide_dim && kv_shape_slides(s, layer) ? s->slide_dim
                                                     : s->head_dim;
}

static inline size_t kv_shape_kv_heads(const struct kv_shape *s, size_t layer)
{
    return s->slide_dim && kv_shape_slides(s, layer) ? s->slide_kv_heads
                                                     : s->n_kv_heads;
}

/* The maximum over the layers of the number of values in a token's keys, and in
 * its queries. */
static inline size_t kv_shape_kv_most(const struct kv_shape *s)
{
    const size_t n = s->n_kv_heads * s->head_dim;
    const size_t slide = s->slide_kv_heads * s->slide_dim;

    return slide > n ? slide : n;
}

static inline size_t kv_shape_q_most(const struct kv_shape *s)
{
    return s->n_heads *
           (s->slide_dim > s->head_dim ? s->slide_dim : s->head_dim);
}

/* The number of values in a token's keys in all layers. */
static inline size_t kv_shape_kv_all(const struct kv_shape *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_layers; i++)
        n += kv_shape_kv_heads(s, i) * kv_shape_dim(s, i);
    return n;
}

/* Whether layers differ in the sizes of their heads, or share keys and values.
 * Then no scheme may code layers together or predict a layer from another.
 */
static inline bool kv_shape_by_kind(const struct kv_shape *s)
{
    return s->slide_dim || s->n_shared;
}

/* The layer whose keys and values are read by layer `layer`, which may be one
 * of the n_shared after n_layers. */
static inline size_t kv_shape_owner(const struct kv_shape *s, size_t layer)
{
    size_t own = s->n_layers - 1;

    if (layer < s->n_layers)
        return layer;
    while (own && kv_shape_slides(s, own) != kv_shape_slides(s, layer))
        own--;
    return own;
}

/* Bytes of a sequence's state in the layers without attention. */
static inline size_t kv_shape_state_bytes(const struct kv_shape *s)
{
    return s->n_states * s->state_floats * sizeof(float);
}

/* The shape of one layer, for its attention, codecs and caches.  s: the model's
 * shape, not one layer's. */
static inline struct kv_shape kv_shape_layer(const struct kv_shape *s,
                                             size_t layer)
{
    struct kv_shape one = *s;

    if (kv_shape_slides(s, layer)) {
        one.window = s->slide_window;
        memcpy(one.inv_freq, s->slide_freq, sizeof(one.inv_freq));
        if (s->slide_dim) {
            one.head_dim = s->slide_dim;
            one.n_kv_heads = s->slide_kv_heads;
            one.n_rot = s->slide_dim / 2;
        }
    }
    if (kv_shape_still(s, layer))
        one.n_rot = 0;
    if (s->k_bias)
        one.k_bias = s->k_bias + layer * s->n_kv_heads * s->head_dim;
    if (s->sink_logit)
        one.sink_logit = s->sink_logit + layer * s->n_heads;
    if (s->cache_scale)
        one.cache_scale = s->cache_scale + layer * KV_SIDES;
    return one;
}

/* One layer with the KV heads of all layers, the lowest layer first, for a
 * codec that codes a token's layers together.  It is not used for attention.
 * s: the model's shape. */
static inline struct kv_shape kv_shape_merged(const struct kv_shape *s)
{
    struct kv_shape one = *s;

    one.n_heads *= s->n_layers;
    one.n_kv_heads *= s->n_layers;
    one.n_layers = 1;
    memset(one.slides, 0, sizeof(one.slides));
    memset(one.still, 0, sizeof(one.still));
    return one;
}

/* The view for causal attention of queries [first, first + nq) over n tokens of
 * a sequence; valid as long as s. */
static inline struct kv_attend_view
kv_shape_view(const struct kv_shape *s, size_t n, size_t first, size_t nq)
{
    return (struct kv_attend_view){.n_seqs = 1,
                                   .n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim = s->head_dim,
                                   .n = n,
                                   .nq = nq,
                                   .first = first,
                                   .scale = s->attn_scale,
                                   .cap = s->cap,
                                   .slope = s->alibi ? s->slope : NULL,
                                   .sink_logit = s->sink_logit,
                                   .window = s->window < n ? s->window : 0};
}

/* How many of n tokens the newest token's query sees in this one layer. */
static inline size_t kv_shape_seen(const struct kv_shape *s, size_t n)
{
    return s->window && s->window < n ? s->window : n;
}

/* How many sides have records of their own: only K if there is a latent. */
static inline int kv_shape_sides(const struct kv_shape *s)
{
    return s->latent ? KV_K + 1 : KV_SIDES;
}

static inline char kv_side_name(enum kv_side side)
{
    return side == KV_K ? 'K' : 'V';
}

#endif
