/* Counts the storage of a cache that drops tokens. */
#include "kernels/tiles/tiles.h"
#include "lib/base/alloc.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "lib/seq/policy_cache_impl.h"

#include <math.h>
#include <stdlib.h>

/* Whether a block's tokens can be dropped for a single KV head. */
static bool heads_apart(const struct kv_codec *c)
{
    struct kv_store s = {.values = c->side == KV_V,
                         .n_heads = c->shape.n_kv_heads,
                         .head_dim = c->shape.head_dim};

    return !c->variable && c->scheme->store && c->scheme->store(c, &s) &&
           !s.together;
}

/* The stored data of a side, over all KV heads. */
struct stored {
    size_t kept, unquantized; /* held tokens; held tokens in fp16 */
    size_t massive, at;  /* massive tokens, over all heads; their indices, which
                          * heads share */
    double coded, bytes; /* tokens of blocks with held tokens; bytes */
};

/* Whether the head holds token j. */
static bool holds(const struct kv_held *h, size_t j)
{
    size_t from = 0, to = h->n;

    while (from < to) {
        const size_t mid = from + (to - from) / 2;

        if (kv_position_of(h, mid) < j)
            from = mid + 1;
        else
            to = mid;
    }
    return from < h->n && kv_position_of(h, from) == j;
}

/* Counts the massive tokens; each head keeps its own values of them. */
static void add_massive(const struct kv_policy_cache *c,
                        const struct kv_kept_tokens *k, struct stored *s)
{
    for (size_t i = 0; i < k->n; i++) {
        const size_t before = s->massive;

        for (size_t h = 0; h < c->shape->n_kv_heads; h++)
            s->massive += holds(&c->held[h], k->at[i]);
        s->at += s->massive > before;
    }
}

/* Counts a block of this many bytes, in which KV head h holds in[h] tokens. */
static void add_block(const struct kv_policy_cache *c,
                      const struct kv_codec *codec, const size_t *in,
                      size_t size, struct stored *s)
{
    const size_t heads = c->shape->n_kv_heads, block = codec->block;
    size_t with = 0, whole = 0; /* KV heads that hold some, or all, of its
                                 * tokens */

    for (size_t h = 0; h < heads; h++) {
        with += in[h] > 0;
        whole += in[h] == block;
    }
    if (with && !heads_apart(codec))
        with = heads;
    s->bytes += (double)size * (double)with / (double)heads;
    /* One bit per token says which tokens are dropped. */
    s->bytes += (double)((with - whole) * ((block + 7) / 8));
    s->coded += (double)(with * block);
}

static struct stored stored_of(const struct kv_policy_cache *c,
                               enum kv_side side)
{
    const struct kv_reader r = kv_cache_reader(c->cache, side);
    const size_t heads = c->shape->n_kv_heads, block = r.codec->block;
    const size_t coded = r.sinks + r.n_blocks * block;
    size_t *in = kv_alloc(r.n_blocks * heads, sizeof(*in));
    struct stored s = {0};

    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < c->held[h].n; i++, s.kept++) {
            const size_t j = kv_position_of(&c->held[h], i);

            if (j < r.sinks || j >= coded)
                s.unquantized++;
            else
                in[(j - r.sinks) / block * heads + h]++;
        }
    for (size_t b = 0; b < r.n_blocks; b++)
        add_block(c, r.codec, in + b * heads,
                  r.codec->declared_bytes ? r.codec->declared_bytes
                  : r.size                ? r.size[b] + sizeof(*r.size)
                                          : r.codec->block_bytes,
                  &s);
    add_massive(c, &r.kept, &s);
    free(in);
    return s;
}

void kv_policy_cache_bits(const struct kv_policy_cache *c, enum kv_side side,
                          struct kv_bits *bits)
{
    const struct stored s = stored_of(c, side);
    const struct kv_shape *shape = c->shape;
    const size_t d = shape->head_dim;
    const size_t seen = kv_shape_seen(shape, kv_cache_tokens(c->cache));
    const size_t halves =
        s.unquantized + s.massive +
        kv_cache_reader(c->cache, side).n_queries * shape->n_heads;

    bits->bytes += s.bytes + (double)(halves * d * sizeof(uint16_t)) +
                   (double)(s.at * sizeof(uint32_t));
    bits->values += (double)(seen * shape->n_kv_heads * d);
    bits->quantized_bytes += s.bytes;
    bits->quantized_values += s.coded * (double)d;
    bits->kept_values += (double)(s.kept * d);
    kv_bits_count(bits, c->cache, side);
}

size_t kv_policy_cache_span(const struct kv_policy_cache *c)
{
    double most = 0;

    for (int side = 0; side < KV_SIDES; side++) {
        const struct stored s = stored_of(c, (enum kv_side)side);

        most = fmax(most, s.coded + (double)s.unquantized);
    }
    return (size_t)ceil(most / (double)c->shape->n_kv_heads);
}
