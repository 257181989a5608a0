#include "eval/greedy.h"
#include "eval/bits.h"
#include "eval/policy_cache.h"
#include "eval/prefill.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/cache.h"
#include "lib/tile_cache.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* One sequence: the caches of every layer. */
struct sequence {
    struct kv_greedy *g;
    size_t n_layers;
    struct kv_codecs *codecs;
    struct kv_cache **cache;
    struct kv_tile_cache **tiled;  /* of caches that can */
    struct kv_policy_cache **kept; /* in place of both, where tokens are
                                    * dropped */
    struct kv_prefill prefill;
    bool exact; /* its prompt attends to all at full precision in all layers */
    bool ended;
};

/* Sequences that decode together. */
struct together {
    struct kv_model *m;
    struct sequence *all;
    size_t n;
    struct sequence **live; /* in the call under way, a window each; of a */
    size_t n_live;          /* prompt all see the one window */
    bool prompt;
    int32_t *ids;           /* [n]: the last of those that are live */
    float *hidden, *logits; /* [n_prompt or n][hidden], [n][n_vocab] */
};

static void clear(struct sequence *s)
{
    for (size_t i = 0; i < s->n_layers; i++) {
        kv_policy_cache_free(s->kept[i]);
        kv_tile_cache_free(s->tiled[i]);
        kv_cache_free(s->cache[i]);
    }
    free(s->kept);
    free(s->tiled);
    free(s->cache);
    kv_codecs_free(s->codecs);
}

static int init(struct sequence *s, const struct kv_shape *shape,
                struct kv_greedy *g, const struct kv_calib *calib,
                uint64_t seed, struct kv_err *e)
{
    const struct kv_policy_spec *p = &g->spec->policy;
    const bool sparse = p->policy && p->policy->patterns;
    const bool drops = p->policy && !sparse;

    *s = (struct sequence){.g = g,
                           .n_layers = shape->n_layers,
                           .prefill = {.policy = p, .calib = calib},
                           .exact = !sparse};
    s->cache = kv_alloc(s->n_layers, sizeof(struct kv_cache *));
    s->tiled = kv_alloc(s->n_layers, sizeof(struct kv_tile_cache *));
    s->kept = kv_alloc(s->n_layers, sizeof(struct kv_policy_cache *));
    if (kv_codecs_new(&s->codecs, g->spec, shape, 0, s->n_layers, calib, e))
        goto fail;
    for (size_t i = 0; i < s->n_layers; i++) {
        struct kv_codec *const *codec = kv_codecs_at(s->codecs, i);

        if (drops
                ? kv_policy_cache_new(&s->kept[i], p, codec, g->n_prompt, seed,
                                      e)
                : kv_cache_new(&s->cache[i], codec[KV_K], codec[KV_V], seed, e))
            goto fail;
        if (drops)
            continue;
        if (kv_tile_cache_can(s->cache[i], KV_PATH_EXACT))
            s->tiled[i] = kv_tile_cache_new(s->cache[i]);
        s->exact = s->exact && !codec[KV_K]->prefill_on_codes;
    }
    return 0;
fail:
    clear(s);
    return -1;
}

/* Attention to fewer values is done before another thread is awake. */
enum { WORTH_THREADS = 1 << 19 };

/* A layer of the sequences that are live, in the host's memory. */
struct layer {
    const struct together *t;
    const struct kv_qkv *x;
};

static bool is_exact(const struct together *t, const struct kv_codec *k)
{
    return t->prompt && !k->prefill_on_codes;
}

