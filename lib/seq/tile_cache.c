#include "lib/seq/tile_cache.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"

#include <assert.h>
#include <stdlib.h>

enum { SINKS, CODES, TAIL };

struct kv_tile_cache {
    const struct kv_cache *cache;
    struct kv_store run[KV_SIDES][KV_MAX_RUNS];
    size_t n; /* tokens of the cache at the last update */
};

static bool codes_store(const struct kv_codec *c, struct kv_store *s)
{
    *s = (struct kv_store){.values = c->side == KV_V,
                           .n_heads = c->shape.n_kv_heads,
                           .head_dim = c->shape.head_dim};
    return kv_codec_codes_alone(c) && !c->shape.latent && c->scheme->store &&
           c->scheme->store(c, s);
}

bool kv_tile_cache_stored(const struct kv_cache *c)
{
    for (int i = 0; i < KV_SIDES; i++) {
        struct kv_store s;

        if (!codes_store(kv_cache_reader(c, (enum kv_side)i).codec, &s))
            return false;
    }
    return true;
}

static bool can(const struct kv_codec *k, const struct kv_codec *v,
                enum kv_path path)
{
    const struct kv_codec *codec[] = {k, v};
    bool has = false;

    if (path == KV_PATH_EXACT && k->scheme->attend)
        return false;
    for (int i = 0; i < KV_SIDES; i++) {
        struct kv_store s;

        if (!codes_store(codec[i], &s) || !kv_store_has(&s, KV_PATH_EXACT))
            return false;
        has |= kv_store_has(&s, path);
    }
    return has;
}

bool kv_tile_cache_can(const struct kv_cache *c, enum kv_path path)
{
    return can(kv_cache_reader(c, KV_K).codec, kv_cache_reader(c, KV_V).codec,
               path);
}

bool kv_tile_codecs_can(struct kv_codec *const *codec, enum kv_path path)
{
    return can(codec[KV_K], codec[KV_V], path);
}

/* Sets up the runs of a side, still without tiles; false if its codes do not go
 * into tiles. */
static bool open_runs(const struct kv_codec *c, struct kv_store *run)
{
    for (int r = SINKS; r <= TAIL; r += TAIL - SINKS)
        kv_store_floats(&run[r], c->pre_rope ? KV_FLOAT_32 : KV_FLOAT_16,
                        c->side == KV_V, c->shape.n_kv_heads,
                        c->shape.head_dim);
    return codes_store(c, &run[CODES]);
}

size_t kv_tile_cache_need(const struct kv_codec *c, size_t n)
{
    const size_t s = kv_spec_size(&c->spec, c->side, "s");
    const size_t coded = kv_quantized(c, n), sinks = n < s ? n : s;
    struct kv_store run[KV_MAX_RUNS] = {0};
    size_t bytes = 0;

    if (!open_runs(c, run))
        return 0;
    run[SINKS].n = sinks;
    run[CODES].n = coded;
    run[TAIL].n = n - coded - sinks;
    for (int r = 0; r < KV_MAX_RUNS; r++)
        bytes += kv_store_heads(&run[r]) * kv_store_tiles(&run[r]) *
                 run[r].tile_bytes;
    if (run[CODES].family->owned) /* at most the size of the codes */
        bytes += 2 * coded / c->block * c->block_bytes;
    return bytes;
}

struct kv_tile_cache *kv_tile_cache_new(const struct kv_cache *c)
{
    struct kv_tile_cache *t = kv_alloc(1, sizeof(*t));

    t->cache = c;
    for (int i = 0; i < KV_SIDES; i++) {
        const bool tiled =
            open_runs(kv_cache_reader(c, (enum kv_side)i).codec, t->run[i]);

        assert(tiled);
        (void)tiled;
    }
    return t;
}

void kv_tile_cache_free(struct kv_tile_cache *t)
{
    if (!t)
        return;
    for (int i = 0; i < KV_SIDES; i++)
        for (int r = 0; r < KV_MAX_RUNS; r++)
            kv_store_free(&t->run[i][r]);
    free(t);
}

/* The first `blocks` blocks of a variable codec, and their bytes. */
struct counted {
    size_t blocks, bytes;
};

/* The bytes of a variable codec's blocks before this token, which tile()
 * skips. */
static size_t bytes_before(const struct kv_reader *r, struct counted *c,
                           size_t token)
{
    for (; r->size && c->blocks < token / r->codec->block; c->blocks++)
        c->bytes += r->size[c->blocks];
    return c->bytes;
}

