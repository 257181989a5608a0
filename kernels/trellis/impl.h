/* The search of trellis.h as compiled for one instruction set; for
 * kernels/trellis alone.
 *
 * Positions (kv_trellis_count()) are rounded to nearest.  With d the distance
 * of a value from a number, clamped to 16 bits, the value costs
 *
 *   (d^2 + 2^14) >> 15                           without shift and slope, else
 *   ((near^2 + 2^14) >> 15) + (more >> slope)
 *
 * near = min(|d|, FAR >> shift) << shift, more = |d| - min(|d|, FAR >> shift).
 * So KV_TRELLIS_NEAR costs 4, and where all numbers are far, because neighbours
 * are, slope still prefers the nearest.  A transition costs
 *
 *   8 min(sum over its values, KV_TRELLIS_TRANSITION_COST)
 *
 * and a path up to it KV_TRELLIS_MAX_COST at most: the sum has 16 bits.
 *
 * The low three bits say where a path came from.  States from which the next
 * transition goes on alike (struct kv_trellis_job) have the same last bits: a
 * cost with the first three bits of its state below it (or all that differ, if
 * fewer) is less than another if the path is better, or as good and its state
 * comes first.  These bits are the path's mark. */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis/trellis.h"

enum {
    KV_TRELLIS_AT_ONCE = 16,                /* max bitstreams of one call */
    KV_TRELLIS_ROW = KV_TRELLIS_STATES / 2, /* max groups of a bitstream */
    KV_TRELLIS_MARK = 7,
    KV_TRELLIS_MARKS = 32, /* bytes of all paths' marks, where next <= 3 */
    KV_TRELLIS_MAX_COST = 0x7ff8, /* of a path, clamped */
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

/* Bits of a mark where a transition of `next` bits follows. */
static inline unsigned kv_trellis_marked(unsigned next)
{
    return next < 3 ? next : 3;
}

/* Paths that are noted then: the best with each of a state's other bits. */
static inline size_t kv_trellis_paths(unsigned next)
{
    return (size_t)KV_TRELLIS_STATES >> kv_trellis_marked(next);
}

/* Bytes of a note.  Where next <= 3 a group has one path, and the note the
 * marks of all: path p's are bits next * (p / 32) on of byte p % 32.  Else it
 * is each path's cost and mark, 16 bits. */
static inline size_t kv_trellis_note(unsigned next)
{
    const size_t costs = kv_trellis_paths(next) * sizeof(uint16_t);

    return next <= 3 ? (size_t)KV_TRELLIS_MARKS : costs;
}

/* One transition of n bitstreams, 1 <= n <= KV_TRELLIS_AT_ONCE.  The best path
 * to state s costs from[s >> bits] + what its values do.  The next transition,
 * of `next` bits, goes on from the groups of states r, r + (STATES >> next),
 * ..; after the last transition next is KV_TRELLIS_BITS, and all states are one
 * group. */
struct kv_trellis_job {
    const struct kv_trellis_transition *transition;
    const struct kv_trellis_whole *whole; /* [values] */
    unsigned next;
    size_t n;
    const int16_t *x; /* [values][KV_TRELLIS_AT_ONCE] positions */
    /* A cost has below it as much of the marks of its states as the bits before
     * the transition tell.  mark: what costs of `to` have. */
    const uint16_t *from; /* [n][KV_TRELLIS_ROW] */
    uint16_t *to;         /* [n][KV_TRELLIS_ROW]: min of each group, clamped */
    const uint16_t *mark; /* [STATES >> next] */
    uint8_t *note;        /* [n][kv_trellis_note(next)] */
};

struct kv_trellis_ops {
    void (*advance)(const struct kv_trellis_job *job);
    /* The minimum of n costs becomes 0, marks stay; n a power of two. */
    void (*subtract_min)(uint16_t *cost, size_t n);
};

extern const struct kv_trellis_ops kv_trellis_ops_c;
extern const struct kv_trellis_ops kv_trellis_ops_avx2; /* x86-64 only */
extern const struct kv_trellis_ops kv_trellis_ops_avx512;

#endif