/* The i-th live sequence's window into its cache, and its attention. */
static int attend_one(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct layer *l = arg;
    const struct kv_qkv *x = l->x;
    const struct sequence *s = l->t->live[i];
    const struct kv_shape *shape = x->shape;
    const struct kv_codec *k = kv_codecs_at(s->codecs, x->layer)[KV_K];
    const size_t window = l->t->prompt ? 0 : i * x->n;
    const size_t row = shape->n_heads * shape->head_dim, q = window * row;
    const size_t kv = window * shape->n_kv_heads * shape->head_dim;
    struct kv_cache *cache = s->cache[x->layer];
    struct kv_attend_view view;
    bool alone;

    (void)thread;
    if (s->kept[x->layer])
        return kv_policy_cache_step(
            s->kept[x->layer],
            &(struct kv_policy_step){.n = x->n,
                                     .q = x->q + q,
                                     .k = x->k + kv,
                                     .k_pre = x->k_pre + kv,
                                     .v = x->v + kv,
                                     .out = l->t->prompt ? NULL : x->out + q},
            e);
    if (kv_cache_append(cache, x->q + q, (k->pre_rope ? x->k_pre : x->k) + kv,
                        x->v + kv, x->n, e))
        return -1;
    if (is_exact(l->t, k))
        return 0;
    view = kv_cache_view(cache, x->n);
    if (!s->tiled[x->layer]) {
        kv_cache_attend(cache, view, x->q + q, x->out + q);
        return 0;
    }
    kv_tile_cache_update(s->tiled[x->layer]);
    alone = l->t->n_live > 1 || x->n * view.n * row < WORTH_THREADS;
    kv_tile_cache_attend(&s->tiled[x->layer], view, KV_PATH_EXACT, x->q + q,
                         x->out + q, alone ? 1 : (size_t)omp_get_max_threads());
    return 0;
}

static int attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct together *t = arg;
    struct sequence *first = t->live[0];
    struct kv_qkv host;
    const struct layer l = {t, &host};
    const struct kv_attend_job job = kv_qkv_job(x, 0, x->n);

    if (kv_qkv_to_host(x, &host, e) ||
        host.backend->each(t->n_live, attend_one, &l, e))
        return -1;
    return is_exact(t, kv_codecs_at(first->codecs, x->layer)[KV_K])
               ? kv_prefill_attend(&first->prefill, x, &job, e)
               : kv_qkv_from_host(x, &host, e);
}

/* The most probable of n; at: the position that it is for. */
static int choose(const float *logits, size_t n, size_t at, int32_t *id,
                  struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return kv_fail(e,
                           "token %zu: the logit of id %zu is not finite (does "
                           "the model overflow?)",
                           at, i);
    *id = (int32_t)kv_row_argmax(logits, n);
    return 0;
}

static bool ends(const struct kv_greedy *g, int32_t id)
{
    for (size_t i = 0; i < g->n_ends; i++)
        if (g->end[i] == id)
            return true;
    return false;
}

/* The next ids of windows of n tokens that begin at position `first`. */
static int decode(struct together *t, const int32_t *tokens, size_t n_windows,
                  size_t n, size_t first, struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(t->m);
    const struct kv_attention mine = {.run = attend, .arg = t};

    if (kv_interrupted(e) || kv_model_forward(t->m, tokens, n_windows, n, first,
                                              &mine, t->hidden, e))
        return -1;
    if (n > 1) /* one window, of which the last token counts */
        memmove(t->hidden, t->hidden + (n - 1) * info->hidden,
                info->hidden * sizeof(*t->hidden));
    if (kv_model_logits(t->m, t->hidden, n_windows, t->logits, e))
        return -1;
    for (size_t w = 0; w < n_windows; w++)
        if (choose(t->logits + w * info->n_vocab, info->n_vocab, first + n,
                   &t->ids[w], e))
            return -1;
    return 0;
}

static void take(struct sequence *s, int32_t id)
{
    struct kv_greedy *g = s->g;

    g->ids[g->n_prompt + g->made++] = id;
    s->ended = g->made == g->n_new || ends(g, id);
}

/* The prompt: those that attend to all of it at full precision in one pass,
 * each of the others alone. */
