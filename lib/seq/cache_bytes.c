#include "lib/seq/cache_bytes.h"
#include "lib/base/alloc.h"
#include "lib/base/hash.h"
#include "lib/scheme.h"
#include "lib/seq/cache_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char magic[8] = {'k', 'v', 'c', 'a', 'c', 'h', 'e', 1};
enum { HASH_BYTES = 16 };
_Static_assert(sizeof(struct kv_cache_head) == 88, "without gaps");

/* ---- written -------------------------------------------------------------
 */

static uint8_t *put(uint8_t *at, const void *from, size_t n)
{
    if (n)
        memcpy(at, from, n);
    return at + n;
}

static size_t blocks_bytes(const struct kv_reader *r)
{
    size_t n = 0;

    if (!r->size)
        return r->n_blocks * r->codec->block_bytes;
    for (size_t i = 0; i < r->n_blocks; i++)
        n += r->size[i];
    return n;
}

size_t kv_codes_of(const struct kv_reader *r, uint8_t **bytes)
{
    const struct kv_codec *c = r->codec;
    const size_t row =
        c->shape.n_kv_heads * c->shape.head_dim * sizeof(uint16_t);
    const size_t rest = r->n - r->sinks - r->n_blocks * c->block;
    const size_t sink_bytes = r->sinks * row;
    const size_t size_bytes = r->size ? r->n_blocks * sizeof(*r->size) : 0;
    const size_t block_bytes = blocks_bytes(r);
    const size_t open_bytes =
        r->open && rest ? c->history->open_bytes(c, rest) : 0;
    const size_t tail_bytes = r->open ? 0 : rest * row;
    const size_t query_bytes =
        r->n_queries * c->shape.n_heads * c->shape.head_dim * sizeof(*r->query);
    const size_t kept_bytes = r->kept.n * kv_kept_token_bytes(&r->kept);
    const size_t n = sink_bytes + size_bytes + block_bytes + open_bytes +
                     tail_bytes + query_bytes + kept_bytes;
    uint8_t *at = *bytes = kv_alloc(n, 1);

    at = put(at, r->sink, sink_bytes);
    at = put(at, r->size, size_bytes);
    at = put(at, r->blocks, block_bytes);
    if (open_bytes)
        c->history->write_open(c, r->open, rest, at);
    at += open_bytes;
    at = put(at, r->tail, tail_bytes);
    at = put(at, r->query, query_bytes);
    at = put(at, r->kept.at, r->kept.n * sizeof(*r->kept.at));
    put(at, r->kept.x, r->kept.n * row);
    return n;
}

static size_t massive_bytes(const struct kv_cache *c)
{
    return c->massive ? (c->n + 7) / 8 : 0;
}

size_t kv_cache_write(const struct kv_cache *c, uint8_t **bytes)
{
    const struct kv_codec *k = c->side[KV_K].codec;
    struct kv_cache_head head = {.n_layers = (uint32_t)k->shape.n_layers,
                                 .layer = (uint32_t)k->layer,
                                 .n_heads = (uint32_t)k->shape.n_heads,
                                 .n_kv_heads = (uint32_t)k->shape.n_kv_heads,
                                 .head_dim = (uint32_t)k->shape.head_dim,
                                 .massive_bytes = (uint32_t)massive_bytes(c),
                                 .n_tokens = c->n,
                                 .seed = c->seed};
    size_t n = sizeof(head) + head.massive_bytes + HASH_BYTES;
    char hash[KV_HASH_CHARS];
    uint8_t *side[KV_SIDES], *at;

    assert(!c->side[KV_K].gone_blocks && !c->side[KV_V].gone_blocks);
    memcpy(head.magic, magic, sizeof(magic));
    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_reader r = kv_cache_reader(c, (enum kv_side)i);

        head.side_bytes[i] = kv_codes_of(&r, &side[i]);
        head.clipped[i] = c->side[i].n_clipped;
        head.spec_bytes[i] = (uint32_t)strlen(r.codec->spec.text);
        n += head.side_bytes[i] + head.spec_bytes[i];
    }
    at = *bytes = kv_alloc(n, 1);
    at = put(at, &head, sizeof(head));
    for (int i = 0; i < KV_SIDES; i++)
        at = put(at, c->side[i].codec->spec.text, head.spec_bytes[i]);
    for (int i = 0; i < KV_SIDES; i++) {
        at = put(at, side[i], head.side_bytes[i]);
        free(side[i]);
    }
    for (size_t t = 0; head.massive_bytes && t < c->n; t++)
        at[t / 8] |= (uint8_t)(c->massive[t] << t % 8);
    at += head.massive_bytes;
    kv_hash_bytes(*bytes, n - HASH_BYTES, hash);
    memcpy(at, hash, HASH_BYTES);
    return n;
}

