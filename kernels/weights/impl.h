/* The operations of weights.h compiled for one instruction set; only for
 * weights.c and the tests. */
#ifndef KV_WEIGHTS_IMPL_H
#define KV_WEIGHTS_IMPL_H

#include "kernels/weights/weights.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_weights_loops {
    /* NULL for plain floats, which kernels/vecops widens */
    void (*decode[KV_STORED_OTHER])(const uint8_t *blocks, size_t n, float *x);
    void (*times[KV_STORED_OTHER])(const uint8_t *w, size_t rows, size_t n,
                                   const float *x, float *y);
    /* Returns false for types that must be decoded first.  f32 is never
     * decoded, and its w is aligned. */
    bool (*many)(enum kv_stored type, const uint8_t *w, size_t rows, size_t n,
                 const float *x, size_t m, float *y, size_t y_row);
};

extern const struct kv_weights_loops kv_weights_c;
extern const struct kv_weights_loops kv_weights_avx2,
    kv_weights_avx512; /* x86-64 only */

extern const float kv_weights_codes[16]; /* 0 to 15 */
extern const float kv_weights_e2m1[16];  /* the values, doubled */

#endif
