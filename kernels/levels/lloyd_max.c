#include "kernels/levels/lloyd_max.h"

#include <assert.h>
#include <math.h>

/* Only the half of the levels above 0 is computed: y[n], between thresholds
 * t_0 = 0, t_i = (y_{i-1} + y_i) / 2, t_n = infinity. */
enum { HALF = KV_LLOYD_MAX_LEVELS / 2 };

static double density(double x)
{
    return exp(-x * x / 2) * 0.3989422804014326779; /* 1 / sqrt(2 pi) */
}

/* The mass beyond x. */
static double beyond(double x)
{
    return erfc(x * 0.7071067811865475244) / 2;
}

/* The x at which beyond(x) = p, 0 < p <= 1/2. */
static double quantile(double p)
{
    double low = 0, high = 40;

    for (int i = 0; i < 60; i++) {
        const double x = (low + high) / 2;

        *(beyond(x) > p ? &low : &high) = x;
    }
    return low;
}

/* Many levels tend to the density^(1/3), which is normal with variance 3. */
static void start(double *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = sqrt(3) * quantile(0.5 - ((double)i + 0.5) / (double)(2 * n));
}

/* The mean of the distribution in [a, b), its mass, and the derivatives of the
 * mean by a and b. */
struct cell {
    double mean, mass, by_a, by_b;
};

static struct cell cell(double a, double b)
{
    const double at_a = density(a), at_b = isinf(b) ? 0 : density(b);
    struct cell c = {.mass = beyond(a) - (isinf(b) ? 0 : beyond(b))};

    c.mean = (at_a - at_b) / c.mass;
    c.by_a = at_a * (c.mean - a) / c.mass;
    c.by_b = isinf(b) ? 0 : at_b * (b - c.mean) / c.mass;
    return c;
}

static struct cell cell_of(const double *y, size_t n, size_t i)
{
    return cell(i ? (y[i - 1] + y[i]) / 2 : 0,
                i + 1 < n ? (y[i] + y[i + 1]) / 2 : INFINITY);
}

/* One step of Newton's method on y_i - mean_i(y) = 0, whose matrix has three
 * diagonals and, for a log-concave density, a dominant middle one.  Lloyd's
 * own iteration has the same fixed point, but needs about n^2 rounds.  Returns
 * the largest change. */
static double step(double *y, size_t n)
{
    double right[HALF], up[HALF], max = 0;

    for (size_t i = 0; i < n; i++) { /* eliminate downwards ... */
        const struct cell c = cell_of(y, n, i);
        const double left = i ? -c.by_a / 2 : 0;
        double middle = 1 - (i ? c.by_a / 2 : 0) - c.by_b / 2;

        right[i] = y[i] - c.mean;
        if (i) {
            middle -= left * up[i - 1];
            right[i] -= left * right[i - 1];
        }
        right[i] /= middle;
        up[i] = -c.by_b / 2 / middle;
    }
    for (size_t i = n; i-- > 0;) { /* ... and solve upwards */
        if (i + 1 < n)
            right[i] -= up[i] * right[i + 1];
        max = fmax(max, fabs(right[i]));
    }
    for (size_t i = 0; i < n; i++)
        y[i] -= right[i];
    return max;
}

double kv_lloyd_max(unsigned bits, double *level, double *threshold)
{
    assert(bits >= 1 && bits <= KV_LLOYD_MAX_BITS);

    const size_t n = (size_t)1 << (bits - 1);
    double y[HALF], kept = 0;

    start(y, n);
    while (step(y, n) > 1e-8) /* the remaining error is about its square */
        ;
    for (size_t i = 0; i < n; i++) {
        kept += 2 * cell_of(y, n, i).mass * y[i] * y[i];
        level[n + i] = y[i];
        level[n - 1 - i] = -y[i];
    }
    for (size_t i = 0; i + 1 < 2 * n; i++)
        threshold[i] = (level[i] + level[i + 1]) / 2;
    return 1 - kept;
}
