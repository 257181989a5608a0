#include "eval/kl_curve.h"

static size_t width(const struct kv_kl_curve *c)
{
    return (c->n + KV_KL_BUCKETS - 1) / KV_KL_BUCKETS;
}

size_t kv_kl_curve_buckets(const struct kv_kl_curve *c)
{
    return c->kl[0].n ? (c->n + width(c) - 1) / width(c) : 0;
}

void kv_kl_curve_ends(const struct kv_kl_curve *c, size_t bucket, size_t *first,
                      size_t *last)
{
    const size_t end = (bucket + 1) * width(c);

    *first = bucket * width(c) + 1;
    *last = end < c->n ? end : c->n;
}

static void add_buckets(struct kv_kl_curve *c, const struct kv_loss *t)
{
    for (size_t at = 0; at < c->n; at += width(c)) {
        const size_t left = c->n - at, n = left < width(c) ? left : width(c);
        const size_t bucket = at / width(c);
        double kl = 0, same = 0;

        for (size_t i = at; i < at + n; i++) {
            kl += (double)t[i].kl;
            same += t[i].same;
        }
        kv_window_mean_add(&c->kl[bucket], kl / (double)n);
        kv_window_mean_add(&c->same[bucket], same / (double)n);
    }
}

static double slope(const struct kv_loss *t, size_t n)
{
    const double middle = (double)(n - 1) / 2;
    double up = 0, squares = 0;

    for (size_t i = 0; i < n; i++) {
        const double x = (double)i - middle;

        up += x * (double)t[i].kl;
        squares += x * x;
    }
    return up / squares;
}

void kv_kl_curve_window(struct kv_kl_curve *c, const struct kv_loss *t)
{
    size_t agree = 0;

    add_buckets(c, t);
    if (c->n > 1)
        kv_window_mean_add(&c->slope, slope(t, c->n));
    while (agree < c->n && t[agree].same)
        agree++;
    kv_window_mean_add(&c->agree, (double)agree);
}
