#include "tests/plain_nearest.h"
#include "lib/base/rng.h"

#include <math.h>

void fill_normal(float *x, size_t n, uint64_t seed, bool coarse)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)kv_random_normal(seed, i);
        if (coarse)
            x[i] = rintf(2 * x[i]) / 2;
    }
}

/* fmaf() by the processor's instruction where it has one, not by a call. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("fma", "default")))
#endif
float plain_distance(const float *x, const float *c, size_t d)
{
    float s = 0;

    for (size_t j = 0; j < d; j++) {
        const float t = x[j] - c[j];

        s = fmaf(t, t, s);
    }
    return s;
}

size_t plain_nearest(const float *x, const float *centers, size_t k, size_t d)
{
    size_t best = 0;
    float least = plain_distance(x, centers, d);

    for (size_t c = 1; c < k; c++) {
        const float s = plain_distance(x, centers + c * d, d);

        if (s < least) {
            least = s;
            best = c;
        }
    }
    return best;
}
