#include "eval/law.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/seq/cache.h"
#include "lib/seq/cache_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *says;
} parts[KV_LAW_PARTS] = {
    [KV_LAW_REPEATED] = {"repeated",
                         "the same tokens, after others, have the same bytes"},
    [KV_LAW_APART] = {"apart",
                      "tokens one by one, by seven and together have the same "
                      "bytes"},
    [KV_LAW_THREADS] = {"threads", "four threads give the same bytes"},
    [KV_LAW_DECODED] = {"decoded",
                        "blocks decode alone as together, and again, to the "
                        "same finite values"},
    [KV_LAW_EXTREMES] = {"extremes",
                         "zeros, the largest halves and denormals decode to "
                         "finite values"},
};

const char *kv_law_name(enum kv_law_part part)
{
    return parts[part].name;
}

const char *kv_law_says(enum kv_law_part part)
{
    return parts[part].says;
}

struct check {
    const struct kv_law_plan *plan;
    struct kv_codec *const *codec; /* [KV_SIDES] */
    struct kv_law_verdict (*out)[KV_SIDES];
};

static void breaks(const struct check *c, enum kv_law_part part,
                   enum kv_side side, const char *why, size_t n)
{
    struct kv_law_verdict *v = &c->out[part][side];

    if (v->holds)
        snprintf(v->why, sizeof(v->why), "%s, %zu tokens", why, n);
    v->holds = false;
}

/* Returns a cache of the first n tokens, appended `step` at a time; NULL on
 * failure. */
static struct kv_cache *fill(const struct check *c, const struct kv_tokens *t,
                             size_t n, size_t step, struct kv_err *e)
{
    struct kv_cache *cache;

    if (kv_interrupted(e) ||
        kv_cache_new(&cache, c->codec[KV_K], c->codec[KV_V], c->plan->seed, e))
        return NULL;
    for (size_t at = 0; at < n; at += step) {
        const struct kv_tokens part = kv_tokens_part(
            t, &c->codec[KV_K]->shape, at, n - at < step ? n - at : step);

        if (kv_cache_append(cache, &part, e)) {
            kv_cache_free(cache);
            return NULL;
        }
    }
    return cache;
}

static void compare(const struct check *c, enum kv_law_part part,
                    const struct kv_cache *a, const struct kv_cache *b,
                    const char *why, size_t n)
{
    for (enum kv_side side = KV_K; side < KV_SIDES; side++) {
        const struct kv_reader ra = kv_cache_reader(a, side);
        const struct kv_reader rb = kv_cache_reader(b, side);
        uint8_t *x, *y;
        const size_t nx = kv_codes_of(&ra, &x), ny = kv_codes_of(&rb, &y);

        if (nx != ny || memcmp(x, y, nx) != 0)
            breaks(c, part, side, why, n);
        free(x);
        free(y);
    }
}

/* Fills a cache with the same tokens again after another cache took other
 * tokens: a codec must not remember them. */
static int check_repeated(const struct check *c, const struct kv_cache *first,
                          struct kv_err *e)
{
    const size_t n = c->plan->tokens.n;
    const struct kv_tokens others =
        kv_tokens_part(&c->plan->tokens, &c->codec[KV_K]->shape, 1, n - 1);
    struct kv_cache *between = fill(c, &others, n - 1, n, e);
    struct kv_cache *again =
        between ? fill(c, &c->plan->tokens, n, n, e) : NULL;

    if (again)
        compare(c, KV_LAW_REPEATED, first, again, "the second time differs", n);
    kv_cache_free(again);
    kv_cache_free(between);
    return again ? 0 : -1;
}

static int check_apart(const struct check *c, size_t n, struct kv_err *e)
{
    static const size_t steps[] = {1, 7};
    struct kv_cache *whole = fill(c, &c->plan->tokens, n, n + 1, e);
    int rc = whole ? 0 : -1;

    for (size_t i = 0; i < 2 && !rc; i++) {
        struct kv_cache *part = fill(c, &c->plan->tokens, n, steps[i], e);

        rc = part ? 0 : -1;
        if (part)
            compare(c, KV_LAW_APART, whole, part,
                    i ? "seven at a time differ" : "one at a time differ", n);
        kv_cache_free(part);
    }
    kv_cache_free(whole);
    return rc;
}

static int check_threads(const struct check *c, const struct kv_cache *first,
                         struct kv_err *e)
{
    enum { THREADS = 4 };
    const size_t n = c->plan->tokens.n;
    struct kv_cache *cache[THREADS] = {NULL};
    struct kv_err error[THREADS];
    int rc = 0;

#pragma omp parallel for schedule(static, 1) num_threads(THREADS)
    for (int i = 0; i < THREADS; i++)
        cache[i] = fill(c, &c->plan->tokens, n, i % 2 ? 7 : n, &error[i]);
    for (int i = 0; i < THREADS; i++) {
        if (!cache[i] && !rc) {
            *e = error[i];
            rc = -1;
        }
        if (!rc)
            compare(c, KV_LAW_THREADS, first, cache[i], "a thread's differ", n);
        kv_cache_free(cache[i]);
    }
    return rc;
}

