#include "lib/seq/cache.h"
#include "lib/anchor_score.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/k_bias.h"
#include "lib/rope_table.h"
#include "lib/saliency.h"
#include "lib/scheme.h"
#include "lib/seq/cache_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool needs_queries(const struct kv_codec *k)
{
    return k->scheme->probe;
}

static size_t query_values(const struct kv_codec *k)
{
    return k->shape.n_heads * k->shape.head_dim;
}

/* The bytes of the quantized blocks, with their sizes if they vary. */
static size_t codes_bytes(const struct kv_cache_side *s)
{
    if (s->codec->declared_bytes)
        return s->n_blocks * s->codec->declared_bytes;
    return s->block_bytes +
           (s->codec->variable ? s->n_blocks * sizeof(*s->size) : 0);
}

size_t kv_quantized(const struct kv_codec *c, size_t n)
{
    const size_t s = kv_spec_size(&c->spec, c->side, "s");
    const size_t r = kv_spec_size(&c->spec, c->side, "r");
    size_t ready = n > s ? n - s : 0;

    if (c->residual_rule == KV_SLIDING)
        ready = ready > r ? ready - r : 0;
    else if (r)
        ready = ready / r * r;
    return ready / c->block * c->block;
}

static bool quantize_alike(const struct kv_codec *k, const struct kv_codec *v)
{
    return k->block == v->block && k->residual_rule == v->residual_rule &&
           kv_spec_size(&k->spec, KV_K, "s") ==
               kv_spec_size(&v->spec, KV_V, "s") &&
           kv_spec_size(&k->spec, KV_K, "r") ==
               kv_spec_size(&v->spec, KV_V, "r");
}

int kv_cache_new(struct kv_cache **out, const struct kv_codec *k,
                 const struct kv_codec *v, uint64_t seed, struct kv_err *e)
{
    struct kv_cache *c;

    if (k->side != KV_K || (v != k && v->side != KV_V) || k->layer != v->layer)
        return kv_fail(e, "a cache wants the K and the V codec of one layer");
    if ((needs_queries(k) || k->layered) && !quantize_alike(k, v))
        return kv_fail(e, "%s: K and V must quantize the same blocks",
                       k->spec.text);
    c = kv_alloc(1, sizeof(*c));
    c->seed = seed;
    for (int i = 0; i < KV_SIDES; i++) {
        struct kv_cache_side *s = &c->side[i];

        s->codec = i == KV_K ? k : v;
        s->sink = kv_alloc(kv_spec_size(&s->codec->spec, (enum kv_side)i, "s"),
                           kv_codec_row(s->codec) * sizeof(*s->sink));
        s->kept.row = kv_codec_row(s->codec);
        if (s->codec->history)
            s->open = kv_alloc(s->codec->block_bytes, 1);
    }
    *out = c;
    return 0;
}

void kv_cache_free(struct kv_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < KV_SIDES; i++) {
        free(c->side[i].sink);
        free(c->side[i].tail);
        free(c->side[i].blocks);
        free(c->side[i].size);
        free(c->side[i].open);
        free(c->side[i].decoded);
        kv_kept_tokens_clear(&c->side[i].kept);
    }
    kv_cache_free(c->below);
    free(c->massive);
    free(c->query);
    free(c);
}

static void to_half(const float *x, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kv_f16_clamp(x[i]);
}

/* Makes room for n more bytes of blocks; returns their beginning. */
static uint8_t *more_bytes(struct kv_cache_side *s, size_t n)
{
    const size_t have = s->block_bytes - s->gone_bytes;

    if (!s->blocks || have + n > s->blocks_capacity) {
        s->blocks_capacity = (have + n) * 2 + 1;
        s->blocks = kv_realloc(s->blocks, s->blocks_capacity, 1);
    }
    return s->blocks + have;
}

/* Records the size of one more block of a variable codec. */
static void push_size(struct kv_cache_side *s, uint32_t size)
{
    if (s->n_blocks == s->size_capacity) {
        s->size_capacity = s->n_blocks * 2 + 16;
        s->size = kv_realloc(s->size, s->size_capacity, sizeof(*s->size));
    }
    s->size[s->n_blocks++] = size;
    s->block_bytes += size;
}

/* Appends n blocks of codes, x [n * block][n_kv_heads][head_dim]. */
static int encode(struct kv_cache *cache, struct kv_cache_side *s,
                  struct kv_where w, const float *x, size_t n, struct kv_err *e)
{
    const struct kv_codec *c = s->codec;