/* ---- read ----------------------------------------------------------------
 */

/* The unread rest of a message. */
struct bytes {
    const uint8_t *at;
    size_t left;
};

/* The next n bytes; NULL if there are fewer. */
static const uint8_t *take(struct bytes *b, size_t n)
{
    const uint8_t *at = b->at;

    if (n > b->left)
        return NULL;
    b->at += n;
    b->left -= n;
    return at;
}

/* Copies the next n fp16 values to `to`, which has room for them. */
static int take_halves(struct bytes *b, size_t n, uint16_t *to)
{
    const uint8_t *at = take(b, n * sizeof(*to));

    if (at && n)
        memcpy(to, at, n * sizeof(*to));
    return at ? 0 : -1;
}

static int take_sizes(struct bytes *b, struct kv_cache_side *s)
{
    const uint8_t *at = take(b, s->n_blocks * sizeof(*s->size));

    if (!at)
        return -1;
    s->size_capacity = s->n_blocks;
    s->size = kv_alloc(s->n_blocks, sizeof(*s->size));
    if (s->n_blocks)
        memcpy(s->size, at, s->n_blocks * sizeof(*s->size));
    for (size_t i = 0; i < s->n_blocks; i++) {
        if (s->size[i] > s->codec->block_bytes)
            return -1;
        s->block_bytes += s->size[i];
    }
    return 0;
}

/* Decodes each block of a variable codec once, to check that it is valid. */
static int check_blocks(const struct kv_cache_side *s, struct kv_err *e)
{
    float *x = kv_alloc(kv_codec_block_values(s->codec), sizeof(*x));
    const uint8_t *at = s->blocks;
    int rc = 0;

    for (size_t i = 0; i < s->n_blocks && !rc; at += s->size[i++])
        rc = s->codec->variable->decode_block(s->codec, at, s->size[i], x, e);
    free(x);
    return rc;
}

/* Reads the massive tokens.  Their number is not stored: they are the rest of
 * the bytes. */
static int take_kept(struct bytes *b, struct kv_cache_side *s)
{
    struct kv_kept_tokens *k = &s->kept;
    const size_t first = s->n_sinks,
                 end = first + s->n_blocks * s->codec->block;
    const uint8_t *at;

    if (b->left % kv_kept_token_bytes(k) || (b->left && !s->codec->massive))
        return -1;
    k->n = k->capacity = b->left / kv_kept_token_bytes(k);
    k->at = kv_alloc(k->n, sizeof(*k->at));
    k->x = kv_alloc(k->n, k->row * sizeof(*k->x));
    at = take(b, k->n * sizeof(*k->at));
    if (k->n)
        memcpy(k->at, at, k->n * sizeof(*k->at));
    for (size_t i = 0; i < k->n; i++)
        if (k->at[i] < (i ? k->at[i - 1] + 1 : first) || k->at[i] >= end)
            return -1;
    return take_halves(b, k->n * k->row, k->x);
}

static int take_queries(struct bytes *b, struct kv_cache *c)
{
    const struct kv_cache_side *k = &c->side[KV_K];
    const size_t row = k->codec->shape.n_heads * k->codec->shape.head_dim;

    for (size_t i = 0; i < k->n_tail; i++)
        c->n_queries += kv_cache_is_probe(c, i);
    c->query_capacity = c->n_queries;
    c->query = kv_alloc(c->n_queries, row * sizeof(*c->query));
    return take_halves(b, c->n_queries * row, c->query);
}

