/* Caches of layered codecs, one upon another. */
#include "lib/base/alloc.h"
#include "lib/scheme.h"
#include "lib/seq/cache_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void kv_cache_put_on(struct kv_cache *c, struct kv_cache *below)
{
    assert(c->side[KV_K].codec->layered && !c->n && !c->below && below != c);
    c->below = below;
}

void kv_cache_free_unread(struct kv_cache *c)
{
    struct kv_cache *last = c;

    for (size_t i = 1; i < c->side[KV_K].codec->layered->n_below && last; i++)
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

    if (!k->layered || !k->layered->n_below || !k->layer)
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

/* The neighbours, in the workspaces, of the coded tokens from index first
 * on. */
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

/* ---- in place: neighbours are decoded anew --------------------------------
 */

enum { TOGETHER = 256 }; /* tokens */

/* The number of neighbour rows from which a token of a side in place is
 * predicted. */
static size_t n_sources(const struct kv_codec *c)
{
    return KV_SIDES * c->layered->n_below + (c->side == KV_V);
}

/* Decodes the neighbours of coded tokens [from, from + n), n at most TOGETHER.
 * room: [n_sources()][TOGETHER][row]. */
static struct kv_neighbours decode_near(const struct kv_cache *c,
                                        const struct kv_codec *codec,
                                        size_t from, size_t n, float *room)
{
    const size_t values = TOGETHER * kv_codec_row(codec);
    const struct kv_cache *below = c;
    struct kv_neighbours to = {0};

    for (size_t i = 0; i < codec->layered->n_below; i++) {
        below = below->below;
        for (int side = 0; side < KV_SIDES; side++, room += values) {
            kv_cache_decode_layered(below, (enum kv_side)side, from, n, room);
            to.below[i][side] = room;
        }
    }
    if (codec->side == KV_V) {
        kv_cache_decode_layered(c, KV_K, from, n, room);
        to.own_k = room;
    }
    return to;
}

static float *new_room(const struct kv_codec *c)
{
    return kv_alloc(n_sources(c) * TOGETHER, kv_codec_row(c) * sizeof(float));
}

static void decode_in_place(const struct kv_cache *c,
                            const struct kv_cache_side *s, size_t from,
                            size_t n, float *x)
{
    const struct kv_codec *codec = s->codec;
    const uint8_t *bytes =
        s->blocks + (from - s->gone_blocks) * codec->block_bytes;
    float *room = new_room(codec);

    assert(from >= s->gone_blocks);
    for (size_t t = 0; t < n; t += TOGETHER) {
        const size_t some = n - t < TOGETHER ? n - t : TOGETHER;
        const struct kv_neighbours at =
            decode_near(c, codec, from + t, some, room);

        codec->layered->decode(codec, &at, bytes + t * codec->block_bytes, some,
                               x + t * kv_codec_row(codec));
    }
    free(room);
}

static void encode_in_place(const struct kv_cache *c,
                            const struct kv_cache_side *s, struct kv_where w,
                            const float *x, size_t n, uint8_t *bytes)
{
    const struct kv_codec *codec = s->codec;
    float *room = new_room(codec);

    for (size_t t = 0; t < n; t += TOGETHER) {
        const size_t some = n - t < TOGETHER ? n - t : TOGETHER;
        const struct kv_neighbours at =
            decode_near(c, codec, s->n_blocks + t, some, room);

        codec->layered->encode(codec, w, &at, x + t * kv_codec_row(codec), some,
                               bytes + t * codec->block_bytes);
        w.first += some;
    }
    free(room);
}

/* ---- blocks ----------------------------------------------------------------
 */

/* Makes room for the decoded form of n tokens. */
static void want_decoded(struct kv_cache_side *s, size_t n)
{
    if (n <= s->decoded_capacity)
        return;
    s->decoded_capacity = n * 2;
    s->decoded = kv_realloc(s->decoded, s->decoded_capacity,
                            kv_codec_row(s->codec) * sizeof(*s->decoded));
}

void kv_cache_decode_layered(const struct kv_cache *c, enum kv_side side,
                             size_t from, size_t n, float *x)
{
    const struct kv_cache_side *s = &c->side[side];
    const size_t row = kv_codec_row(s->codec);

    if (s->codec->layered->in_place)
        decode_in_place(c, s, from, n, x);
    else
        memcpy(x, s->decoded + from * row, n * row * sizeof(*x));
}

void kv_cache_fill_layered(struct kv_cache *c, struct kv_cache_side *s)
{
    const struct kv_layered *layered = s->codec->layered;

    if (layered->in_place)
        return;

    const struct kv_neighbours at = neighbours_of(c, s->codec, 0);

    want_decoded(s, s->n_blocks);
    layered->decode(s->codec, &at, s->blocks, s->n_blocks, s->decoded);
}

void kv_cache_encode_layered(struct kv_cache *c, struct kv_cache_side *s,
                             struct kv_where w, const float *x, size_t n,
                             uint8_t *bytes)
{
    const struct kv_codec *codec = s->codec;
    const size_t row = kv_codec_row(codec);

    if (codec->layered->in_place) {
        encode_in_place(c, s, w, x, n, bytes);
        return;
    }

    const struct kv_neighbours at = neighbours_of(c, codec, s->n_blocks);

    want_decoded(s, s->n_blocks + n);
    codec->layered->encode(codec, w, &at, x, n, bytes);
    codec->layered->decode(codec, &at, bytes, n,
                           s->decoded + s->n_blocks * row);
}
