/* The way back by one transition of trellis_impl.h, the same at every level.
 * Included by their files, which define LANE_BITS and the type mark_word: a
 * note has path p's mark in bits marked * (p >> LANE_BITS) on of word p %
 * LANES. */
#ifndef KV_TRELLIS_BACK_H
#define KV_TRELLIS_BACK_H

#include "kernels/simd/unroll.h"
#include "kernels/trellis/impl.h"

#include <limits.h>
#include <string.h>

/* Of the best path to group r of states that a transition of `next` bits goes
 * on from alike, the last state: where the note has marks alone. */
ALWAYS_INLINE unsigned state_marked(const mark_word *word, unsigned next,
                                    unsigned r)
{
    const unsigned mark =
        (unsigned)word[r % (1u << LANE_BITS)] >> next * (r >> LANE_BITS);

    return (mark % (1u << next)) << (KV_TRELLIS_BITS - next) | r;
}

/* Where it has costs too, of several paths to the group. */
ALWAYS_INLINE unsigned state_of_best(const uint16_t *cost, unsigned next,
                                     unsigned r)
{
    const unsigned paths = (unsigned)kv_trellis_paths(next);
    unsigned best = UINT_MAX; /* a cost, and whose: no branch to predict */

    for (unsigned p = r; p < paths; p += KV_TRELLIS_STATES >> next) {
        const unsigned path = (unsigned)cost[p] * KV_TRELLIS_STATES + p;

        best = path < best ? path : best;
    }
    return (best / KV_TRELLIS_STATES & KV_TRELLIS_MARK) * paths +
           best % KV_TRELLIS_STATES;
}

/* The same of many: first the least cost, of eight rows side by side, then
 * whose it is. */
static unsigned state_of_many(const uint16_t *cost, unsigned next, unsigned r)
{
    enum { PATHS = 64, ROWS = 8, WIDE = PATHS / ROWS };
    const unsigned groups = KV_TRELLIS_STATES >> next;
    uint16_t least[WIDE];
    unsigned best, p = r;

    memcpy(least, cost, sizeof(least));
    for (unsigned row = 1; row < ROWS; row++)
        for (unsigned i = 0; i < WIDE; i++) {
            const uint16_t c = cost[row * WIDE + i];

            least[i] = c < least[i] ? c : least[i];
        }
    best = least[r];
    for (unsigned i = r + groups; i < WIDE; i += groups)
        best = least[i] < best ? least[i] : best;
    while (cost[p] != best)
        p += groups;
    return (best & KV_TRELLIS_MARK) * PATHS + p;
}

static void go_back(unsigned next, size_t n, const uint8_t *note,
                    const uint16_t *after, uint16_t *state)
{
    switch (next) {
#define CASE(NEXT, FIND)                                                \
    case NEXT:                                                          \
        for (size_t i = 0; i < n; i++)                                  \
            state[i] = (uint16_t)FIND(                                  \
                (const void *)(note + i * kv_trellis_note(next)), next, \
                after[i] >> next);                                      \
        break;
        CASE(1, state_marked)
        CASE(2, state_marked)
        CASE(3, state_marked)
        CASE(4, state_of_best)
        CASE(5, state_of_best)
        CASE(6, state_of_many)
        CASE(7, state_of_many)
        CASE(8, state_of_many)
        CASE(9, state_of_many)
#undef CASE
    }
}

#endif
