#include "eval/serving/arrivals.h"
#include "lib/base/rng.h"

#include <math.h>

enum { ARRIVALS = 1, INPUTS, OUTPUTS }; /* random streams of a seed */

double kv_uniform(uint64_t key, uint64_t counter)
{
    return ((double)(kv_random(key, counter) >> 12) + .5) * 0x1p-52;
}

/* Draws from the gamma distribution of shape a (Marsaglia and Tsang, 2000); a
 * shape below 1 uses a + 1. */
static double gamma_draw(double a, uint64_t key)
{
    const double d = (a < 1 ? a + 1 : a) - 1. / 3, c = 1 / sqrt(9 * d);

    for (uint64_t i = 0;; i += 2) {
        const double x = kv_random_normal(kv_mix(key, 0), i);
        const double v = pow(1 + c * x, 3), u = kv_uniform(key, i);

        if (1 + c * x <= 0 || log(u) >= x * x / 2 + d - d * v + d * log(v))
            continue;
        return d * v * (a < 1 ? pow(kv_uniform(key, i + 1), 1 / a) : 1);
    }
}

static uint32_t draw(const struct kv_length_law *l, uint64_t key, uint64_t i)
{
    const double range = l->most - l->least;
    const uint64_t k = kv_mix(key, i);

    if (range <= 0)
        return (uint32_t)l->least;

    const double at = (l->mean - l->least) / range;
    const double x = gamma_draw(l->concentration * at, kv_mix(k, 0));
    const double y = gamma_draw(l->concentration * (1 - at), kv_mix(k, 1));

    return (uint32_t)(l->least + range * x / (x + y));
}

static void fill_trace(const struct kv_arrivals *from, struct kv_arrival *a,
                       size_t n)
{
    const double own = from->trace[from->n_trace - 1].time;
    const double scale = own > 0 ? (double)from->n_trace / own / from->rate : 0;

    for (size_t i = 0; i < n; i++) {
        a[i] = from->trace[i];
        a[i].time *= scale;
    }
}

void kv_arrivals_fill(const struct kv_arrivals *from, uint64_t seed,
                      struct kv_arrival *a, size_t n)
{
    const uint64_t gaps = kv_mix(seed, ARRIVALS), in = kv_mix(seed, INPUTS),
                   out = kv_mix(seed, OUTPUTS);
    double t = 0;

    if (from->trace) {
        fill_trace(from, a, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        t -= log(kv_uniform(gaps, i)) / from->rate;
        a[i] = (struct kv_arrival){t, draw(&from->in, in, i),
                                   draw(&from->out, out, i)};
        if (a[i].in + a[i].out > from->longest)
            a[i].in = from->longest - a[i].out;
    }
}
