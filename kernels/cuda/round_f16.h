/* Rounds tokens to halves on the device, as a cache stores them. */
#ifndef KV_CUDA_ROUND_F16_H
#define KV_CUDA_ROUND_F16_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds x [n] to half [n], to the nearest, clipped to the largest finite half;
 * writes the rounded values as floats to wide [n] and again [n].  n is even; if
 * it is a multiple of 8, all arrays must be 16-byte aligned.  Sets *nonfinite
 * to 1 if x holds a NaN or an infinity, and adds the number of clipped values
 * to *clipped.  wide, again, nonfinite and clipped may be NULL.  Launches and
 * does not wait. */
int kv_gpu_round_f16(const float *x, size_t n, uint16_t *half, float *wide,
                     float *again, unsigned *nonfinite, unsigned *clipped,
                     struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