    if (!c->variable) {
        if (c->layered)
            kv_cache_encode_layered(cache, s, w, x, n,
                                    more_bytes(s, n * c->block_bytes));
        else if (kv_codec_encode(c, w, x, n, more_bytes(s, n * c->block_bytes),
                                 e))
            return -1;
        s->n_blocks += n;
        s->block_bytes += n * c->block_bytes;
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        push_size(s, (uint32_t)c->variable->encode_block(
                         c, w, x + i * kv_codec_block_values(c),
                         more_bytes(s, c->block_bytes)));
        w.first += c->block;
        if (w.saliency)
            w.saliency += c->shape.n_kv_heads * c->block;
    }
    return 0;
}

static void push_tail(struct kv_cache_side *s, const float *x, size_t n)
{
    const size_t row = kv_codec_row(s->codec);

    if (s->n_tail + n > s->tail_capacity) {
        s->tail_capacity = (s->n_tail + n) * 2;
        s->tail = kv_realloc(s->tail, s->tail_capacity, row * sizeof(*s->tail));
    }
    to_half(x, n * row, s->tail + s->n_tail * row);
    s->n_tail += n;
}

/* The position of the i-th block that is not yet quantized. */
static struct kv_where next_block(const struct kv_cache *c,
                                  const struct kv_cache_side *s, size_t i)
{
    return (struct kv_where){.first = s->n_sinks +
                                      (s->n_blocks + i) * s->codec->block,
                             .seed = c->seed,
                             .saliency = c->saliency};
}

bool kv_cache_is_probe(const struct kv_cache *c, size_t i)
{
    const struct kv_cache_side *s = &c->side[KV_K];
    const struct kv_codec *k = s->codec;

    return k->scheme->probe(k, next_block(c, s, i / k->block), i % k->block);
}

/* Appends the queries of the probes among K's n new tokens, except sinks. */
static void push_queries(struct kv_cache *c, const float *q, size_t n)
{
    const size_t row = query_values(c->side[KV_K].codec);

    for (size_t i = 0; i < n; i++) {
        if (!kv_cache_is_probe(c, c->side[KV_K].n_tail + i))
            continue;
        if (c->n_queries == c->query_capacity) {
            c->query_capacity = c->n_queries * 2 + 16;
            c->query = kv_realloc(c->query, c->query_capacity,
                                  row * sizeof(*c->query));
        }
        to_half(q + i * row, row, c->query + c->n_queries++ * row);
        c->side[KV_K].n_clipped += kv_beyond_f16(q + i * row, row);
    }
}

/* The next n tokens of V to be quantized.  K is appended first, so they are
 * still in V's tail and in new_v. */
static float *next_values(const struct kv_cache *c, size_t n)
{
    const struct kv_cache_side *s = &c->side[kv_cache_holder(c, KV_V)];
    const size_t row = kv_codec_row(s->codec);
    const size_t from_tail = n < s->n_tail ? n : s->n_tail;
    const size_t sinks =
        c->n - c->n_new < kv_spec_size(&s->codec->spec, KV_V, "s")
            ? kv_spec_size(&s->codec->spec, KV_V, "s") - (c->n - c->n_new)
            : 0;
    float *v = kv_alloc(n, row * sizeof(*v));

    kv_cache_from_half(s->tail, from_tail * row, v);
    kv_codec_input(s->codec, c->new_v + sinks * row, n - from_tail,
                   v + from_tail * row);
    return v;
}

/* Computes the anchor scores of n_blocks blocks.  k: the blocks' keys, in the
 * form that is encoded; q: their queries. */
static void score_anchors(struct kv_cache *c, const float *k, const float *q,
                          size_t n_blocks)
{
    const struct kv_codec *codec = c->side[KV_K].codec;
    const struct kv_shape *s = &codec->shape;
    const size_t n = n_blocks * codec->block, row = kv_codec_row(codec);
    const size_t first = next_block(c, &c->side[KV_K], 0).first;
    float *seen = kv_alloc(n, row * sizeof(*seen)), *v = next_values(c, n);

    memcpy(seen, k, n * row * sizeof(*seen));
    if (codec->less_bias)
        kv_k_bias_add(s, codec->pre_rope, first, seen, n);
    if (codec->pre_rope)
        kv_rope(s, seen, n, s->n_kv_heads, first);
    for (size_t b = 0; b < n_blocks; b++)
        kv_anchor_score(s, q + b * codec->block * query_values(codec),
                        seen + b * codec->block * row,
                        v + b * codec->block * row, codec->block,
                        c->saliency + b * s->n_kv_heads * codec->block, NULL);
    free(v);
    free(seen);
}

