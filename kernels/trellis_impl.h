/* The search of trellis.h as compiled for one instruction set; for trellis*.c
 * alone. */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis.h"

enum {
    KV_TRELLIS_AT_ONCE = 8,              /* strings at most, of one call */
    KV_TRELLIS_FEW = KV_TRELLIS_BITS - 4 /* bits that leave 16 groups */
};

/* Floats of a row of costs, one for each group of states that a step of so many
 * bits goes on from: whole cache lines. */
static inline size_t kv_trellis_row(unsigned bits)
{
    return KV_TRELLIS_STATES >> (bits < KV_TRELLIS_FEW ? bits : KV_TRELLIS_FEW);
}

/* One step of n strings, 1 <= n <= KV_TRELLIS_AT_ONCE.  The cost of the best
 * path to state s, in f32, is
 *
 *   least[s >> bits] + (x0 - scale0 t0[s])^2 + (x1 - scale1 t1[s])^2 + ...
 *
 * added up from the left; a difference and its product, a square and its sum
 * are rounded once.  The next step, of `next` bits, goes on from the groups of
 * states r, r + (STATES >> next), ...; after the last step next is
 * KV_TRELLIS_BITS, and all states are one group. */
struct kv_trellis_job {
    const struct kv_trellis_step *step;
    unsigned next;
    size_t n;
    const float *x; /* value v of string i: x[i * x_stride + place[v]] */
    size_t x_stride;
    const uint32_t *place; /* [values] */
    const float *scale;    /* [values] */
    const float *least;    /* [n][kv_trellis_row(bits)] */
    float *to;             /* [n][kv_trellis_row(next)] */
};

struct kv_trellis_search {
    /* to: the least cost in each group. */
    void (*advance)(const struct kv_trellis_job *job);
    /* The way back: state [n], of group after[i] >> next the first state whose
     * cost is what `to` has; any state where that is NaN, of numbers beyond
     * f32. */
    void (*go_back)(const struct kv_trellis_job *job, const uint16_t *after,
                    uint16_t *state);
};

extern const struct kv_trellis_search kv_trellis_search_c;
extern const struct kv_trellis_search kv_trellis_search_avx2; /* x86-64 only */
extern const struct kv_trellis_search kv_trellis_search_avx512;

#endif
