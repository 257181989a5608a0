/* The search of trellis.h compiled for one instruction set; only for
 * kernels/trellis.
 *
 * Positions (kv_trellis_count()) are rounded to nearest.  With d the distance
 * of a value from a number, clamped to 16 bits, the value costs
 *
 *   (d^2 + 2^14) >> 15                           without shift and slope, else
 *   ((near^2 + 2^14) >> 15) + (more >> slope)
 *
 * near = min(|d|, FAR >> shift) << shift, more = |d| - min(|d|, FAR >> shift).
 * So KV_TRELLIS_NEAR costs 4, and if all numbers are far away, slope still
 * prefers the nearest.  A transition costs
 *
 *   8 min(sum over its values, KV_TRELLIS_TRANSITION_COST)
 *
 * and the path before it at most KV_TRELLIS_MAX_COST, so the sum fits 16 bits.
 *
 * The low three bits of a cost are the path's mark, which says where the path
 * came from.  States that the next transition treats alike (struct
 * kv_trellis_job) have the same last bits; the mark is the first three bits of
 * the state (or all bits that differ, if fewer).  So a marked cost is less than
 * another if the path is better, or equally good and its state comes first. */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis/trellis.h"

enum {
    KV_TRELLIS_AT_ONCE = 16,                /* maximum bitstreams of one call */
    KV_TRELLIS_ROW = KV_TRELLIS_STATES / 2, /* maximum groups of a bitstream */
    KV_TRELLIS_MARK = 7,
    KV_TRELLIS_MARKS = 32, /* bytes of all paths' marks, if next <= 3 */
    KV_TRELLIS_MAX_COST = 0x7ff8, /* maximum cost of a path, clamped */
    KV_TRELLIS_SUBTRACT =
        8, /* transitions after which the minimum is subtracted,
            * so that a few far values do not clamp all */
    KV_TRELLIS_NEAR = 362,
    KV_TRELLIS_TRANSITION_COST = 4095, /* clamped */
    KV_TRELLIS_NO_SLOPE = 16
};

/* A transition of `values` values costs 3/4 of the maximum by near distances
 * and 1/4 by slope. */
#define KV_TRELLIS_FAR(values) \
    ((values) == 1 ? 10031 : (values) == 2 ? 7093 : (values) == 3 ? 5791 : 5015)

/* The nearest whole number, for |x| up to 2^15; ties to even. */
static inline int kv_trellis_nearest(float x)
{
    const float big = 0x1.8p23f;

    return (int)(x + big - big);
}

/* The number of bits of a mark if a transition of `next` bits follows. */
static inline unsigned kv_trellis_marked(unsigned next)
{
    return next < 3 ? next : 3;
}

/* The number of paths that a note holds if a transition of `next` bits follows:
 * the best one for each value of a state's other bits. */
static inline size_t kv_trellis_paths(unsigned next)
{
    return (size_t)KV_TRELLIS_STATES >> kv_trellis_marked(next);
}

/* The bytes of a note.  If next <= 3, a group has one path, and the note holds
 * all paths' marks: path p's mark begins at bit next * (p / 32) of byte p % 32.
 * Otherwise the note holds each path's cost and mark, 16 bits. */
static inline size_t kv_trellis_note(unsigned next)
{
    const size_t costs = kv_trellis_paths(next) * sizeof(uint16_t);

    return next <= 3 ? (size_t)KV_TRELLIS_MARKS : costs;
}

/* One transition of n bitstreams, 1 <= n <= KV_TRELLIS_AT_ONCE.  The best path
 * to state s costs from[s >> bits] plus the cost of its values.  The next
 * transition, of `next` bits, goes on from the groups of states r, r + (STATES
 * >> next), ..; after the last transition next is KV_TRELLIS_BITS, and all
 * states are one group. */
struct kv_trellis_job {
    const struct kv_trellis_transition *transition;
    const struct kv_trellis_whole *whole; /* [values] */
    unsigned next;
    size_t n;
    const int16_t *x; /* [values][KV_TRELLIS_AT_ONCE] positions */
    /* A cost contains as many bits of its state's mark as the bits before the
     * transition determine.  mark: those of costs in `to`. */
    const uint16_t *from; /* [n][KV_TRELLIS_ROW] */
    uint16_t *to;         /* [n][KV_TRELLIS_ROW]: min of each group, clamped */
    const uint16_t *mark; /* [STATES >> next] */
    uint8_t *note;        /* [n][kv_trellis_note(next)] */
};

struct kv_trellis_ops {
    void (*advance)(const struct kv_trellis_job *job);
    /* Subtracts the minimum from n costs, keeping marks; n is a power of
     * two. */
    void (*subtract_min)(uint16_t *cost, size_t n);
};

extern const struct kv_trellis_ops kv_trellis_ops_c;
extern const struct kv_trellis_ops kv_trellis_ops_avx2; /* x86-64 only */
extern const struct kv_trellis_ops kv_trellis_ops_avx512;

#endif
