#include "lib/seq/seq.h"
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "lib/seq/cache_bytes.h"
#include "lib/seq/decoded.h"
#include "lib/seq/policy_cache.h"
#include "lib/seq/tile_cache.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct layer {
    struct kv_cache *cache;
    bool owned;                      /* the cache of the layer above owns the
                                      * cache */
    struct kv_tile_cache *tiles;     /* of the cache, made when they are first
                                      * read */
    bool for_device;                 /* the CPU has no kernels for the tiles */
    struct kv_decoded decoded;       /* the cache's tokens, where neither tiles
                                      * nor the codes are attended to */
    struct kv_policy_cache *policed; /* replaces all of these */
};

struct kv_seq {
    struct kv_seq_plan plan;
    struct layer *layer; /* [n_layers] */
    float *state;        /* NULL: none */
};

struct kv_seq *kv_seq_new(const struct kv_seq_plan *p)
{
    struct kv_seq *s = kv_alloc(1, sizeof(*s));

    s->plan = *p;
    if (p->policy && !kv_policy_drops(p->policy))
        s->plan.policy = NULL;
    s->layer = kv_alloc(p->n_layers, sizeof(*s->layer));
    if (p->n_states)
        s->state = kv_alloc(p->n_states, p->state_floats * sizeof(*s->state));
    return s;
}

static void clear_workspace(struct layer *l)
{
    kv_tile_cache_free(l->tiles);
    l->tiles = NULL;
    kv_decoded_clear(&l->decoded);
}

static void clear(struct layer *l)
{
    clear_workspace(l);
    kv_policy_cache_free(l->policed);
    if (!l->owned)
        kv_cache_free(l->cache);
    *l = (struct layer){0};
}

void kv_seq_free(struct kv_seq *s)
{
    for (size_t i = 0; s && i < s->plan.n_layers; i++)
        clear(&s->layer[i]);
    if (s) {
        free(s->layer);
        free(s->state);
    }
    free(s);
}

float *kv_seq_state(struct kv_seq *s)
{
    return s->state;
}

size_t kv_seq_state_bytes(const struct kv_seq *s)
{
    return s->plan.n_states * s->plan.state_floats * sizeof(*s->state);
}

void kv_seq_copy_state(struct kv_seq *to, const struct kv_seq *from)
{
    assert(kv_seq_state_bytes(to) == kv_seq_state_bytes(from));
    if (from->state)
        memcpy(to->state, from->state, kv_seq_state_bytes(from));
}

int kv_seq_open(struct kv_seq *s, struct kv_codec *const *codec,
                struct kv_err *e)
{
    const struct kv_codec *k = codec[KV_K];
    struct layer *l = &s->layer[k->layer];

    assert(k->layer < s->plan.n_layers && !l->cache && !l->policed);
    if (s->plan.policy)
        return kv_policy_cache_new(&l->policed, s->plan.policy, codec,
                                   s->plan.share_of, s->plan.seed, e);
    if (kv_cache_new(&l->cache, k, codec[KV_V], s->plan.seed, e))
        return -1;
    if (k->layered && k->layered->n_below && k->layer) {
        kv_cache_put_on(l->cache, l[-1].cache);
        l[-1].owned = true;
    }
    return 0;
}

void kv_seq_close(struct kv_seq *s, size_t layer)
{
    struct layer *l = &s->layer[layer];
    const struct kv_spec *spec =
        l->cache ? &kv_cache_reader(l->cache, KV_K).codec->spec : NULL;

    if (!spec || !kv_spec_read_above(spec, layer)) {
        clear(l); /* frees the layers below too */
        while (l-- > s->layer && l->owned)
            clear(l);
        return;
    }
    clear_workspace(l);
    kv_cache_free_unread(l->cache);
    for (size_t i = 0; i + kv_spec_layered(spec, layer + 1)->n_below <= layer;
         i++)
        clear(&s->layer[i]);
}

int kv_seq_append(struct kv_seq *s, size_t layer, const struct kv_tokens *t,
                  struct kv_err *e)
{
    struct layer *l = &s->layer[layer];

    return l->policed ? kv_policy_cache_step(l->policed, t, NULL, e)
                      : kv_cache_append(l->cache, t, e);
}

int kv_seq_step(struct kv_seq *s, size_t layer, const struct kv_tokens *t,
                float *out, struct kv_err *e)
{
    struct layer *l = &s->layer[layer];

    if (l->policed)
        return kv_policy_cache_step(l->policed, t, out, e);
    if (kv_cache_append(l->cache, t, e))
        return -1;
    kv_seq_attend(s, layer, t->n, t->q, out);
    return 0;
}