/* Fills one head's tile, or the tile of all heads, with tokens [at, at + n). */
static void put_codes(const struct kv_cache *cache, const struct kv_store *s,
                      const struct kv_reader *r, const uint8_t *blocks,
                      size_t at, size_t n, size_t head, uint8_t *tile)
{
    const struct kv_codec *c = r->codec;
    struct kv_near_codes near = {0};

    if (!c->layered) {
        c->scheme->tile(c, s, blocks, at, n, head, tile);
        return;
    }
    if (c->side == KV_V)
        near.own_k = kv_cache_reader(cache, KV_K).blocks;
    for (size_t i = 0; i < c->layered->n_below; i++) {
        cache = kv_cache_below(cache);
        for (int side = 0; side < KV_SIDES; side++)
            near.below[i][side] =
                kv_cache_reader(cache, (enum kv_side)side).blocks;
    }
    c->layered->tile(c, s, &near, blocks, at, n, tile);
}

static void update_codes(const struct kv_cache *cache, struct kv_store *s,
                         const struct kv_reader *r)
{
    const struct kv_codec *c = r->codec;
    const size_t have = s->n, n = r->n_blocks * c->block;
    struct counted counted = {0};

    if (n == have)
        return;
    kv_store_resize(s, n);
    for (size_t i = have / KV_TILE_TOKENS; i < kv_store_tiles(s); i++) {
        const size_t at = i * KV_TILE_TOKENS;
        const uint8_t *blocks = r->blocks + bytes_before(r, &counted, at);

        for (size_t h = 0; h < kv_store_heads(s); h++) {
            kv_store_clear(s, h, i);
            put_codes(cache, s, r, blocks, at, kv_min(n - at, KV_TILE_TOKENS),
                      h, kv_store_tile(s, h, i));
        }
    }
}

/* Updates a run of fp16 tokens.  from: the cache's tokens [first, first + n).
 * Keys before RoPE are rotated here, and stored in f32. */
static void update_floats(struct kv_store *s, const struct kv_codec *c,
                          size_t first, const uint16_t *from, size_t n)
{
    const size_t values = n * s->n_heads * s->head_dim;
    float *x;

    s->first = first;
    kv_store_resize(s, n);
    if (!c->pre_rope) {
        kv_store_put_floats(s, 0, from, n);
        return;
    }
    x = kv_alloc(values, sizeof(*x));
    for (size_t i = 0; i < values; i++)
        x[i] = kv_f16_to_f32(from[i]);
    kv_rope(&c->shape, x, n, s->n_heads, first);
    kv_store_put_floats(s, 0, x, n);
    free(x);
}

void kv_tile_cache_update(struct kv_tile_cache *t)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_reader r = kv_cache_reader(t->cache, (enum kv_side)i);
        struct kv_store *run = t->run[i];
        const size_t codes = r.n_blocks * r.codec->block;

        assert(!r.open);
        if (run[SINKS].n != r.sinks)
            update_floats(&run[SINKS], r.codec, 0, r.sink, r.sinks);
        run[CODES].first = r.sinks;
        update_codes(t->cache, &run[CODES], &r);
        update_floats(&run[TAIL], r.codec, r.sinks + codes, r.tail,
                      r.n - r.sinks - codes);
    }
    t->n = kv_cache_tokens(t->cache);
}

struct kv_tiles_job kv_tile_cache_job(const struct kv_tile_cache *t, size_t nq)
{
    const struct kv_shape *s = &kv_cache_reader(t->cache, KV_K).codec->shape;

    assert(nq <= t->n);
    return (struct kv_tiles_job){.view = kv_shape_view(s, t->n, t->n - nq, nq),
                                 .seed = kv_cache_seed(t->cache),
                                 .k = t->run[KV_K],
                                 .v = t->run[KV_V]};
}

void kv_tile_cache_attend(struct kv_tile_cache *const *t,
                          struct kv_attend_view view, enum kv_path path,
                          const float *q, float *out, size_t threads)
{
    const size_t row = view.nq * view.n_heads * view.head_dim;
    struct kv_tiles_job *jobs = kv_alloc(view.n_seqs, sizeof(*jobs));

    for (size_t i = 0; i < view.n_seqs; i++) {
        jobs[i] = kv_tile_cache_job(t[i], view.nq);
        jobs[i].view = kv_attend_seq(&view, i);
        jobs[i].q = q + i * row;
        jobs[i].out = out + i * row;
        jobs[i].path = path;
        assert(view.n == t[i]->n);
        if (!kv_tiles_takes(&view))
            kv_cache_attend(t[i]->cache, jobs[i].view, jobs[i].q, jobs[i].out);
    }
    if (kv_tiles_takes(&view))
        kv_tiles_attend(jobs, view.n_seqs, threads);
    free(jobs);
}

size_t kv_tile_cache_bytes(const struct kv_tile_cache *t)
{
    size_t bytes = 0;

    for (int i = 0; i < KV_SIDES; i++)
        for (int r = 0; r < KV_MAX_RUNS; r++)
            bytes += kv_store_bytes(&t->run[i][r]);
    return bytes;
}
