#include "eval/sampler.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int kv_sampling_check(const struct kv_sampling *s, struct kv_err *e)
{
    if (!(s->repetition_penalty > 0 && s->repetition_penalty < 1e6))
        return kv_fail(e,
                       "--repetition-penalty %g: expected more than 0, 1 "
                       "for none",
                       s->repetition_penalty);
    if (!(s->temperature >= 0 && s->temperature < 1e6))
        return kv_fail(e,
                       "--temperature %g: expected 0 (the most probable "
                       "token) or more",
                       s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return kv_fail(e, "--top-p %g: expected more than 0, at most 1",
                       s->top_p);
    if (s->temperature == 0 && (s->top_k || s->top_p < 1))
        return kv_fail(e,
                       "%s goes with --temperature: without it the most "
                       "probable token is taken",
                       s->top_k ? "--top-k" : "--top-p");
    return 0;
}

void kv_sampling_penalize(const struct kv_sampling *s, float *logits, size_t n,
                          const int32_t *ids, size_t n_ids)
{
    const float by = (float)s->repetition_penalty;
    bool *done;

    if (s->repetition_penalty == 1)
        return;
    done = kv_alloc(n, sizeof(*done));
    for (size_t i = 0; i < n_ids; i++) {
        float *x = &logits[ids[i]];

        if (!done[ids[i]])
            *x = *x < 0 ? *x * by : *x / by;
        done[ids[i]] = true;
    }
    free(done);
}

/* The k-th largest of n > k logits. */
static float kth_largest(const float *logits, size_t n, size_t k)
{
    float *best = kv_alloc(k, sizeof(*best)), kth; /* in descending order */
    size_t held = 0;

    for (size_t i = 0; i < n; i++) {
        size_t at;

        if (held == k && logits[i] <= best[k - 1])
            continue;
        held += held < k;
        for (at = held - 1; at && best[at - 1] < logits[i]; at--)
            best[at] = best[at - 1];
        best[at] = logits[i];
    }
    kth = best[k - 1];
    free(best);
    return kth;
}

static void drop_below(float *logits, size_t n, float least)
{
    for (size_t i = 0; i < n; i++)
        if (logits[i] < least)
            logits[i] = -INFINITY;
}

/* weight [n]: proportional to the probabilities; returns their sum. */
static double weigh(const struct kv_sampling *s, const float *logits, size_t n,
                    double *weight)
{
    const double max = (double)logits[kv_row_argmax(logits, n)];
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        weight[i] = exp(((double)logits[i] - max) / s->temperature);
        sum += weight[i];
    }
    return sum;
}

struct candidate {
    double weight;
    size_t id;
};

/* Ascending weights; of equal weights the lowest id comes last, so that it is
 * dropped last. */
static int by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->weight != y->weight)
        return x->weight < y->weight ? -1 : 1;
    return x->id > y->id ? -1 : x->id < y->id;
}

/* Zeroes the weights of the least probable ids, as long as their probabilities
 * sum to at most 1 - top_p.  Ids with less than (1 - top_p) / n are dropped in
 * any case, so they need not be sorted. */
static void keep_top_p(const struct kv_sampling *s, double *weight, size_t n,
                       double sum)
{
    const double rest = (1 - s->top_p) * sum, small = rest / (double)n;
    struct candidate *c = kv_alloc(n, sizeof(*c));
    size_t n_sorted = 0;
    double below = 0;

    for (size_t i = 0; i < n; i++) {
        if (weight[i] >= small) {
            c[n_sorted++] = (struct candidate){weight[i], i};
        } else {
            below += weight[i];
            weight[i] = 0;
        }
    }
    qsort(c, n_sorted, sizeof(*c), by_weight);
    for (size_t i = 0; i + 1 < n_sorted; i++) {
        below += c[i].weight;
        if (below > rest)
            break;
        weight[c[i].id] = 0;
    }
    free(c);
}

/* The id at which the sum of the weights passes u. */
static size_t draw(const double *weight, size_t n, double u)
{
    double sum = 0, passed = 0;
    size_t last = 0;

    for (size_t i = 0; i < n; i++)
        sum += weight[i];
    for (size_t i = 0; i < n; i++) {
        passed += weight[i];
        if (passed > u * sum)
            return i;
        last = weight[i] > 0 ? i : last;
    }
    return last; /* in case rounding lost the end */
}

int32_t kv_sampling_choose(const struct kv_sampling *s, float *logits, size_t n,
                           double u)
{
    double *weight, sum;
    size_t id;

    if (s->temperature == 0)
        return (int32_t)kv_row_argmax(logits, n);
    if (s->top_k && s->top_k < n)
        drop_below(logits, n, kth_largest(logits, n, s->top_k));
    weight = kv_alloc(n, sizeof(*weight));
    sum = weigh(s, logits, n, weight);
    if (s->top_p < 1)
        keep_top_p(s, weight, n, sum);
    id = draw(weight, n, u);
    free(weight);
    return (int32_t)id;
}