static size_t threads_for(const struct kv_attend_view *v)
{
    const size_t values = v->nq * v->n * v->n_heads * v->head_dim;

    return values < KV_ATTEND_WORTH_THREADS || omp_in_parallel()
               ? 1
               : (size_t)omp_get_max_threads();
}

void kv_seq_attend(struct kv_seq *s, size_t layer, size_t nq, const float *q,
                   float *out)
{
    struct layer *l = &s->layer[layer];
    const struct kv_attend_view view = kv_cache_view(l->cache, nq);

    if (!l->tiles && kv_tile_cache_can(l->cache, KV_PATH_EXACT))
        l->tiles = kv_tile_cache_new(l->cache);
    if (!l->tiles || l->for_device) {
        if (kv_codec_attends(kv_cache_reader(l->cache, KV_K).codec))
            kv_cache_attend(l->cache, view, q, out);
        else
            kv_decoded_attend(&l->decoded, l->cache, view, q, out);
        return;
    }
    kv_tile_cache_update(l->tiles);
    kv_tile_cache_attend(&l->tiles, view, KV_PATH_EXACT, q, out,
                         threads_for(&view));
}

const struct kv_tile_cache *kv_seq_tiles(struct kv_seq *s, size_t layer)
{
    struct layer *l = &s->layer[layer];

    if (!l->tiles && kv_tile_cache_stored(l->cache)) {
        l->tiles = kv_tile_cache_new(l->cache);
        l->for_device = !kv_tile_cache_can(l->cache, KV_PATH_EXACT);
    }
    if (l->tiles)
        kv_tile_cache_update(l->tiles);
    return l->tiles;
}

const struct kv_cache *kv_seq_cache(const struct kv_seq *s, size_t layer)
{
    return s->layer[layer].cache;
}

struct kv_policy_cache *kv_seq_policy_cache(const struct kv_seq *s,
                                            size_t layer)
{
    return s->layer[layer].policed;
}

void kv_seq_bits(const struct kv_seq *s, size_t layer, enum kv_side side,
                 struct kv_bits *bits)
{
    const struct layer *l = &s->layer[layer];

    if (l->policed) {
        kv_policy_cache_bits(l->policed, side, bits);
    } else {
        const struct kv_bits held = kv_bits_of_cache(l->cache, side);

        kv_bits_add(bits, &held);
    }
}

static int refuse_policy(const struct kv_seq *s, struct kv_err *e)
{
    return s->plan.policy
               ? kv_fail(e, "what %s keeps of a sequence is not written",
                         s->plan.policy->policy->name)
               : 0;
}

int kv_seq_write(const struct kv_seq *s, size_t layer, uint8_t **bytes,
                 size_t *n, struct kv_err *e)
{
    if (refuse_policy(s, e))
        return -1;
    *n = kv_cache_write(s->layer[layer].cache, bytes);
    return 0;
}

int kv_seq_load(struct kv_seq *s, size_t layer, const uint8_t *bytes, size_t n,
                struct kv_err *e)
{
    return refuse_policy(s, e) ||
                   kv_cache_load(s->layer[layer].cache, bytes, n, e)
               ? -1
               : 0;
}

int kv_seq_load_sides(struct kv_seq *s, size_t layer,
                      const struct kv_side_bytes side[KV_SIDES],
                      struct kv_err *e)
{
    return refuse_policy(s, e) ||
                   kv_cache_load_sides(s->layer[layer].cache, side, e)
               ? -1
               : 0;
}

void kv_seq_write_state(const struct kv_seq *s, uint8_t **bytes, size_t *n)
{
    const size_t state = kv_seq_state_bytes(s);
    uint32_t sum;

    *n = sizeof(sum) + state;
    *bytes = kv_alloc(*n, 1);
    if (state)
        memcpy(*bytes + sizeof(sum), s->state, state);
    sum = kv_crc32(*bytes + sizeof(sum), state);
    memcpy(*bytes, &sum, sizeof(sum));
}

int kv_seq_load_state(struct kv_seq *s, const uint8_t *bytes, size_t n,
                      struct kv_err *e)
{
    const size_t state = kv_seq_state_bytes(s), head = sizeof(uint32_t);

    if (n != head + state)
        return kv_fail(e, "a state of %zu bytes, where %zu are expected", n,
                       head + state);
    if (kv_crc32_check(bytes, n, e))
        return kv_fail_in(e, "the state");
    if (state)
        memcpy(s->state, bytes + head, state);
    return 0;
}