struct kv_side_counts kv_side_counts(const struct kv_codec *c, size_t n)
{
    const size_t sinks = kv_spec_size(&c->spec, c->side, "s");
    struct kv_side_counts is = {.sinks = n < sinks ? n : sinks};
    size_t rest = n - is.sinks;

    is.blocks = c->history ? rest / c->block : kv_quantized(c, n) / c->block;
    rest -= is.blocks * c->block;
    is.open = c->history ? rest : 0;
    is.tail = c->history ? 0 : rest;
    return is;
}

static void count_tokens(struct kv_cache_side *s, size_t n)
{
    const struct kv_side_counts is = kv_side_counts(s->codec, n);

    s->n_sinks = is.sinks;
    s->n_blocks = is.blocks;
    s->n_open = is.open;
    s->n_tail = is.tail;
}

static int load_side(struct kv_cache *c, struct kv_cache_side *s,
                     struct bytes b)
{
    const struct kv_codec *codec = s->codec;
    const size_t row = kv_codec_row(codec);
    const uint8_t *at;

    if (take_halves(&b, s->n_sinks * row, s->sink) ||
        (codec->variable && take_sizes(&b, s)))
        return -1;
    if (!codec->variable)
        s->block_bytes = s->n_blocks * codec->block_bytes;
    if (!(at = take(&b, s->block_bytes)))
        return -1;
    s->blocks_capacity = s->block_bytes;
    s->blocks = kv_alloc(s->block_bytes, 1);
    if (s->block_bytes)
        memcpy(s->blocks, at, s->block_bytes);
    if (s->n_open) {
        const size_t n = codec->history->open_bytes(codec, s->n_open);

        if (!(at = take(&b, n)))
            return -1;
        codec->history->read_open(codec, at, s->n_open, s->open);
    }
    if (b.left < s->n_tail * row * sizeof(*s->tail))
        return -1;
    s->tail_capacity = s->n_tail;
    s->tail = kv_alloc(s->n_tail, row * sizeof(*s->tail));
    if (take_halves(&b, s->n_tail * row, s->tail) ||
        (codec->side == KV_K && codec->scheme->probe && take_queries(&b, c)))
        return -1;
    return take_kept(&b, s);
}

/* Checks the head against the cache, and the message's length against the
 * head. */
static int check_head(const struct kv_cache *c, const struct kv_cache_head *h,
                      size_t n, struct kv_err *e)
{
    const struct kv_shape *s = &c->side[KV_K].codec->shape;
    const double rest = (double)h->spec_bytes[KV_K] +
                        (double)h->spec_bytes[KV_V] +
                        (double)h->side_bytes[KV_K] +
                        (double)h->side_bytes[KV_V] + (double)h->massive_bytes;

    if (memcmp(h->magic, magic, sizeof(magic)) != 0)
        return kv_fail(e, "this is no cache of format %d", magic[7]);
    if (h->n_layers != s->n_layers || h->layer != c->side[KV_K].codec->layer ||
        h->n_heads != s->n_heads || h->n_kv_heads != s->n_kv_heads ||
        h->head_dim != s->head_dim)
        return kv_fail(e,
                       "a cache of layer %u of %u, %u heads, %u KV heads of "
                       "%u: expected layer %zu of %zu, %zu, %zu of %zu",
                       h->layer, h->n_layers, h->n_heads, h->n_kv_heads,
                       h->head_dim, c->side[KV_K].codec->layer, s->n_layers,
                       s->n_heads, s->n_kv_heads, s->head_dim);
    if (h->seed != c->seed)
        return kv_fail(e, "a cache of seed %llu: expected %llu",
                       (unsigned long long)h->seed,
                       (unsigned long long)c->seed);
    if (h->n_tokens > UINT32_MAX)
        return kv_fail(e, "a cache of %llu tokens: expected at most %u",
                       (unsigned long long)h->n_tokens, UINT32_MAX);
    if (rest != (double)(n - sizeof(*h) - HASH_BYTES))
        return kv_fail(e, "a cache of %zu bytes, whose head says %.0f", n,
                       rest + sizeof(*h) + HASH_BYTES);
    return 0;
}

