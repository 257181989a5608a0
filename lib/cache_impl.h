/* What cache.c and cache_save.c share: a cache from the inside. */
#ifndef KV_CACHE_IMPL_H
#define KV_CACHE_IMPL_H

#include "lib/cache.h"

#include <stdbool.h>

/* K or V.  Tokens: sinks, then n_blocks * block quantized, then the tail (or,
 * with history, the open block's codes). */
struct kv_cache_side {
    const struct kv_codec *codec;
    size_t n_sinks, n_blocks, n_tail, n_open;
    uint16_t *sink, *tail;
    uint8_t *blocks, *open;
    uint32_t *size;     /* [n_blocks] of a variable codec, else NULL */
    size_t block_bytes; /* of all blocks together, sizes not counted */
    size_t blocks_room, size_room, tail_room;
};

struct kv_cache {
    struct kv_cache_side side[KV_SIDES];
    uint64_t seed;
    size_t n;
    uint16_t *query; /* of the tail's probes, in their order */
    size_t n_queries, query_room;
    float *saliency; /* of the blocks that this append quantizes, or NULL */
};

/* Room for so many more bytes of blocks; where they begin. */
uint8_t *kv_cache_more_bytes(struct kv_cache_side *s, size_t n);

/* Counts one more block, of a variable codec. */
void kv_cache_push_size(struct kv_cache_side *s, uint32_t size);

/* How many queries the tail keeps. */
size_t kv_cache_tail_probes(const struct kv_cache *c);

static inline size_t kv_cache_row(const struct kv_codec *c)
{
    return c->shape.n_kv_heads * c->shape.head_dim;
}

static inline bool kv_needs_queries(const struct kv_codec *k)
{
    return k->scheme->probe;
}

static inline size_t kv_cache_query_row(const struct kv_codec *k)
{
    return k->shape.n_heads * k->shape.head_dim;
}

/* Of the quantized blocks, with their sizes where they vary. */
static inline size_t kv_cache_codes_bytes(const struct kv_cache_side *s)
{
    return s->block_bytes +
           (s->codec->variable ? s->n_blocks * sizeof(*s->size) : 0);
}

static inline size_t kv_cache_query_bytes(const struct kv_cache *c)
{
    return c->n_queries * kv_cache_query_row(c->side[KV_K].codec) *
           sizeof(*c->query);
}

#endif
