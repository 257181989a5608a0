#include "kernels/loss.h"
#include "kernels/vecops/vecops.h"

#include <math.h>
#include <string.h>

void kv_log_softmax(const float *x, size_t n, float *log_p, float *p)
{
    const float lse = (float)kv_log_sum_exp(x, n);

    for (size_t i = 0; i < n; i++)
        log_p[i] = x[i] - lse;
    memcpy(p, log_p, n * sizeof(*p));
    kv_row_exp(p, n, 0);
}

/* sum of p (log p - log q) where log p > floor.  q: logits with log-sum-exp
 * q_lse. */
static double divergence(const float *log_p, const float *p, const float *q,
                         double q_lse, size_t n, float floor)
{
    enum { LANES = 8 };
    double lane[LANES] = {0}, sum = 0;

    for (size_t i = 0; i < n; i += LANES)
        for (size_t j = 0; j < LANES && i + j < n; j++) {
            const double diff =
                (double)log_p[i + j] - ((double)q[i + j] - q_lse);

            lane[j] += log_p[i + j] > floor ? (double)p[i + j] * diff : 0;
        }
    for (size_t j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

void kv_loss_row(const float *logits, const float *base_log_p, const float *p,
                 float floor, size_t n, int32_t target, struct kv_loss *loss)
{
    const double lse = kv_log_sum_exp(logits, n);
    const double log_q = (double)logits[target] - lse;

    *loss = (struct kv_loss){.nll = (float)-log_q};
    if (!base_log_p)
        return;
    loss->base_nll = -base_log_p[target];
    loss->dp = (float)(exp(log_q) - exp((double)base_log_p[target]));
    loss->same = kv_row_argmax(logits, n) == kv_row_argmax(base_log_p, n);
    loss->kl = (float)divergence(base_log_p, p, logits, lse, n, floor);
}

/* log(exp(a) + exp(b)); a has weight 0 if nothing was added to it. */
static double add_log(bool none, double a, double b)
{
    const double max = a > b ? a : b;

    return none ? b : max + log(exp(a - max) + exp(b - max));
}

/* The sum of p (x - y) over the sum of p; x: the base's logits. */
static double mean_excess(const struct kv_loss_base *b, const float *y,
                          size_t n)
{
    enum { LANES = 8 };
    const float *x = b->logits, *p = b->p;
    double lane[LANES] = {0}, sum = 0;

    for (size_t i = 0; i < n; i += LANES)
        for (size_t j = 0; j < LANES && i + j < n; j++)
            lane[j] += (double)p[i + j] * ((double)x[i + j] - (double)y[i + j]);
    for (size_t j = 0; j < LANES; j++)
        sum += lane[j];
    return sum / b->sum;
}

/* Takes note of logit x, the largest of its part, at index i of the part. */
static void add_top(float x, size_t i, size_t seen, float *top, size_t *at)
{
    if (seen && !(x > *top))
        return;
    *top = x;
    *at = seen + i;
}

struct kv_loss_base kv_loss_base(const float *logits, size_t n, float *p)
{
    memcpy(p, logits, n * sizeof(*p));
    return (struct kv_loss_base){.logits = logits,
                                 .p = p,
                                 .lse = kv_log_sum_exp(logits, n),
                                 .sum = kv_row_exp(p, n, kv_row_max(logits, n)),
                                 .at = kv_row_argmax(logits, n)};
}

void kv_loss_add(struct kv_loss_sum *s, const float *logits,
                 const struct kv_loss_base *base, size_t n, int32_t target)
{
    const bool none = !s->n;
    const bool here = (size_t)target >= s->n && (size_t)target < s->n + n;
    const size_t i = here ? (size_t)target - s->n : 0;

    if (here)
        s->target = logits[i];
    s->lse = add_log(none, s->lse, kv_log_sum_exp(logits, n));
    if (base) {
        const double all = add_log(none, s->base_lse, base->lse);
        const size_t top = kv_row_argmax(logits, n);

        if (here)
            s->base_target = base->logits[i];
        s->excess = (none ? 0 : s->excess * exp(s->base_lse - all)) +
                    mean_excess(base, logits, n) * exp(base->lse - all);
        s->base_lse = all;
        add_top(logits[top], top, s->n, &s->top, &s->at);
        add_top(base->logits[base->at], base->at, s->n, &s->base_top,
                &s->base_at);
    }
    s->n += n;
}

struct kv_loss kv_loss_end(const struct kv_loss_sum *s, bool has_base)
{
    const double log_q = (double)s->target - s->lse;
    const double log_p = (double)s->base_target - s->base_lse;

    if (!has_base)
        return (struct kv_loss){.nll = (float)-log_q};
    return (struct kv_loss){
        .nll = (float)-log_q,
        .base_nll = (float)-log_p,
        .dp = (float)(exp(log_q) - exp(log_p)),
        .same = s->at == s->base_at,
        .kl = (float)(s->excess - s->base_lse + s->lse),
    };
}
