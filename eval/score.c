#include "eval/score.h"
#include "eval/window_mean.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_score {
    struct kv_window_mean nll, dnll, kl;
    double token_nll, token_nll2, kl_max, dp, dp2;
    size_t n_tokens, n_kl, n_same, capacity;
    float *token_kl; /* [n_kl] */
    size_t n_windows;
    double *window_kl; /* [n_windows] */
};

struct kv_score *kv_score_new(void)
{
    return kv_alloc(1, sizeof(struct kv_score));
}

void kv_score_free(struct kv_score *s)
{
    if (!s)
        return;
    free(s->token_kl);
    free(s->window_kl);
    free(s);
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Interpolates between the two of n sorted values around index share * (n -
 * 1). */
static double percentile(const float *sorted, size_t n, double share)
{
    const double at = share * (double)(n - 1);
    const size_t i = (size_t)at, next = i + 1 < n ? i + 1 : i;
    const double low = (double)sorted[i], high = (double)sorted[next];

    return low + (at - (double)i) * (high - low);
}

static void put_percentiles(const struct kv_score *s,
                            struct kv_score_summary *to)
{
    float *sorted = s->n_kl ? kv_alloc(s->n_kl, sizeof(*sorted)) : NULL;
    const struct {
        double *to, share;
    } wanted[] = {{&to->kl_p999, 0.999}, {&to->kl_p99, 0.99},
                  {&to->kl_p95, 0.95},   {&to->kl_p90, 0.9},
                  {&to->kl_p10, 0.1},    {&to->kl_p5, 0.05},
                  {&to->kl_p1, 0.01},    {&to->kl_median, 0.5}};

    if (sorted) {
        memcpy(sorted, s->token_kl, s->n_kl * sizeof(*sorted));
        qsort(sorted, s->n_kl, sizeof(*sorted), compare);
    }
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        *wanted[i].to =
            sorted ? percentile(sorted, s->n_kl, wanted[i].share) : NAN;
    free(sorted);
}

/* Makes room for n more divergences. */
static void make_room(struct kv_score *s, size_t n)
{
    if (s->n_kl + n <= s->capacity)
        return;
    s->capacity = (s->n_kl + n) * 2;
    s->token_kl = kv_realloc(s->token_kl, s->capacity, sizeof(*s->token_kl));
}

/* Fails on NaN and infinity before adding to a mean: a maximum, a
 * percentile or a comparison would ignore NaN. */
static int check_finite(const struct kv_loss *t, size_t n, bool has_kl,
                        size_t window, size_t first, struct kv_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const char *what = NULL;

        if (!isfinite(t[i].nll))
            what = "the loss";
        else if (has_kl && !isfinite(t[i].kl))
            what = "the divergence from the base";
        else if (has_kl && (!isfinite(t[i].dp) || !isfinite(t[i].base_nll)))
            what = "the base's loss";
        if (what)
            return kv_fail(e,
                           "window %zu, token %zu: %s is not finite (does the "
                           "model overflow?)",
                           window, first + i, what);
    }
    return 0;
}

int kv_score_window(struct kv_score *s, const struct kv_loss *t, size_t n,
                    double base_nll, bool has_kl, size_t window, size_t first,
                    struct kv_err *e)
{
    double nll = 0, kl = 0;

    if (check_finite(t, n, has_kl, window, first, e))
        return -1;
    if (has_kl)
        make_room(s, n);
    for (size_t i = 0; i < n; i++) {
        const double x = (double)t[i].nll, dp = (double)t[i].dp;

        nll += x;
        s->token_nll2 += x * x;
        if (!has_kl)
            continue;
        kl += (double)t[i].kl;
        s->kl_max = fmax(s->kl_max, (double)t[i].kl);
        s->token_kl[s->n_kl++] = t[i].kl;
        s->n_same += t[i].same;
        s->dp += dp;
        s->dp2 += dp * dp;
    }
    s->token_nll += nll;
    s->n_tokens += n;
    kv_window_mean_add(&s->nll, nll / (double)n);
    if (!isnan(base_nll))
        kv_window_mean_add(&s->dnll, nll / (double)n - base_nll);
    if (has_kl) {
        s->window_kl =
            kv_realloc(s->window_kl, s->n_windows + 1, sizeof(*s->window_kl));
        s->window_kl[s->n_windows++] = kl / (double)n;
        kv_window_mean_add(&s->kl, kl / (double)n);
    }
    return 0;
}

double *kv_score_kl_windows(const struct kv_score *s)
{
    double *kl = NULL;

    if (s->n_windows) {
        kl = kv_alloc(s->n_windows, sizeof(*kl));
        memcpy(kl, s->window_kl, s->n_windows * sizeof(*kl));
    }
    return kl;
}

struct kv_score_summary kv_score_summary(const struct kv_score *s)
{
    const double n = (double)s->n_tokens, mean = s->token_nll / n;
    struct kv_score_summary r = {
        .tokens = n,
        .nll = kv_window_mean_value(&s->nll),
        .dnll = kv_window_mean_value(&s->dnll),
        .dnll_se = kv_window_mean_se(&s->dnll),
        .kl_mean = kv_window_mean_value(&s->kl),
        .kl_se = kv_window_mean_se(&s->kl),
        .kl_max = NAN,
        .same_top1 = NAN,
        .dp_mean = NAN,
        .dp_rms = NAN,
    };

    r.ppl = exp(r.nll);
    r.ppl_se = r.ppl * kv_window_mean_se(&s->nll);
    r.ppl_se_tokens =
        r.ppl * sqrt(fmax(s->token_nll2 / n - mean * mean, 0) / (n - 1));
    put_percentiles(s, &r);
    if (s->n_kl) {
        const double k = (double)s->n_kl;

        r.kl_max = s->kl_max;
        r.same_top1 = (double)s->n_same / k;
        r.dp_mean = s->dp / k;
        r.dp_rms = sqrt(s->dp2 / k);
    }
    return r;
}