/* Scores the next n_blocks blocks and drops their queries.  k: the blocks'
 * keys, in the form that is encoded. */
static void score_blocks(struct kv_cache *c, const float *k, size_t n_blocks)
{
    const struct kv_codec *codec = c->side[KV_K].codec;
    const size_t block = codec->block, row = query_values(codec);
    const size_t scores = codec->shape.n_kv_heads * block;
    const bool anchors = codec->scheme->anchors;
    const size_t together = anchors ? n_blocks * block : block;
    float *q = kv_alloc(together, row * sizeof(*q));
    size_t *at = kv_alloc(block, sizeof(*at)), used = 0;

    c->saliency = kv_alloc(n_blocks, scores * sizeof(*c->saliency));
    if (anchors) {
        used = together;
        kv_cache_from_half(c->query, used * row, q);
        score_anchors(c, k, q, n_blocks);
    }
    for (size_t b = 0; b < n_blocks && !anchors; b++) {
        size_t n_probes = 0;

        for (size_t i = 0; i < block; i++)
            if (kv_cache_is_probe(c, b * block + i))
                at[n_probes++] = i;
        kv_cache_from_half(c->query + used * row, n_probes * row, q);
        kv_saliency(&codec->shape, q, at, n_probes,
                    k + b * kv_codec_block_values(codec), block,
                    c->saliency + b * scores);
        used += n_probes;
    }
    c->n_queries -= used;
    if (c->n_queries)
        memmove(c->query, c->query + used * row,
                c->n_queries * row * sizeof(*c->query));
    free(at);
    free(q);
}

/* Quantizes the first n_ready tokens of the tail followed by x [n]; the rest
 * becomes the tail.  n_ready is a multiple of the block. */
static int quantize(struct kv_cache *cache, struct kv_cache_side *s,
                    const float *x, size_t n, size_t n_ready, struct kv_err *e)
{
    const struct kv_codec *c = s->codec;
    const size_t row = kv_codec_row(c);
    const size_t from_tail = n_ready < s->n_tail ? n_ready : s->n_tail;
    const size_t from_x = n_ready - from_tail;

    if (n_ready) {
        float *in = kv_alloc(n_ready, row * sizeof(*in));

        kv_cache_from_half(s->tail, from_tail * row, in);
        kv_codec_input(c, x, from_x, in + from_tail * row);
        if (needs_queries(c) && c->side == KV_K) /* V comes after K */
            score_blocks(cache, in, n_ready / c->block);

        if (c->massive)
            kv_cache_keep(cache, s, next_block(cache, s, 0).first, in, n_ready);

        const int rc = encode(cache, s, next_block(cache, s, 0), in,
                              n_ready / c->block, e);

        free(in);
        if (rc)
            return -1;
        s->n_tail -= from_tail;
        if (s->n_tail)
            memmove(s->tail, s->tail + from_tail * row,
                    s->n_tail * row * sizeof(*s->tail));
    }
    if (n > from_x)
        push_tail(s, x + from_x * row, n - from_x);
    return 0;
}

/* Appends token by token; each token requantizes the open block. */
static void append_history(const struct kv_cache *cache,
                           struct kv_cache_side *s, const float *x, size_t n)
{
    const struct kv_codec *c = s->codec;
    const size_t row = kv_codec_row(c);
    float *in = kv_alloc(row, sizeof(*in));

    for (size_t t = 0; t < n; t++) {
        kv_codec_input(c, x + t * row, 1, in);
        c->history->requantize(c, next_block(cache, s, 0), s->n_open, in,
                               s->open);
        if (++s->n_open == c->block) {
            memcpy(more_bytes(s, c->block_bytes), s->open, c->block_bytes);
            s->block_bytes += c->block_bytes;
            s->n_blocks++;
            s->n_open = 0;
        }
    }
    free(in);
}

