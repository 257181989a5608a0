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
