/* The mean of values, one for each window or prompt, and its standard error. */
#ifndef KV_WINDOW_MEAN_H
#define KV_WINDOW_MEAN_H

#include <stddef.h>

struct kv_window_mean {
    double sum, sum2;
    size_t n;
};

void kv_window_mean_add(struct kv_window_mean *m, double x);
/* NaN without values. */
double kv_window_mean_value(const struct kv_window_mean *m);
/* NaN for fewer than two values. */
double kv_window_mean_se(const struct kv_window_mean *m);

#endif
