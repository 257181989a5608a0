#include "eval/window_mean.h"

#include <math.h>

void kv_window_mean_add(struct kv_window_mean *m, double x)
{
    m->sum += x;
    m->sum2 += x * x;
    m->n++;
}

double kv_window_mean_value(const struct kv_window_mean *m)
{
    return m->n ? m->sum / (double)m->n : NAN;
}

double kv_window_mean_se(const struct kv_window_mean *m)
{
    const double n = (double)m->n;

    if (m->n < 2)
        return NAN;
    return sqrt(fmax(m->sum2 - m->sum * m->sum / n, 0) / (n - 1) / n);
}
