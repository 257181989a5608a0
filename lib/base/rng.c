#include "lib/base/rng.h"

#include <math.h>

double kv_random_normal(uint64_t key, uint64_t counter)
{
    const uint64_t r = kv_random(key, counter);
    const double u = ((double)(r >> 32) + 0.5) * 0x1p-32;
    const double a = (double)(uint32_t)r * 0x1p-32;

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * a);
}

double kv_normal_quantile(double p)
{
    double low = -10, high = 10;

    while (high - low > 1e-12) {
        const double mid = (low + high) / 2;

        if (erfc(-mid / sqrt(2)) / 2 < p)
            low = mid;
        else
            high = mid;
    }
    return (low + high) / 2;
}
