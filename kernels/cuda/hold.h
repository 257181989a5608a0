/* Tokens as a cache holds them, on the device: rounded to halves. */
#ifndef KV_GPU_HOLD_H
#define KV_GPU_HOLD_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [n] (n even, all arrays 8-byte aligned): half [n], to the nearest and no
 * further than the largest finite one; and the same as floats in wide and, but
 * for NULL, in again [n].  Sets *strange to 1 where x holds a NaN or an
 * infinity.  Launches and does not wait. */
int kv_gpu_hold(const float *x, size_t n, uint16_t *half, float *wide,
                float *again, unsigned *strange, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
