/* The search of trellis.h as compiled for one instruction set; for trellis*.c
 * alone. */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis.h"

enum {
    KV_TRELLIS_TOGETHER = 4, /* strings searched side by side */
    /* Of a row of `least`: the states of a step of one bit fall into half as
     * many groups; a vector may be read from the last on. */
    KV_TRELLIS_ROW = KV_TRELLIS_STATES / 2 + 16,
    KV_TRELLIS_WORDS = KV_TRELLIS_STATES / 64 /* of a bit for each state */
};

/* One step of n strings, 1 <= n <= KV_TRELLIS_TOGETHER.  The least cost of a
 * path to state s is, in f32 and in this order,
 *
 *   least[s >> bits] + ((x0 - scale0 t0[s])^2 + (x1 - scale1 t1[s])^2 + ...)
 *
 * and what goes to the next step, of `next` bits, is the least of each group of
 * states r, r + (STATES >> next), ...  Which one it was is told by a bit for
 * each state: it is the last of its group that is set, or the first state where
 * none is.
 *
 * x: string i's values of this step stand at x + i * x_stride; scale: [values];
 * least, to: [n][KV_TRELLIS_ROW], of which STATES >> bits are given and STATES
 * >> next set; bit: [n][KV_TRELLIS_WORDS], low bit first. */
typedef void kv_trellis_advance(const struct kv_trellis_step *step,
                                unsigned next, size_t n, const float *x,
                                size_t x_stride, const float *scale,
                                const float *least, float *to, uint64_t *bit);

/* Of each word, those states that are r modulo groups (< 64). */
static inline uint64_t kv_trellis_group(size_t r, size_t groups)
{
    return UINT64_MAX / (((uint64_t)1 << groups) - 1) << r;
}

/* The last state of group r that is set, or r. */
static inline size_t kv_trellis_last(const uint64_t *bit, size_t r,
                                     size_t groups)
{
    if (groups < 64) {
        const uint64_t mask = kv_trellis_group(r, groups);

        for (size_t i = KV_TRELLIS_WORDS; i-- > 0;)
            if (bit[i] & mask)
                return i * 64 + 63 - (size_t)__builtin_clzll(bit[i] & mask);
        return r;
    }
    for (size_t s = KV_TRELLIS_STATES - groups + r; s > r; s -= groups)
        if (bit[s / 64] >> s % 64 & 1)
            return s;
    return r;
}

kv_trellis_advance kv_trellis_advance_c;
kv_trellis_advance kv_trellis_advance_avx2;   /* x86-64 only */
kv_trellis_advance kv_trellis_advance_avx512; /* x86-64 only */

#endif