static int check_spec(const struct kv_codec *c, const uint8_t *text, size_t n,
                      struct kv_err *e)
{
    if (n == strlen(c->spec.text) && !memcmp(text, c->spec.text, n))
        return 0;
    return kv_fail(e, "%c of a cache is stored as %.*s: expected %s",
                   kv_side_name(c->side), (int)(n < 200 ? n : 200),
                   (const char *)text, c->spec.text);
}

static int load_massive(struct kv_cache *c, struct bytes *b, size_t n,
                        struct kv_err *e)
{
    const bool massive =
        c->side[KV_K].codec->massive || c->side[KV_V].codec->massive;
    const size_t expected = massive ? (c->n + 7) / 8 : 0;
    const uint8_t *bits = take(b, n);

    if (n != expected)
        return kv_fail(e,
                       "a cache of %zu tokens has %zu bytes of massive "
                       "tokens: expected %zu",
                       c->n, n, expected);
    if (!massive)
        return 0;
    c->massive_capacity = c->n;
    c->massive = kv_alloc(c->n, sizeof(*c->massive));
    for (size_t t = 0; t < c->n; t++)
        c->massive[t] = bits[t / 8] >> t % 8 & 1;
    return 0;
}

int kv_cache_load_side(struct kv_cache *c, enum kv_side side, size_t n_tokens,
                       const uint8_t *bytes, size_t n, struct kv_err *e)
{
    struct kv_cache_side *s = &c->side[side];

    c->n = n_tokens;
    count_tokens(s, n_tokens);
    if (load_side(c, s, (struct bytes){bytes, n}))
        return kv_fail(e, "%c of a cache: %zu bytes are not %zu tokens",
                       kv_side_name(side), n, n_tokens);
    return s->codec->variable ? check_blocks(s, e) : 0;
}

int kv_cache_load_sides(struct kv_cache *c,
                        const struct kv_side_bytes side[KV_SIDES],
                        struct kv_err *e)
{
    assert(!c->n && side[KV_K].n_tokens == side[KV_V].n_tokens);
    if (kv_cache_check_below(c, side[KV_K].n_tokens, e))
        return -1;
    for (int i = 0; i < KV_SIDES; i++) {
        struct kv_cache_side *s = &c->side[i];

        if (i == KV_V && kv_cache_is_latent(c) && !side[i].n)
            continue;
        if (kv_cache_load_side(c, (enum kv_side)i, side[i].n_tokens,
                               side[i].bytes, side[i].n, e))
            return -1;
        s->n_clipped = side[i].clipped;
        if (s->codec->layered)
            kv_cache_fill_layered(c, s);
    }
    return 0;
}

int kv_cache_load(struct kv_cache *c, const uint8_t *bytes, size_t n,
                  struct kv_err *e)
{
    struct bytes b = {bytes, n};
    struct kv_cache_head h;
    struct kv_side_bytes side[KV_SIDES];
    char hash[KV_HASH_CHARS];

    if (n < sizeof(h) + HASH_BYTES)
        return kv_fail(e, "a cache of %zu bytes: expected at least %zu", n,
                       sizeof(h) + HASH_BYTES);
    memcpy(&h, take(&b, sizeof(h)), sizeof(h));
    if (check_head(c, &h, n, e))
        return -1;
    kv_hash_bytes(bytes, n - HASH_BYTES, hash);
    if (memcmp(hash, bytes + n - HASH_BYTES, HASH_BYTES) != 0)
        return kv_fail(e, "a cache whose bytes are not those of its hash");
    for (int i = 0; i < KV_SIDES; i++)
        if (check_spec(c->side[i].codec, take(&b, h.spec_bytes[i]),
                       h.spec_bytes[i], e))
            return -1;
    for (int i = 0; i < KV_SIDES; i++)
        side[i] = (struct kv_side_bytes){.bytes = take(&b, h.side_bytes[i]),
                                         .n = h.side_bytes[i],
                                         .n_tokens = h.n_tokens,
                                         .clipped = h.clipped[i]};
    return kv_cache_load_sides(c, side, e) ||
                   load_massive(c, &b, h.massive_bytes, e)
               ? -1
               : 0;
}
