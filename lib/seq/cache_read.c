/* Reading a cache. */
#include "lib/base/end.h"
#include "lib/k_bias.h"
#include "lib/scheme.h"
#include "lib/seq/cache_impl.h"

#include <assert.h>
#include <stdlib.h>

/* Decodes blocks [from, to), all still in memory. */
static void decode(const struct kv_cache *cache, enum kv_side side, size_t from,
                   size_t to, float *x)
{
    const struct kv_cache_side *s = &cache->side[side];
    const struct kv_codec *c = s->codec;
    const size_t values = kv_codec_block_values(c);
    const uint8_t *at = s->blocks;
    struct kv_err e;

    if (from == to)
        return;
    assert(from >= s->gone_blocks);
    if (c->layered) {
        kv_cache_decode_layered(cache, side, from, to - from, x);
        return;
    }
    if (!c->variable) {
        c->scheme->decode(c, at + (from - s->gone_blocks) * c->block_bytes,
                          to - from, x);
        return;
    }
    for (size_t i = s->gone_blocks; i < to; at += s->size[i++])
        if (i >= from && c->variable->decode_block(c, at, s->size[i],
                                                   x + (i - from) * values, &e))
            kv_end("%s", e.msg); /* encode_block() wrote these bytes */
}

/* Decodes sinks and tail (or the open block) to x; returns the place in x for
 * the blocks. */
static float *decode_ends(const struct kv_cache_side *s, float *x)
{
    const size_t row = kv_codec_row(s->codec);
    float *const blocks = x + s->n_sinks * row;
    float *const rest = blocks + s->n_blocks * s->codec->block * row;

    kv_cache_from_half(s->sink, s->n_sinks * row, x);
    if (s->n_open)
        s->codec->history->decode_open(s->codec, s->open, s->n_open, rest);
    else
        kv_cache_from_half(s->tail, s->n_tail * row, rest);
    return blocks;
}

/* Turns decoded tokens [first, first + n) into the tokens that readers get. */
static void finish(const struct kv_cache *c, enum kv_side side, size_t first,
                   size_t n, float *x)
{
    const struct kv_codec *codec = c->side[side].codec;

    kv_kept_tokens_restore(&c->side[side].kept, first, n, x);
    if (codec->less_bias)
        kv_k_bias_add(&codec->shape, codec->pre_rope, first, x, n);
}

void kv_cache_decode(const struct kv_cache *c, enum kv_side side, float *x)
{
    const struct kv_cache_side *s = &c->side[side = kv_cache_holder(c, side)];

    decode(c, side, 0, s->n_blocks, decode_ends(s, x));
    finish(c, side, 0, c->n, x);
}

void kv_cache_decode_part(const struct kv_cache *c, enum kv_side side,
                          size_t first, size_t end, float *x)
{
    const struct kv_cache_side *s = &c->side[side = kv_cache_holder(c, side)];
    const size_t row = kv_codec_row(s->codec), block = s->codec->block;
    const size_t codes = s->n_sinks, tail = codes + s->n_blocks * block;
    const size_t sinks = codes < end ? codes : end;
    const size_t coded = tail < end ? tail : end;
    size_t at = first;

    assert(!s->codec->history && end <= c->n);
    if (at < sinks) {
        kv_cache_from_half(s->sink + at * row, (sinks - at) * row, x);
        at = sinks;
    }
    if (at < coded) {
        assert((at - codes) % block == 0 && (coded - codes) % block == 0);
        decode(c, side, (at - codes) / block, (coded - codes) / block,
               x + (at - first) * row);
        at = coded;
    }
    if (at < end)
        kv_cache_from_half(s->tail + (at - tail) * row, (end - at) * row,
                           x + (at - first) * row);
    finish(c, side, first, end - first, x);
}

void kv_cache_forget(struct kv_cache *c)
{
    for (int i = 0; i < KV_SIDES; i++) {
        c->side[i].gone_blocks = c->side[i].n_blocks;
        c->side[i].gone_bytes = c->side[i].block_bytes;
    }
}

int kv_cache_read(const struct kv_cache *c, enum kv_side side, float *x,
                  struct kv_err *e)
{
    const struct kv_cache_side *s = &c->side[side = kv_cache_holder(c, side)];
    float *blocks = decode_ends(s, x);

    if (s->codec->variable || s->codec->layered || !s->n_blocks)
        decode(c, side, 0, s->n_blocks, blocks);
    else if (kv_codec_decode(s->codec, s->blocks, s->n_blocks, blocks, e))
        return -1;
    finish(c, side, 0, c->n, x);
    return 0;
}
