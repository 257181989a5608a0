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
 * none is; that state's own bit is set or not.
 *
 * x: string i's values of this step stand at x + i * x_stride; scale: [values];
 * least, to: [n][KV_TRELLIS_ROW], of which STATES >> bits are given and STATES
 * >> next set; bit: [n][KV_TRELLIS_WORDS], low bit first. */
typedef void kv_trellis_advance(const struct kv_trellis_step *step,
                                unsigned next, size_t n, const float *x,
                                size_t x_stride, const float *scale,
                                const float *least, float *to, uint64_t *bit);

/* By so many bits there is a group for each bit of a word. */
enum { KV_TRELLIS_IN_WORD = KV_TRELLIS_BITS - 6 };

/* Of each word, the states whose groups by `next` >= IN_WORD bits are r. */
static inline uint64_t kv_trellis_group(size_t r, unsigned next)
{
    static const uint64_t every[] = {
        1,
        0x0000000100000001,
        0x0001000100010001,
        0x0101010101010101,
        0x1111111111111111,
        0x5555555555555555,
    };

    return every[next - KV_TRELLIS_IN_WORD] << r;
}
_Static_assert(KV_TRELLIS_MOST_BITS - KV_TRELLIS_IN_WORD <= 5,
               "every number of bits");

/* The last state of group r that is set, or r.  Which it is cannot be guessed:
 * no branch depends on it. */
static inline size_t kv_trellis_last(const uint64_t *bit, size_t r,
                                     unsigned next)
{
    const uint64_t first = (uint64_t)1 << r % 64;
    uint32_t words = 1; /* those with a state of the group set; the first */
    size_t word;

    if (next < KV_TRELLIS_IN_WORD) {
        size_t set = 1; /* a bit for each of the group */

        for (size_t i = 1; i < (size_t)1 << next; i++)
            set |=
                (bit[i << (KV_TRELLIS_IN_WORD - next) | r / 64] >> r % 64 & 1)
                << i;
        return (63 - (size_t)__builtin_clzll(set)) << (KV_TRELLIS_BITS - next) |
               r;
    }
    for (size_t i = 1; i < KV_TRELLIS_WORDS; i++)
        words |= (uint32_t)((bit[i] & kv_trellis_group(r, next)) != 0) << i;
    word = 31 - (size_t)__builtin_clz(words);
    return word * 64 + 63 -
           (size_t)__builtin_clzll((bit[word] & kv_trellis_group(r, next)) |
                                   (word ? 0 : first));
}

kv_trellis_advance kv_trellis_advance_c;
kv_trellis_advance kv_trellis_advance_avx2;   /* x86-64 only */
kv_trellis_advance kv_trellis_advance_avx512; /* x86-64 only */

#endif