/* Decodes the cache twice, and each quantized block by itself; all must
 * agree. */
static void check_decoded(const struct check *c, const struct kv_cache *cache)
{
    const size_t n = c->plan->tokens.n;

    for (enum kv_side side = KV_K; side < KV_SIDES; side++) {
        const struct kv_reader r = kv_cache_reader(cache, side);
        const size_t row = kv_codec_row(r.codec), block = r.codec->block;
        float *all = kv_alloc(n, row * sizeof(*all));
        float *again = kv_alloc(n, row * sizeof(*again));

        kv_cache_decode(cache, side, all);
        kv_cache_decode(cache, side, again);
        if (!kv_row_is_finite(all, n * row))
            breaks(c, KV_LAW_DECODED, side, "a value is not finite", n);
        if (memcmp(all, again, n * row * sizeof(*all)) != 0)
            breaks(c, KV_LAW_DECODED, side, "the second time differs", n);
        for (size_t i = 0; i < r.n_blocks && !r.codec->history; i++) {
            const size_t at = r.sinks + i * block;

            kv_cache_decode_part(cache, side, at, at + block, again);
            if (memcmp(again, all + at * row, block * row * sizeof(*all)) != 0)
                breaks(c, KV_LAW_DECODED, side, "a block alone differs", n);
        }
        free(again);
        free(all);
    }
}

static int check_level(const struct check *c, float level, bool signs,
                       struct kv_err *e)
{
    const size_t n = c->plan->tokens.n;
    const struct kv_shape *s = &c->codec[KV_K]->shape;
    const size_t row = s->n_kv_heads * s->head_dim;
    const size_t query = s->n_heads * s->head_dim;
    float *x = kv_alloc(n, query * sizeof(*x));
    const struct kv_tokens t = {.n = n, .q = x, .k = x, .k_pre = x, .v = x};
    struct kv_cache *cache;

    for (size_t i = 0; i < n * query; i++)
        x[i] = signs && i % 2 ? -level : level;
    cache = fill(c, &t, n, n, e);
    for (enum kv_side side = KV_K; cache && side < KV_SIDES; side++) {
        kv_cache_decode(cache, side, x);
        if (!kv_row_is_finite(x, n * row))
            breaks(c, KV_LAW_EXTREMES, side, "a value is not finite", n);
    }
    kv_cache_free(cache);
    free(x);
    return cache ? 0 : -1;
}

static int check_extremes(const struct check *c, struct kv_err *e)
{
    static const float levels[] = {0, 1, -3.25f, 65504, -65504, 0x1p-24f};
    int rc = check_level(c, 65504, true, e);

    for (size_t i = 0; i < sizeof(levels) / sizeof(*levels) && !rc; i++)
        rc = check_level(c, levels[i], false, e);
    return rc;
}

static int check_all(const struct check *c, struct kv_err *e)
{
    const size_t n = c->plan->tokens.n, block = c->codec[KV_K]->block;
    const size_t sizes[] = {1,         2,         block - 1, block,
                            block + 1, 2 * block, n - 1,     n};
    struct kv_cache *first = fill(c, &c->plan->tokens, n, n, e);
    int rc = first ? 0 : -1;

    if (!rc)
        rc = check_repeated(c, first, e);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes) && !rc; i++)
        if (sizes[i] <= n)
            rc = check_apart(c, sizes[i], e);
    if (!rc)
        rc = check_threads(c, first, e);
    if (!rc) {
        check_decoded(c, first);
        rc = check_extremes(c, e);
    }
    kv_cache_free(first);
    return rc;
}

int kv_law_check(const struct kv_law_plan *plan,
                 struct kv_law_verdict (*out)[KV_SIDES], struct kv_err *e)
{
    struct kv_codecs *codecs;
    struct check c = {.plan = plan, .out = out};
    int rc;

    for (int i = 0; i < KV_LAW_PARTS * KV_SIDES; i++)
        out[i / KV_SIDES][i % KV_SIDES] =
            (struct kv_law_verdict){.holds = true};
    if (kv_codecs_new(&codecs, plan->spec, plan->shape, plan->layer, 1,
                      plan->calib, e))
        return -1;
    c.codec = kv_codecs_at(codecs, plan->layer);
    rc = check_all(&c, e);
    kv_codecs_free(codecs);
    return rc;
}