/* q: read only for K, if its scheme has a probe(). */
static int append_side(struct kv_cache *cache, enum kv_side side,
                       const float *q, const float *x, size_t n,
                       struct kv_err *e)
{
    struct kv_cache_side *s = &cache->side[side];
    const struct kv_codec *c = s->codec;
    const size_t row = kv_codec_row(c);
    const size_t left = kv_spec_size(&c->spec, c->side, "s") - s->n_sinks;
    const size_t to_sinks = n < left ? n : left;

    s->n_clipped += kv_codec_clipped(c, x, n);
    to_half(x, to_sinks * row, s->sink + s->n_sinks * row);
    s->n_sinks += to_sinks;
    x += to_sinks * row;
    n -= to_sinks;
    if (c->history) {
        append_history(cache, s, x, n);
        return 0;
    }
    if (needs_queries(c) && side == KV_K && n)
        push_queries(cache, q + to_sinks * query_values(c), n);

    const size_t want = kv_quantized(c, cache->n),
                 have = s->n_blocks * c->block;

    return quantize(cache, s, x, n, want > have ? want - have : 0, e);
}

const float *kv_tokens_stored(const struct kv_tokens *t,
                              const struct kv_codec *c)
{
    return c->side == KV_V ? t->v : c->pre_rope ? t->k_pre : t->k;
}

static int check_input(const struct kv_cache *c, const struct kv_tokens *t,
                       struct kv_err *e)
{
    const struct kv_codec *codec = c->side[KV_K].codec;
    const size_t layer = codec->layer, row = kv_codec_row(codec);
    const float *k = kv_tokens_stored(t, codec);

    if (t->n && !k)
        return kv_fail(e, "%s needs the keys before RoPE", codec->spec.text);
    if (kv_check_finite(layer, 'K', c->n, k, t->n, row, e) ||
        (!kv_cache_is_latent(c) &&
         kv_check_finite(layer, 'V', c->n, t->v, t->n, row, e)) ||
        kv_cache_check_below(c, c->n + t->n, e))
        return -1;
    if (!needs_queries(codec))
        return 0;
    if (t->n && !t->q)
        return kv_fail(e, "%s needs the queries of the tokens it stores",
                       codec->spec.text);
    return kv_check_finite(layer, 'Q', c->n, t->q, t->n, query_values(codec),
                           e);
}

int kv_cache_append(struct kv_cache *c, const struct kv_tokens *t,
                    struct kv_err *e)
{
    const struct kv_codec *kc = c->side[KV_K].codec;
    const float *k = kv_tokens_stored(t, kc);
    float *less = NULL;
    int rc;

    if (check_input(c, t, e))
        return -1;
    kv_cache_find_massive(c, k, kv_cache_is_latent(c) ? k : t->v, t->n);
    if (kc->less_bias) {
        less = kv_alloc(t->n, kv_codec_row(kc) * sizeof(*less));
        kv_k_bias_take(&kc->shape, kc->pre_rope, c->n, k, t->n, less);
        k = less;
    }
    c->n += t->n;
    c->n_new = t->n;
    c->new_v = kv_cache_is_latent(c) ? k : t->v;
    rc = append_side(c, KV_K, t->q, k, t->n, e) ||
         (!kv_cache_is_latent(c) && append_side(c, KV_V, NULL, t->v, t->n, e));
    free(c->saliency);
    free(less);
    c->saliency = NULL;
    c->new_v = NULL;
    return rc ? -1 : 0;
}

uint64_t kv_cache_seed(const struct kv_cache *c)
{
    return c->seed;
}

size_t kv_cache_tokens(const struct kv_cache *c)
{
    return c->n;
}

/* A view of a side without the tokens that no later query of a sliding layer
 * sees.  Sinks are left out one by one, other tokens by whole blocks, quantized
 * or not. */
static struct kv_cache_side held_of(const struct kv_cache_side *s)
{
    const struct kv_codec *c = s->codec;
    const size_t n =
        s->n_sinks + s->n_blocks * c->block + s->n_tail + s->n_open;
    const size_t unseen = n - kv_shape_seen(&c->shape, n);
    const size_t sinks = unseen < s->n_sinks ? unseen : s->n_sinks;
    const size_t blocks = (unseen - sinks) / c->block;
    const size_t coded = blocks < s->n_blocks ? blocks : s->n_blocks;
    const size_t tail = (blocks - coded) * c->block;
    struct kv_cache_side held = *s;
    size_t bytes = coded * c->block_bytes;

