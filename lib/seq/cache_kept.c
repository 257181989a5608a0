/* Tokens that a cache keeps in fp16 beside their codes. */
#include "lib/base/alloc.h"
#include "lib/seq/cache_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of tokens that OTT keeps after they have left its pool. */
enum { KV_TRACED_OUT = 32 };

void kv_cache_find_massive(struct kv_cache *c, const float *k, const float *v,
                           size_t n)
{
    const struct kv_codec *kc = c->side[KV_K].codec;
    const struct kv_codec *by = kc->massive ? kc : c->side[KV_V].codec;

    if (!by->massive)
        return;
    if (c->n + n > c->massive_capacity) {
        c->massive_capacity = (c->n + n) * 2;
        c->massive =
            kv_realloc(c->massive, c->massive_capacity, sizeof(*c->massive));
    }
    if (by->n_traced) /* found when their block is coded */
        memset(c->massive + c->n, 0, n * sizeof(*c->massive));
    else
        kv_massive_find(&kc->shape, kc->pre_rope, by->norms, c->n, k, v, n,
                        c->massive + c->n);
}

static double magnitude(const float *x, size_t row)
{
    double sum = 0;

    for (size_t i = 0; i < row; i++)
        sum += fabs((double)x[i]);
    return sum;
}

/* Marks the tokens of a block of keys, x [block][row], that enter the pool of
 * the n_traced smallest keys.  The cache keeps the pool's tokens, and at most
 * KV_TRACED_OUT tokens that have left the pool. */
static void trace(const struct kv_cache_side *s, const float *x, bool *massive)
{
    const struct kv_codec *c = s->codec;
    const size_t row = kv_codec_row(c), old = s->kept.n, n = old + c->block;
    double *size = kv_alloc(n, sizeof(*size));
    float *kept = kv_alloc(row, sizeof(*kept));
    size_t n_new = 0;

    for (size_t i = 0; i < n; i++) {
        if (i < old)
            kv_cache_from_half(s->kept.x + i * row, row, kept);
        size[i] = magnitude(i < old ? kept : x + (i - old) * row, row);
    }
    for (size_t t = old; t < n; t++) {
        size_t smaller = 0;

        for (size_t i = 0; i < n; i++)
            smaller += size[i] < size[t] || (size[i] == size[t] && i < t);
        massive[t - old] = smaller < c->n_traced;
        n_new += massive[t - old];
    }
    if (old + n_new > c->n_traced + KV_TRACED_OUT)
        memset(massive, 0, c->block * sizeof(*massive));
    free(kept);
    free(size);
}

/* Replaces the massive tokens of a block x [block][row], which are kept, by the
 * mean of the other tokens, so that they widen no scale of the block's codes
 * (as OTT does, 2505.10938). */
static void even_out(const struct kv_codec *c, const bool *massive, float *x)
{
    const size_t row = kv_codec_row(c);
    float *mean = kv_alloc(row, sizeof(*mean));
    size_t n = 0;

    for (size_t t = 0; t < c->block; t++)
        n += !massive[t];
    for (size_t t = 0; t < c->block && n < c->block; t++)
        for (size_t i = 0; i < row && !massive[t]; i++)
            mean[i] += x[t * row + i] / (float)n;
    for (size_t t = 0; t < c->block; t++)
        for (size_t i = 0; i < row && massive[t]; i++)
            x[t * row + i] = kv_f16_to_f32(kv_f16_clamp(mean[i]));
    free(mean);
}

void kv_cache_keep(struct kv_cache *cache, struct kv_cache_side *s,
                   size_t first, float *x, size_t n_ready)
{
    const struct kv_codec *c = s->codec;
    const size_t row = kv_codec_row(c);
    bool *massive = cache->massive + first;

    for (size_t at = 0; at < n_ready; at += c->block) {
        float *block = x + at * row;

        if (c->n_traced && c->side == KV_K) /* V comes after K */
            trace(s, block, massive + at);
        for (size_t t = 0; t < c->block; t++)
            if (massive[at + t])
                kv_kept_tokens_push(&s->kept, first + at + t, block + t * row);
        if (c->block > 1)
            even_out(c, massive + at, block);
    }
}
