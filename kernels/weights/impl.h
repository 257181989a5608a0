/* The block decoders as compiled for one instruction set; for weights.c and the
 * tests alone. */
#ifndef KV_WEIGHTS_IMPL_H
#define KV_WEIGHTS_IMPL_H

#include "kernels/weights/weights.h"

#include <stdint.h>

/* Of each type that has blocks of more than one value: n blocks. */
struct kv_weight_decoders {
    void (*decode[KV_STORED_OTHER])(const uint8_t *block, size_t n, float *x);
};

extern const struct kv_weight_decoders kv_weight_decoders_c;
extern const struct kv_weight_decoders kv_weight_decoders_avx2,
    kv_weight_decoders_avx512; /* x86-64 only */

#endif