    if (c->variable) {
        bytes = 0;
        for (size_t i = 0; i < coded; i++)
            bytes += s->size[i];
        held.size += coded;
    }
    held.sink = s->sink ? s->sink + sinks * kv_codec_row(c) : NULL;
    held.blocks = s->blocks ? s->blocks + bytes : NULL;
    held.tail = s->tail ? s->tail + tail * kv_codec_row(c) : NULL;
    held.n_sinks -= sinks;
    held.n_blocks -= coded;
    held.block_bytes -= bytes;
    held.n_tail -= tail;
    if (coded)
        held.kept =
            kv_kept_tokens_from(&s->kept, s->n_sinks + coded * c->block);
    return held;
}

/* Bytes of a side without the queries. */
static size_t side_bytes(const struct kv_cache_side *s, size_t *quantized_bytes,
                         size_t *quantized_tokens)
{
    const struct kv_cache_side held = held_of(s);
    const size_t codes = codes_bytes(&held);
    const size_t open =
        s->n_open ? s->codec->history->open_bytes(s->codec, s->n_open) : 0;

    if (quantized_bytes)
        *quantized_bytes = codes;
    if (quantized_tokens)
        *quantized_tokens = held.n_blocks * s->codec->block;
    return codes + open + held.kept.n * kv_kept_token_bytes(&held.kept) +
           (held.n_sinks + held.n_tail) * kv_codec_row(s->codec) *
               sizeof(uint16_t);
}

size_t kv_cache_bytes(const struct kv_cache *c, enum kv_side side,
                      size_t *quantized_bytes, size_t *quantized_tokens)
{
    return side_bytes(&c->side[side], quantized_bytes, quantized_tokens) +
           kv_cache_held(c, side).n_queries *
               query_values(c->side[KV_K].codec) * sizeof(*c->query);
}

size_t kv_cache_coded(const struct kv_cache *c, enum kv_side side)
{
    const struct kv_cache_side *s = &c->side[kv_cache_holder(c, side)];

    return s->n_blocks * s->codec->block + s->n_open;
}

size_t kv_cache_clipped(const struct kv_cache *c, enum kv_side side)
{
    return c->side[side].n_clipped;
}

size_t kv_held_bytes(const struct kv_codec *c, size_t n,
                     size_t *quantized_bytes, size_t *quantized_tokens)
{
    const size_t s = kv_spec_size(&c->spec, c->side, "s");
    const size_t quantized = kv_quantized(c, n),
                 n_blocks = quantized / c->block, sinks = n < s ? n : s;
    const struct kv_cache_side side = {.codec = c,
                                       .n_sinks = sinks,
                                       .n_blocks = n_blocks,
                                       .n_tail = n - quantized - sinks,
                                       .block_bytes =
                                           n_blocks * c->block_bytes};

    assert(!kv_codec_varies(c) && !c->history && !needs_queries(c));
    return side_bytes(&side, quantized_bytes, quantized_tokens);
}

static struct kv_reader reader_of(const struct kv_cache_side *s)
{
    const size_t block = s->codec->block;

    return (struct kv_reader){.codec = s->codec,
                              .n = s->n_sinks + s->n_blocks * block +
                                   s->n_tail + s->n_open,
                              .sinks = s->n_sinks,
                              .n_blocks = s->n_blocks,
                              .blocks = s->blocks,
                              .size = s->codec->variable ? s->size : NULL,
                              .open = s->open,
                              .sink = s->sink,
                              .tail = s->tail,
                              .kept = s->kept};
}

struct kv_reader kv_cache_reader(const struct kv_cache *c, enum kv_side side)
{
    struct kv_reader r = reader_of(&c->side[side]);

    r.query = c->query;
    r.n_queries = side == KV_K ? c->n_queries : 0;
    return r;
}

struct kv_reader kv_cache_held(const struct kv_cache *c, enum kv_side side)
{
    const struct kv_cache_side held = held_of(&c->side[side]);
    const size_t tail = c->side[side].n_tail - held.n_tail;
    struct kv_reader r = reader_of(&held);
    size_t gone = 0;

    if (side == KV_V || !c->n_queries)
        return r;
    for (size_t i = 0; i < tail; i++)
        gone += kv_cache_is_probe(c, i);
    r.query = c->query + gone * query_values(r.codec);
    r.n_queries = c->n_queries - gone;
    return r;
}
