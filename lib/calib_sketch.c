#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHINGLE = 32 };

/* The base of the polynomial modulo 2^64; odd. */
static const uint64_t BASE = 0x9e3779b97f4a7c15u;

bool kv_sketch_sampled(uint64_t hash)
{
    return !(hash >> 60); /* in the lowest sixteenth */
}

static void keep_sampled(struct kv_sketch *s, uint64_t polynomial)
{
    const uint64_t hash = kv_mix64(polynomial);

    if (!kv_sketch_sampled(hash))
        return;
    if (!(s->n & (s->n - 1))) /* the capacity is a power of two, and full */
        s->hash = kv_realloc(s->hash, s->n ? 2 * s->n : 1, sizeof(*s->hash));
    s->hash[s->n++] = hash;
}

/* The hash of a shingle is a rolling polynomial over mixed tokens: the sum of
 * mix(token_i) BASE^(31-i). */
void kv_sketch_add(struct kv_sketch *s, const int32_t *tokens, size_t n)
{
    uint64_t oldest = 1, sum = 0;

    for (size_t i = 0; i < SHINGLE; i++)
        oldest *= BASE;
    for (size_t t = 0; t < n; t++) {
        sum = sum * BASE + kv_mix64((uint64_t)tokens[t] + 1);
        if (t >= SHINGLE)
            sum -= oldest * kv_mix64((uint64_t)tokens[t - SHINGLE] + 1);
        if (t + 1 >= SHINGLE)
            keep_sampled(s, sum);
    }
}

void kv_sketch_add_windows(struct kv_sketch *s, const int32_t *tokens, size_t n,
                           size_t ctx, enum kv_bos bos)
{
    int32_t *text;
    size_t n_text = 0;

    if (bos != KV_BOS_WINDOWS) {
        kv_sketch_add(s, tokens, n);
        return;
    }
    text = kv_alloc(n, sizeof(*text));
    for (size_t t = 0; t < n; t++)
        if (t % ctx)
            text[n_text++] = tokens[t];
    kv_sketch_add(s, text, n_text);
    free(text);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

void kv_sketch_sort(struct kv_sketch *s)
{
    size_t n = 0;

    if (s->n)
        qsort(s->hash, s->n, sizeof(*s->hash), compare);
    for (size_t i = 0; i < s->n; i++)
        if (!i || s->hash[i] != s->hash[i - 1])
            s->hash[n++] = s->hash[i];
    s->n = n;
}

void kv_sketch_join(struct kv_sketch *s, const struct kv_sketch *other)
{
    s->hash = kv_realloc(s->hash, s->n + other->n, sizeof(*s->hash));
    if (other->n)
        memcpy(s->hash + s->n, other->hash, other->n * sizeof(*s->hash));
    s->n += other->n;
    kv_sketch_sort(s);
}

int kv_sketch_dump(struct kv_sketch *s, struct kv_dump *dump, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n = info->n_windows * info->ctx;
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));
    const int rc = kv_dump_tokens(dump, 0, n, tokens, e);

    *s = (struct kv_sketch){0};
    if (!rc)
        kv_sketch_add_windows(s, tokens, n, info->ctx, info->reading.bos);
    kv_sketch_sort(s);
    free(tokens);
    return rc ? -1 : 0;
}

double kv_sketch_overlap(const struct kv_sketch *a, const struct kv_sketch *b)
{
    size_t found = 0;

    for (size_t i = 0, j = 0; i < a->n && j < b->n;) {
        if (a->hash[i] == b->hash[j]) {
            found++;
            i++;
            j++;
        } else if (a->hash[i] < b->hash[j]) {
            i++;
        } else {
            j++;
        }
    }
    return b->n ? (double)found / (double)b->n : NAN;
}

void kv_sketch_clear(struct kv_sketch *s)
{
    free(s->hash);
    *s = (struct kv_sketch){0};
}
