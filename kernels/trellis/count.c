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
static unsigned slope_of(const struct kv_trellis_transition *transition,
                         double gap, unsigned shift)
{
    if (transition->bits <= KV_TRELLIS_NARROW &&
        gap / 2 < KV_TRELLIS_FAR(transition->values) >> shift)
        return KV_TRELLIS_NO_SLOPE;
    return transition->values < 3 ? transition->values + 4 : 7;
}

/* near: the distance that costs 4. */
static void count_transition(const struct kv_trellis_transition *transition,
                             const float *scale, double near,
                             struct kv_trellis_whole *whole)
{
    const double beyond = BEYOND / sqrt(transition->values);
    double most = 0, part = 1, reach, gap;
    unsigned shift = 0;

    for (unsigned v = 0; v < transition->values; v++)
        most = fmax(most, fabs((double)scale[v]) * KV_TRELLIS_NEAR / near);
    reach = most * (double)transition->reach;
    gap = most * (double)transition->gap;
    for (; shift < 8 && part * (reach + beyond) > 0x7fff; part /= 2)
        shift++;
    part = fmin(part, 0x7fff / (reach + beyond));
    for (unsigned v = 0; v < transition->values; v++)
        whole[v] = (struct kv_trellis_whole){
            .x = (float)(part * KV_TRELLIS_NEAR / near),
            .number =
                in_float(part * KV_TRELLIS_NEAR / near * (double)scale[v]),
            .most = (int16_t)(part * (reach + beyond)),
            .shift = (uint8_t)shift,
            .slope = (uint8_t)slope_of(transition, part * gap, shift)};
}

/* What is expected of values, in the mean; or, if more of one is expected than
 * most, as if it were most.  logs: of what is not 0, the mean logarithm. */
static double mean_error(const struct kv_trellis_transition *transition,
                         size_t n_transitions, const float *scale, double most,
                         double *logs)
{
    double sum = 0, log_sum = 0;
    size_t n = 0, n_logs = 0;

    for (size_t k = 0; k < n_transitions; n += transition[k++].values)
        for (unsigned v = 0; v < transition[k].values; v++) {
            const double error = transition[k].error * (double)scale[n + v] *
                                 (double)scale[n + v];

            sum += fmin(error, most);
            log_sum += error > 0 ? log(error) : 0;
            n_logs += error > 0;
        }
    *logs = n_logs ? log_sum / (double)n_logs : 0;
    return sum / (double)n;
}

/* A few values of which far more is expected, since transitions have 8 bits at
 * most, do not make the others' costs 0. */
static double unit_error(const struct kv_trellis_transition *transition,
                         size_t n_transitions, const float *scale)
{
    static const double MOST = 16;
    double logs, error;

    error = mean_error(transition, n_transitions, scale, INFINITY, &logs);
    return isfinite(error) ? mean_error(transition, n_transitions, scale,
                                        MOST * exp(logs), &logs)
                           : error;
}

void kv_trellis_count(const struct kv_trellis_transition *transition,
                      size_t n_transitions, const float *scale,
                      struct kv_trellis_whole *whole)
{
    const double near = sqrt(unit_error(transition, n_transitions, scale));

    for (size_t k = 0; k < n_transitions; k++) {
        if (near > 1e-30 && isfinite(near))
            count_transition(&transition[k], scale, near, whole);
        else /* numbers that are all 0: any path is as good */
            memset(whole, 0, transition[k].values * sizeof(*whole));
        scale += transition[k].values;
        whole += transition[k].values;
    }
}
