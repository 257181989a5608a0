/* The search of trellis.h as compiled for one instruction set; for trellis*.c
 * alone. */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis.h"

enum {
    KV_TRELLIS_AT_ONCE = 8, /* strings at most, of one call */
    /* Of a row of costs: the states of a step of one bit fall into half as many
     * groups; a vector may be read from the last on. */
    KV_TRELLIS_ROW = KV_TRELLIS_STATES / 2 + 16,
    KV_TRELLIS_FEW = KV_TRELLIS_BITS - 4 /* bits that leave 16 groups */
};

/* How a step went on from each group of states by `next` bits: which state of
 * the group, counted from 0, has the least cost. */
union kv_trellis_from {
    /* next < FEW: of groups 16 i to 16 i + 15, low bit first, for j >= 1
     * whether state j costs less than all before it: mask[i << next | j]
     * (mask[i << next] may hold anything) */
    uint16_t mask[KV_TRELLIS_STATES / 16];
    uint8_t which[16]; /* next >= FEW: of each group */
};

/* One step of n strings, 1 <= n <= KV_TRELLIS_AT_ONCE.  The least cost of a
 * path to state s, in f32, is
 *
 *   least[s >> bits] + (x0 - scale0 t0[s])^2 + (x1 - scale1 t1[s])^2 + ...
 *
 * added up from the left; a difference and its product, a square and its sum
 * are rounded once.  What goes to the next step, of `next` bits, is for each
 * group of states r, r + (STATES >> next), ... the least cost, and which state
 * has it, the first on ties.
 *
 * x: string i's values of this step stand at x + i * x_stride; scale: [values];
 * least, to: [n][KV_TRELLIS_ROW], of which STATES >> bits are given and STATES
 * >> next set; from: [n]. */
typedef void kv_trellis_advance(const struct kv_trellis_step *step,
                                unsigned next, size_t n, const float *x,
                                size_t x_stride, const float *scale,
                                const float *least, float *to,
                                union kv_trellis_from *from);

kv_trellis_advance kv_trellis_advance_c;
kv_trellis_advance kv_trellis_advance_avx2;   /* x86-64 only */
kv_trellis_advance kv_trellis_advance_avx512; /* x86-64 only */

#endif
