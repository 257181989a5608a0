#include "eval/greedy.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/cache.h"
#include "lib/tile_cache.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* One sequence: the caches of every layer. */
struct sequence {
    size_t n_layers;
    struct kv_codecs *codecs;
    struct kv_cache **cache;
    struct kv_tile_cache **tiled; /* of caches that can */
    bool exact_prompt; /* the call under way is a prompt at full precision */
};

static void clear(struct sequence *s)
{
    for (size_t i = 0; i < s->n_layers; i++) {
        kv_tile_cache_free(s->tiled[i]);
        kv_cache_free(s->cache[i]);
    }
    free(s->tiled);
    free(s->cache);
    kv_codecs_free(s->codecs);
}

static int init(struct sequence *s, const struct kv_shape *shape,
                const struct kv_spec *spec, const struct kv_calib *calib,
                uint64_t seed, struct kv_err *e)
{
    *s = (struct sequence){.n_layers = shape->n_layers};
    s->cache = kv_alloc(s->n_layers, sizeof(struct kv_cache *));
    s->tiled = kv_alloc(s->n_layers, sizeof(struct kv_tile_cache *));
    if (kv_codecs_new(&s->codecs, spec, shape, 0, s->n_layers, calib, e))
        goto fail;
    for (size_t i = 0; i < s->n_layers; i++) {
        struct kv_codec *const *codec = kv_codecs_at(s->codecs, i);

        if (kv_cache_new(&s->cache[i], codec[KV_K], codec[KV_V], seed, e))
            goto fail;
        if (kv_tile_cache_can(s->cache[i], KV_PATH_EXACT))
            s->tiled[i] = kv_tile_cache_new(s->cache[i]);
    }
    return 0;
fail:
    clear(s);
    return -1;
}

static int attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct sequence *s = arg;
    struct kv_codec *const *codec = kv_codecs_at(s->codecs, x->layer);
    struct kv_cache *cache = s->cache[x->layer];
    struct kv_qkv h;

    if (kv_qkv_to_host(x, &h, e) ||
        kv_cache_append(cache, h.q, codec[KV_K]->pre_rope ? h.k_pre : h.k, h.v,
                        h.n, e))
        return -1;
    if (s->exact_prompt && !codec[KV_K]->prefill_on_codes)
        return kv_attend_exact(NULL, x, e);

    const struct kv_attend_view view = kv_cache_view(cache, x->n);

    if (!s->tiled[x->layer]) {
        kv_cache_attend(cache, view, h.q, h.out);
    } else {
        kv_tile_cache_update(s->tiled[x->layer]);
        kv_tile_cache_attend(&s->tiled[x->layer], view, KV_PATH_EXACT, h.q,
                             h.out, (size_t)omp_get_max_threads());
    }
    return kv_qkv_from_host(x, &h, e);
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

int kv_greedy(struct kv_model *m, const struct kv_spec *spec,
              const struct kv_calib *calib, uint64_t seed, struct kv_greedy *g,
              struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(m);
    struct sequence s;
    const struct kv_attention mine = {.run = attend, .arg = &s};
    const double start = kv_seconds();
    struct kv_progress progress;
    float *hidden, *logits;
    int rc = -1;

    if (init(&s, &info->shape, spec, calib, seed, e))
        return -1;
    g->made = 0;
    kv_progress_init(&progress, spec->text, g->n_new);
    hidden = kv_alloc(g->n_prompt, info->hidden * sizeof(*hidden));
    logits = kv_alloc(info->n_vocab, sizeof(*logits));
    for (size_t at = 0, n = g->n_prompt; g->made < g->n_new; at = n++) {
        const size_t fresh = n - at;

        s.exact_prompt = !at;
        if (kv_interrupted(e) ||
            kv_model_forward(m, g->ids + at, 1, fresh, at, &mine, hidden, e) ||
            kv_model_logits(m, hidden + (fresh - 1) * info->hidden, 1, logits,
                            e) ||
            choose(logits, info->n_vocab, n, &g->ids[n], e))
            goto out;
        g->made++;
        g->seconds = kv_seconds() - start;
        if (!at)
            g->prompt_seconds = g->seconds;
        kv_progress_step(&progress, 1);
        if (ends(g, g->ids[n]))
            break;
    }
    g->seconds -= g->prompt_seconds;
    rc = 0;
out:
    kv_progress_clear(&progress);
    free(logits);
    free(hidden);
    clear(&s);
    return rc;
}
