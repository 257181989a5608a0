/* Shared by cache.c, cache_bytes.c, cache_kept.c, cache_layered.c and
 * cache_read.c. */
#ifndef KV_CACHE_IMPL_H
#define KV_CACHE_IMPL_H

#include "lib/base/half.h"
#include "lib/kept_tokens.h"
#include "lib/seq/cache.h"

/* One side of a cache, K or V.  It holds the sinks, then n_blocks * block
 * quantized tokens, then the tail (or, with history, the open block's
 * codes). */
struct kv_cache_side {
    const struct kv_codec *codec;
    size_t n_sinks, n_blocks, n_tail, n_open;
    uint16_t *sink, *tail;
    uint8_t *blocks, *open;
    size_t n_clipped;   /* kv_cache_clipped() */
    uint32_t *size;     /* [n_blocks] of a variable codec, else NULL */
    size_t block_bytes; /* bytes of all blocks, without sizes */
    size_t gone_blocks, gone_bytes; /* the first blocks that left memory: their
                                     * number and bytes */
    size_t blocks_capacity, size_capacity, tail_capacity;
    struct kv_kept_tokens kept; /* the blocks' tokens kept in fp16 */
    float *decoded; /* [n_blocks][row] decoded blocks, the workspace of a
                     * layered codec that is not in place; else NULL */
    size_t decoded_capacity;
};

struct kv_cache {
    struct kv_cache_side side[KV_SIDES];
    uint64_t seed;
    size_t n;
    uint16_t *query; /* queries of the tail's probes, in their order */
    size_t n_queries, query_capacity;
    struct kv_cache *below; /* of a layered codec: the next lower layer's
                             * cache, owned; NULL: none */
    float *saliency;    /* saliency of the blocks that this append quantizes, or
                         * NULL */
    const float *new_v; /* [n_new][row] during an append: its values; else
                         * NULL */
    size_t n_new;
    bool *massive; /* [n], where a codec keeps massive tokens; else NULL */
    size_t massive_capacity;
};

/* Whether V has no record of its own. */
static inline bool kv_cache_is_latent(const struct kv_cache *c)
{
    return c->side[KV_V].codec == c->side[KV_K].codec;
}

/* The side whose record is read for this side. */
static inline enum kv_side kv_cache_holder(const struct kv_cache *c,
                                           enum kv_side side)
{
    return kv_cache_is_latent(c) ? KV_K : side;
}

static inline void kv_cache_from_half(const uint16_t *h, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = kv_f16_to_f32(h[i]);
}

/* Marks which of the n new tokens are massive, if a side keeps massive
 * tokens. */
void kv_cache_find_massive(struct kv_cache *c, const float *k, const float *v,
                           size_t n);

/* Keeps the massive tokens among n_ready tokens x, whole blocks from token
 * `first` on, and puts the values to be coded for them into x. */
void kv_cache_keep(struct kv_cache *c, struct kv_cache_side *s, size_t first,
                   float *x, size_t n_ready);

/* Encodes n tokens x [n][row] of a layered codec to bytes, and appends the
 * decoded tokens to the workspace, if there is one. */
void kv_cache_encode_layered(struct kv_cache *c, struct kv_cache_side *s,
                             struct kv_where w, const float *x, size_t n,
                             uint8_t *bytes);

/* Decodes the coded tokens [from, from + n) of a layered side. */
void kv_cache_decode_layered(const struct kv_cache *c, enum kv_side side,
                             size_t from, size_t n, float *x);

/* Fills the workspace of a layered side, if it has one, when the blocks were
 * loaded without their values; K before V. */
void kv_cache_fill_layered(struct kv_cache *c, struct kv_cache_side *s);

/* Whether token i after K's last quantized one is a probe; K's scheme has a
 * probe(). */
bool kv_cache_is_probe(const struct kv_cache *c, size_t i);

/* Fails unless the layers below hold codes for each of the first n tokens that
 * c will code. */
int kv_cache_check_below(const struct kv_cache *c, size_t n, struct kv_err *e);

#endif
