#include "lib/base/alloc.h"
#include "lib/cache_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* | n | seed | then per side: n_sinks n_blocks n_tail n_open | sink sizes
 * blocks tail open | then queries |, counts as 64-bit little-endian words,
 * sizes 32-bit and of variable codecs only; how many queries there are follows
 * from the tail. */
enum { HEAD_WORDS = 2, SIDE_WORDS = 4 };

static size_t side_bytes(const struct kv_cache_side *s)
{
    return (s->n_sinks + s->n_tail) * kv_cache_row(s->codec) *
               sizeof(uint16_t) +
           kv_cache_codes_bytes(s) + (s->n_open ? s->codec->block_bytes : 0);
}

static uint8_t *put_bytes(uint8_t *at, const void *from, size_t n)
{
    if (n)
        memcpy(at, from, n);
    return at + n;
}

void kv_cache_save(const struct kv_cache *c, uint8_t **bytes, size_t *n)
{
    const uint64_t head[HEAD_WORDS] = {c->n, c->seed};
    uint8_t *at;

    *n = sizeof(head) + kv_cache_query_bytes(c);
    for (int i = 0; i < KV_SIDES; i++)
        *n += SIDE_WORDS * sizeof(uint64_t) + side_bytes(&c->side[i]);
    at = *bytes = kv_alloc(*n, 1);
    at = put_bytes(at, head, sizeof(head));
    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_cache_side *s = &c->side[i];
        const uint64_t words[SIDE_WORDS] = {s->n_sinks, s->n_blocks, s->n_tail,
                                            s->n_open};
        const size_t row = kv_cache_row(s->codec) * sizeof(uint16_t);

        at = put_bytes(at, words, sizeof(words));
        at = put_bytes(at, s->sink, s->n_sinks * row);
        if (s->codec->variable)
            at = put_bytes(at, s->size, s->n_blocks * sizeof(*s->size));
        at = put_bytes(at, s->blocks, s->block_bytes);
        at = put_bytes(at, s->tail, s->n_tail * row);
        at = put_bytes(at, s->open, s->n_open ? s->codec->block_bytes : 0);
    }
    put_bytes(at, c->query, kv_cache_query_bytes(c));
}

/* Whether sinks, blocks, tail and open make n tokens.  The words are not to be
 * trusted: no sum or product of them is formed. */
static bool counts_add_up(const uint64_t words[SIDE_WORDS], size_t block,
                          uint64_t n)
{
    uint64_t left = n;

    if (words[0] > left)
        return false;
    left -= words[0];
    if (words[1] > left / block)
        return false;
    left -= words[1] * block;
    return words[2] <= left && words[3] == left - words[2];
}

/* The next n bytes, or NULL when so many are not left. */
static const uint8_t *take(const uint8_t **at, const uint8_t *end, uint64_t n,
                           size_t each)
{
    const uint8_t *from = *at;

    if (n > (size_t)(end - from) / each)
        return NULL;
    *at += n * each;
    return from;
}

static int load_fixed(struct kv_cache_side *s, uint64_t n, const uint8_t **at,
                      const uint8_t *end, struct kv_err *e)
{
    const size_t each = s->codec->block_bytes;
    const uint8_t *from = take(at, end, n, each);

    if (!from)
        return kv_fail(e, "saved cache: truncated");
    put_bytes(kv_cache_more_bytes(s, n * each), from, n * each);
    s->n_blocks = n;
    s->block_bytes = n * each;
    return 0;
}

/* Sizes and blocks; every block must decode. */
static int load_variable(struct kv_cache_side *s, uint64_t n,
                         const uint8_t **at, const uint8_t *end,
                         struct kv_err *e)
{
    const struct kv_codec *c = s->codec;
    const uint8_t *sizes = take(at, end, n, sizeof(*s->size)), *from;
    float *x;
    int rc = 0;

    if (!sizes)
        return kv_fail(e, "saved cache: truncated");
    x = kv_alloc(kv_codec_block_values(c), sizeof(*x));
    for (size_t i = 0; i < n && !rc; i++) {
        uint32_t size;

        memcpy(&size, sizes + i * sizeof(size), sizeof(size));
        from = take(at, end, size, 1);
        rc = !from ? kv_fail(e, "saved cache: truncated")
             : c->variable->decode_block(c, from, size, x, e)
                 ? kv_fail_in(e, "saved cache: %c, block %zu",
                              kv_side_name(c->side), i)
                 : 0;
        if (rc)
            break;
        memcpy(kv_cache_more_bytes(s, size), from, size);
        kv_cache_push_size(s, size);
    }
    free(x);
    return rc;
}

