/* What an encoder of trellis.h counts in: positions and their costs. */
#include "kernels/trellis_impl.h"

#include <math.h>
#include <string.h>

/* Past all numbers, where x is held: what is beyond costs the more the further
 * off a number is, but not so much that paths are lost. */
static const double BEYOND = 8 * KV_TRELLIS_NEAR;

/* Whether positions of so many numbers, x with them, fit, and costs in 16 bits.
 */
static bool fits(const struct kv_trellis_step *step, double reach,
                 double beyond, unsigned shift)
{
    return reach + beyond <= 0x7fff &&
           (step->values == 1 || shift ||
            2 * reach + beyond <= 0x7fff / sqrt(step->values));
}

/* near: the distance that costs 16. */
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
    for (; shift < 8 && !fits(step, part * reach, part * beyond, shift);
         part /= 2)
        shift++;
    part = fmin(part, 0x7fff / (reach + beyond));
    for (unsigned v = 0; v < step->values; v++)
        whole[v] = (struct kv_trellis_whole){
            .x = (float)(part * KV_TRELLIS_NEAR / near),
            .number = (float)(part * KV_TRELLIS_NEAR / near * (double)scale[v]),
            .most = (int16_t)(part * (reach + beyond)),
            .shift = (uint8_t)shift,
            .slope =
                (uint8_t)(part * gap / 2 < KV_TRELLIS_FAR(step->values) >> shift
                              ? KV_TRELLIS_NO_SLOPE
                          : step->values < 3 ? step->values + 1
                                             : 4)};
}

void kv_trellis_count(const struct kv_trellis_step *step, size_t n_steps,
                      const float *scale, struct kv_trellis_whole *whole)
{
    double error = 0, near;
    size_t n = 0;

    for (size_t k = 0; k < n_steps; n += step[k++].values)
        for (unsigned v = 0; v < step[k].values; v++)
            error += (double)step[k].error * (double)scale[n + v] *
                     (double)scale[n + v];
    near = sqrt(error / (double)n);
    for (size_t k = 0; k < n_steps; k++) {
        if (near > 1e-30 && isfinite(near))
            count_step(&step[k], scale, near, whole);
        else /* numbers that are all 0: any path is as good */
            memset(whole, 0, step[k].values * sizeof(*whole));
        scale += step[k].values;
        whole += step[k].values;
    }
}