static int run_prompt(struct together *t, struct kv_err *e)
{
    const struct kv_greedy *g = t->all[0].g;

    t->prompt = true;
    for (size_t i = 0, shared = 0; i < t->n; i++) {
        if (t->all[i].exact && shared++)
            continue;
        t->n_live = 0;
        for (size_t j = i; j < t->n; j++)
            if (j == i || (t->all[i].exact && t->all[j].exact))
                t->live[t->n_live++] = &t->all[j];
        if (decode(t, g->ids, 1, g->n_prompt, 0, e))
            return -1;
        for (size_t j = 0; j < t->n_live; j++)
            take(t->live[j], t->ids[0]);
    }
    t->prompt = false;
    return 0;
}

static int run_step(struct together *t, size_t at, struct kv_err *e)
{
    t->n_live = 0;
    for (size_t i = 0; i < t->n; i++)
        if (!t->all[i].ended) {
            t->ids[t->n_live] = t->all[i].g->ids[at];
            t->live[t->n_live++] = &t->all[i];
        }
    if (!t->n_live)
        return 0;
    if (decode(t, t->ids, t->n_live, 1, at, e))
        return -1;
    for (size_t i = 0; i < t->n_live; i++)
        take(t->live[i], t->ids[i]);
    return 0;
}

/* The share of its tokens that it holds. */
static double kept_of(const struct sequence *s)
{
    struct kv_bits bits = {0};

    if (!s->kept[0])
        return 1;
    for (size_t i = 0; i < s->n_layers; i++)
        kv_policy_cache_bits(s->kept[i], KV_K, &bits);
    return bits.kept_values / bits.values;
}

static int run(struct together *t, struct kv_progress *progress,
               struct kv_err *e)
{
    const size_t n_prompt = t->all[0].g->n_prompt, n_new = t->all[0].g->n_new;
    double start = kv_seconds(), now;

    for (size_t made = 0; made < n_new; made++) {
        const size_t last = n_prompt + made - 1;

        if (made ? run_step(t, last, e) : run_prompt(t, e))
            return -1;
        now = kv_seconds();
        for (size_t i = 0; i < t->n_live && made; i++)
            t->live[i]->g->seconds = now - start;
        for (size_t i = 0; i < t->n && !made; i++)
            t->all[i].g->prompt_seconds = now - start;
        start = made ? start : now;
        if (progress)
            kv_progress_step(progress, 1);
    }
    for (size_t i = 0; i < t->n; i++)
        t->all[i].g->kept = kept_of(&t->all[i]);
    return 0;
}

int kv_greedy(struct kv_model *m, struct kv_greedy *g, size_t n,
              const struct kv_calib *calib, uint64_t seed,
              struct kv_progress *progress, struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(m);
    const size_t rows = g->n_prompt > n ? g->n_prompt : n;
    struct together t = {
        .m = m,
        .all = kv_alloc(n, sizeof(*t.all)),
        .live = kv_alloc(n, sizeof(struct sequence *)),
        .ids = kv_alloc(n, sizeof(*t.ids)),
        .hidden = kv_alloc(rows, info->hidden * sizeof(*t.hidden)),
        .logits = kv_alloc(n, info->n_vocab * sizeof(*t.logits)),
    };
    int rc = 0;

    for (; t.n < n && !rc; t.n += !rc) {
        assert(g[t.n].n_prompt == g->n_prompt && g[t.n].n_new == g->n_new);
        g[t.n].made = 0;
        g[t.n].prompt_seconds = g[t.n].seconds = 0;
        rc = init(&t.all[t.n], &info->shape, &g[t.n], calib, seed, e);
    }
    rc = rc || run(&t, progress, e);
    if (progress)
        kv_progress_clear(progress);
    for (size_t i = 0; i < t.n; i++)
        clear(&t.all[i]);
    free(t.logits);
    free(t.hidden);
    free(t.ids);
    free(t.live);
    free(t.all);
    return rc ? -1 : 0;
}
