/* The way back by one step of trellis_impl.h, the same at every level.
 * Included by their files, which define
 *
 *   words_with(note, bits)   a bit for each word of a note that has one of
 *                            bits[0], or of bits[1] if states have bit 7 there
 */
#ifndef KV_TRELLIS_BACK_H
#define KV_TRELLIS_BACK_H

#include "kernels/trellis_impl.h"

/* The first of the states r, r + groups, .. whose bit is set, or the last.
 * every: the words that have a state of group 0; last: the last of them. */
static inline unsigned first_state(const struct kv_trellis_order *o,
                                   const uint32_t *note, unsigned every,
                                   unsigned last, unsigned r)
{
    const unsigned found = words_with(note, o->group[r % 32]) & every << r / 32;
    const unsigned k = (unsigned)__builtin_ctz(found | last << r / 32);
    unsigned s = 32 * k + r % 32;

    for (; o->groups < 32 && s % 32 + o->groups < 32; s += o->groups)
        if (note[k] & o->bit[s % 32][k >> 2 & 1])
            break;
    return s;
}

static void go_back(const struct kv_trellis_order *o, size_t n,
                    const uint32_t *note, const uint16_t *after,
                    uint16_t *state)
{
    const unsigned apart = o->groups < 32 ? 1 : o->groups / 32;
    const unsigned every = 0xffff / ((1u << apart) - 1);
    const unsigned shift =
        (unsigned)__builtin_ctz(KV_TRELLIS_STATES / o->groups);

    for (size_t i = 0; i < n; i++, note += KV_TRELLIS_NOTE)
        state[i] = (uint16_t)first_state(o, note, every, 0x10000u >> apart,
                                         (unsigned)after[i] >> shift);
}

#endif
