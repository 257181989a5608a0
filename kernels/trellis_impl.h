/* The search of trellis.h as compiled for one instruction set; for trellis*.c
 * and the tests alone. */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis.h"

/* cost: [KV_TRELLIS_STATES] of the best path to each state, before and after;
 * back: [KV_TRELLIS_STATES >> bits], which of the 2^bits predecessors the
 * best path to states r << bits .. came from (its high bits). */
typedef void kv_trellis_advance(const struct kv_trellis_step *step,
                                const float *x, const float *scale, float *cost,
                                uint8_t *back);

kv_trellis_advance kv_trellis_advance_c;
kv_trellis_advance kv_trellis_advance_avx2;   /* x86-64 only */
kv_trellis_advance kv_trellis_advance_avx512; /* x86-64 only */

#endif
