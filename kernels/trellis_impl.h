/* The search of trellis.h as compiled for one instruction set; for trellis*.c
 * and the device's alone.
 *
 * Positions (kv_trellis_count()) are rounded to nearest.  A value costs, of its
 * distance d from a number, held to 16 bits,
 *
 *   (d^2 + 2^14) >> 15                           where shift is 0, else
 *   ((near^2 + 2^14) >> 15) + (more >> slope)
 *
 * with |d| split into min(|d|, FAR >> shift), which shifted left is near, and
 * more.  So KV_TRELLIS_NEAR costs 16; and where all numbers may be far, because
 * neighbours are, slope lets the nearest cost the least.  All values of a step
 * cost 2^15 together at most, those before it the most: no more than 16 bits.
 */
#ifndef KV_TRELLIS_IMPL_H
#define KV_TRELLIS_IMPL_H

#include "kernels/trellis.h"

enum {
    KV_TRELLIS_AT_ONCE = 16,                /* strings at most, of one call */
    KV_TRELLIS_ROW = KV_TRELLIS_STATES / 2, /* costs of a string: most groups */
    KV_TRELLIS_NOTE = KV_TRELLIS_STATES / 32, /* words of a step */
    KV_TRELLIS_MOST_COST = 0x7fff, /* of a path, and more is as much */
    KV_TRELLIS_SETTLE = 8, /* after so many steps the least cost becomes 0: few
                            * values that are far do not take it to the most */
    KV_TRELLIS_NEAR = 724,
    KV_TRELLIS_NO_SLOPE = 16
};

/* Of steps of so many values, which cost three quarters of 2^15 by what is not
 * far and a quarter by slope. */
#define KV_TRELLIS_FAR(values) \
    ((values) == 1   ? 28377   \
     : (values) == 2 ? 20066   \
     : (values) == 3 ? 16384   \
                     : 14188)

/* Of sizes up to 2^15; ties to even. */
static inline int kv_trellis_nearest(float x)
{
    const float big = 0x1.8p23f;

    return (int)(x + big - big);
}

/* Which bits of an entry, without its last, a state's bit flips. */
static inline unsigned kv_trellis_flips(const struct kv_trellis_map *map,
                                        unsigned bit)
{
    unsigned flips = 0;

    for (unsigned i = 0; i + 1 < map->bits; i++)
        flips |= (unsigned)(map->of[i] >> bit & 1) << i;
    return flips;
}

/* One step of n strings, 1 <= n <= KV_TRELLIS_AT_ONCE.  The best path to state
 * s costs least[s >> bits] + what its values do.  The next step, of `next`
 * bits, goes on from the groups of states r, r + (STATES >> next), ..; after
 * the last step next is KV_TRELLIS_BITS, and all states are one group. */
struct kv_trellis_job {
    const struct kv_trellis_step *step;
    const struct kv_trellis_whole *whole; /* [values] */
    unsigned next;
    size_t n;
    const int16_t *x;      /* [values][KV_TRELLIS_AT_ONCE] positions */
    const uint16_t *least; /* [n][KV_TRELLIS_ROW] */
    uint16_t *to;   /* [n][KV_TRELLIS_ROW]: of each group, the most at most */
    uint32_t *note; /* [n][KV_TRELLIS_NOTE]: a bit for each state, set for those
                     * that cost their group's least (before it is held to the
                     * most); of a group's last state it may be anything */
};

/* Where states stand in the notes of steps of a kind.  Word s / 32 has the bit
 * of state s; which bit depends on the last five bits of s and on bit 7 of s:
 * bit[s % 32][s >> 7 & 1], a mask.  The next step goes on from `groups` groups;
 * group[r % 32]: the bits of a group in a word, by bit 7 too. */
struct kv_trellis_order {
    unsigned bits, values, groups; /* of the step, after it */
    bool folded;
    uint32_t bit[32][2], group[32][2];
};

struct kv_trellis_search {
    void (*advance)(const struct kv_trellis_job *job);
    /* The least of the costs of n groups becomes 0. */
    void (*settle)(uint16_t *cost, size_t n);
    /* The way back by a step of n strings: state[i] of group after[i] /
     * (STATES / groups) the first state with a bit in its note. */
    void (*go_back)(const struct kv_trellis_order *order, size_t n,
                    const uint32_t *note, const uint16_t *after,
                    uint16_t *state);
    /* The last lane_bits bits of a state say where in a word its bit is: turned
     * right by the step's bits, if these are fewer, and before that, of a
     * folded table, where bit 7 is set, XORed with what gives the same entry
     * without it.  Of 16 lanes, two times in a word, eights come by turns. */
    unsigned lane_bits;
};

extern const struct kv_trellis_search kv_trellis_search_c;
extern const struct kv_trellis_search kv_trellis_search_avx2; /* x86-64 only */
extern const struct kv_trellis_search kv_trellis_search_avx512;

#endif