static int load_side(struct kv_cache_side *s, uint64_t n, const uint8_t **at,
                     const uint8_t *end, struct kv_err *e)
{
    const size_t row = kv_cache_row(s->codec) * sizeof(uint16_t);
    const size_t room = kv_spec_size(&s->codec->spec, s->codec->side, "s");
    uint64_t words[SIDE_WORDS];
    const uint8_t *from = take(at, end, 1, sizeof(words));

    if (!from)
        return kv_fail(e, "saved cache: truncated");
    memcpy(words, from, sizeof(words));
    if (words[0] > room || !counts_add_up(words, s->codec->block, n) ||
        words[3] >= s->codec->block || (words[3] && !s->codec->history))
        return kv_fail(e, "saved cache: counts do not fit %s",
                       s->codec->spec.text);
    if (!(from = take(at, end, words[0], row)))
        return kv_fail(e, "saved cache: truncated");
    put_bytes((uint8_t *)s->sink, from, words[0] * row);
    s->n_sinks = words[0];
    if (s->codec->variable ? load_variable(s, words[1], at, end, e)
                           : load_fixed(s, words[1], at, end, e))
        return -1;
    if (!(from = take(at, end, words[2], row)))
        return kv_fail(e, "saved cache: truncated");
    s->tail = kv_realloc(s->tail, words[2], row);
    put_bytes((uint8_t *)s->tail, from, words[2] * row);
    s->n_tail = s->tail_room = words[2];
    if (!(from = take(at, end, words[3] > 0, s->codec->block_bytes)))
        return kv_fail(e, "saved cache: truncated");
    if (words[3])
        memcpy(s->open, from, s->codec->block_bytes);
    s->n_open = words[3];
    return 0;
}

/* Whether K and V hold the same sinks and blocks, and no tail before the sinks
 * are full. */
static bool sides_agree(const struct kv_cache *c)
{
    const struct kv_cache_side *k = &c->side[KV_K], *v = &c->side[KV_V];

    return k->n_sinks == v->n_sinks && k->n_blocks == v->n_blocks &&
           (k->n_sinks == kv_spec_size(&k->codec->spec, KV_K, "s") ||
            !(k->n_blocks + k->n_tail));
}

static int load_queries(struct kv_cache *c, const uint8_t **at,
                        const uint8_t *end, struct kv_err *e)
{
    if (!kv_needs_queries(c->side[KV_K].codec))
        return 0;
    if (!sides_agree(c))
        return kv_fail(e, "saved cache: K and V do not hold the same blocks");

    const size_t row =
        kv_cache_query_row(c->side[KV_K].codec) * sizeof(*c->query);
    const size_t n = kv_cache_tail_probes(c);
    const uint8_t *from = take(at, end, n, row);

    if (!from)
        return kv_fail(e, "saved cache: truncated");
    c->query = kv_realloc(c->query, n, row);
    put_bytes((uint8_t *)c->query, from, n * row);
    c->n_queries = c->query_room = n;
    return 0;
}

int kv_cache_load(struct kv_cache *c, const uint8_t *bytes, size_t n,
                  struct kv_err *e)
{
    const uint8_t *at = bytes, *end = bytes + n;
    uint64_t head[HEAD_WORDS];

    assert(c->n == 0);
    if (n < sizeof(head))
        return kv_fail(e, "saved cache: truncated");
    memcpy(head, at, sizeof(head));
    at += sizeof(head);
    if (head[1] != c->seed)
        return kv_fail(e, "saved cache: made with seed %llu, not %llu",
                       (unsigned long long)head[1],
                       (unsigned long long)c->seed);
    for (int i = 0; i < KV_SIDES; i++)
        if (load_side(&c->side[i], head[0], &at, end, e))
            return -1;
    if (load_queries(c, &at, end, e))
        return -1;
    if (at != end)
        return kv_fail(e, "saved cache: %zu bytes too many",
                       (size_t)(end - at));
    c->n = head[0];
    return 0;
}
