/* Tokens as a cache holds them, on the device: rounded to halves. */
#ifndef KV_CUDA_ROUND_F16_H
#define KV_CUDA_ROUND_F16_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [n]: half [n], to the nearest and no further than the largest finite one;
 * and the same as floats in wide and again [n], but for NULL.  n is even;
 * where it is a multiple of 8 all arrays are 16-byte aligned.  Sets
 * *nonfinite, but for NULL, to 1 where x holds a NaN or an infinity, and adds
 * to *clipped, but for NULL, how many values are further than that half.
 * Launches and does not wait. */
int kv_gpu_round_f16(const float *x, size_t n, uint16_t *half, float *wide,
                     float *again, unsigned *nonfinite, unsigned *clipped,
                     struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
