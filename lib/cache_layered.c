/* Caches of layered codecs, one upon another. */
#include "lib/base/alloc.h"
#include "lib/cache_impl.h"

#include <assert.h>
#include <stdlib.h>

void kv_cache_put_on(struct kv_cache *c, struct kv_cache *below)
{
    const struct kv_codec *k = c->side[KV_K].codec;
    struct kv_cache *last = c;

    assert(k->layered && !c->n && !c->below && below != c);
    c->below = below;
    for (size_t i = 0; i < k->layered->n_below && last; i++)
        last = last->below;
    if (last) {
        kv_cache_free(last->below);
        last->below = NULL;
    }
}

struct kv_cache *kv_cache_below(const struct kv_cache *c)
{
    return c->below;
}

int kv_cache_check_below(const struct kv_cache *c, size_t n, struct kv_err *e)
{
    const struct kv_codec *k = c->side[KV_K].codec;
    const struct kv_cache *below = c->below;

    if (!k->layered || !k->layer)
        return 0;
    if (!below)
        return kv_fail(e, "layer %zu: %s wants the cache of the layer below",
                       k->layer, k->spec.text);
    if (below->side[KV_V].n_blocks < kv_quantized(k, n))
        return kv_fail(e,
                       "layer %zu: token %zu is not in the layer below, which "
                       "has %zu",
                       k->layer, n - 1, below->n);
    return 0;
}

/* The neighbours of the tokens from the first-th coded one on. */
static struct kv_neighbours neighbours_of(const struct kv_cache *c,
                                          const struct kv_codec *codec,
                                          size_t first)
{
    const size_t at = first * kv_codec_row(codec);
    const struct kv_cache *below = c->below;
    struct kv_neighbours to = {0};

    if (codec->side == KV_V)
        to.own_k = c->side[KV_K].decoded + at;
    for (size_t i = 0; i < codec->layered->n_below && below; i++) {
        for (int side = 0; side < KV_SIDES; side++)
            to.below[i][side] = below->side[side].decoded + at;
        below = below->below;
    }
    return to;
}

void kv_cache_encode_layered(struct kv_cache *c, struct kv_cache_side *s,
                             struct kv_where w, const float *x, size_t n,
                             uint8_t *bytes)
{
    const struct kv_codec *codec = s->codec;
    const size_t row = kv_codec_row(codec);
    const struct kv_neighbours at = neighbours_of(c, codec, s->n_blocks);

    if (s->n_blocks + n > s->decoded_capacity) {
        s->decoded_capacity = (s->n_blocks + n) * 2;
        s->decoded = kv_realloc(s->decoded, s->decoded_capacity,
                                row * sizeof(*s->decoded));
    }
    codec->layered->encode(codec, w, &at, x, n, bytes);
    codec->layered->decode(codec, &at, bytes, n,
                           s->decoded + s->n_blocks * row);
}
