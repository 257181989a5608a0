/* What an encoder of trellis.h counts in: positions and their costs. */
#include "kernels/trellis/impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Past all numbers, where x is held: what is beyond costs the more the further
 * off a number is, but not so much that paths are lost. */
static const double BEYOND = 8 * KV_TRELLIS_NEAR;

/* A table of 0s may have any scale. */
static float in_float(double x)
{
    return (float)fmax(fmin(x, (double)FLT_MAX), (double)-FLT_MAX);
}

/* What is far costs its distance >> slope more, where numbers may all be far:
 * their gaps are wide, or a state goes on to few of many numbers that are close
 * together, which is so from 6 bits on. */
static unsigned slope_of(const struct kv_trellis_step *step, double gap,
                         unsigned shift)
{
    if (step->bits <= KV_TRELLIS_NARROW &&
        gap / 2 < KV_TRELLIS_FAR(step->values) >> shift)
        return KV_TRELLIS_NO_SLOPE;
    return step->values < 3 ? step->values + 4 : 7;
}

/* near: the distance that costs 4. */
static void count_step(const struct kv_trellis_step *step, const float *scale,
                       double near, struct kv_trellis_whole *whole)
{
    const double beyond = BEYOND / sqrt(step->values);
    double most = 0, part = 1, reach, gap;
    unsigned shift = 0;

    for (unsigned v = 0; v < step->values; v++)
        most = fmax(most, fabs((double)scale[v]) * KV_TRELLIS_NEAR / near);
    reach = most * (double)step->reach;
    gap = most * (double)step->gap;
    for (; shift < 8 && part * (reach + beyond) > 0x7fff; part /= 2)
        shift++;
    part = fmin(part, 0x7fff / (reach + beyond));
    for (unsigned v = 0; v < step->values; v++)
        whole[v] = (struct kv_trellis_whole){
            .x = (float)(part * KV_TRELLIS_NEAR / near),
            .number =
                in_float(part * KV_TRELLIS_NEAR / near * (double)scale[v]),
            .most = (int16_t)(part * (reach + beyond)),
            .shift = (uint8_t)shift,
            .slope = (uint8_t)slope_of(step, part * gap, shift)};
}

/* What is expected of values, in the mean; or, if more of one is expected than
 * most, as if it were most.  logs: of what is not 0, the mean logarithm. */
static double mean_error(const struct kv_trellis_step *step, size_t n_steps,
                         const float *scale, double most, double *logs)
{
    double sum = 0, log_sum = 0;
    size_t n = 0, n_logs = 0;

    for (size_t k = 0; k < n_steps; n += step[k++].values)
        for (unsigned v = 0; v < step[k].values; v++) {
            const double error =
                step[k].error * (double)scale[n + v] * (double)scale[n + v];

            sum += fmin(error, most);
            log_sum += error > 0 ? log(error) : 0;
            n_logs += error > 0;
        }
    *logs = n_logs ? log_sum / (double)n_logs : 0;
    return sum / (double)n;
}

/* A few values of which far more is expected, since steps have 8 bits at most,
 * do not make the others' costs 0. */
static double unit_error(const struct kv_trellis_step *step, size_t n_steps,
                         const float *scale)
{
    static const double MOST = 16;
    double logs, error;

    error = mean_error(step, n_steps, scale, INFINITY, &logs);
    return isfinite(error)
               ? mean_error(step, n_steps, scale, MOST * exp(logs), &logs)
               : error;
}

void kv_trellis_count(const struct kv_trellis_step *step, size_t n_steps,
                      const float *scale, struct kv_trellis_whole *whole)
{
    const double near = sqrt(unit_error(step, n_steps, scale));

    for (size_t k = 0; k < n_steps; k++) {
        if (near > 1e-30 && isfinite(near))
            count_step(&step[k], scale, near, whole);
        else /* numbers that are all 0: any path is as good */
            memset(whole, 0, step[k].values * sizeof(*whole));
        scale += step[k].values;
        whole += step[k].values;
    }
}
