#include "eval/rd_bound.h"

#include <math.h>

static double rate(const double *variance, size_t n, double theta)
{
    double bits = 0;

    for (size_t i = 0; i < n; i++)
        if (variance[i] > theta)
            bits += (log2(variance[i]) - log2(theta)) / 2;
    return bits;
}

double kv_rd_bound(const double *variance, size_t n, double bits)
{
    double low = 0, high = 0, sum = 0;

    for (size_t i = 0; i < n; i++)
        high = fmax(high, variance[i]);
    /* until no double is left between low and high */
    for (double theta = high / 2; low < theta && theta < high;
         theta = low + (high - low) / 2) {
        if (rate(variance, n, theta) > bits)
            low = theta;
        else
            high = theta;
    }
    for (size_t i = 0; i < n; i++)
        sum += fmin(high, variance[i]);
    return sum;
}
