/* The search of trellis.h, LANES states side by side, each lane as in c.c.
 * Included by avx2.c and avx512.c after kernels/simd/<level>.h; they define
 *
 *   LANE_BITS              LANES = 1 << LANE_BITS, 16-bit integers of a vi32
 *   positions(p, by)       p [LANES] floats times by, to nearest
 *   add_costs(v, p, bits)  v + p[i % (LANES >> bits)] in lane i, no carry
 *   flip(v, by)            lane i is v's lane i ^ by
 *   permute(v, bits, by)   lane i is v's lane (i rotated right by bits) ^ by
 *   store_marks(p, v)      bytes of v [32 / LANES] to p [32]
 *
 * where bits and by are constants. */
#include "kernels/trellis/impl.h"

#include <stdbool.h>
#include <stdlib.h>

enum {
    LANES = 1 << LANE_BITS,
    STATES = KV_TRELLIS_STATES,
    VECTORS = STATES / LANES,
    VECTOR_BITS = KV_TRELLIS_BITS - LANE_BITS,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    ROW = KV_TRELLIS_ROW,
    MARK = KV_TRELLIS_MARK
};

/* How the states of a table share their numbers. */
enum form {
    OWN,    /* no known sharing */
    NARROW, /* kv_trellis_map()'s, up to KV_TRELLIS_NARROW bits, */
    PAIRS,  /* but of 4 bits for several values */
    WIDE    /* above */
};

/* A kind of transition, whose members are constants when inlined.  bits:
 * LANE_BITS also represents larger numbers if they make no difference. */
struct kind {
    unsigned bits;
    size_t values;
    enum form form;
};

/* The kinds that have code. */
#define SEVERAL_VALUES(X, bits) \
    X(bits, 1, NARROW) X(bits, 2, NARROW) X(bits, 3, NARROW) X(bits, 4, NARROW)
#define KINDS_OF_BOTH(X) \
    SEVERAL_VALUES(X, 1) \
    SEVERAL_VALUES(X, 2) \
    SEVERAL_VALUES(X, 3) \
    X(4, 1, NARROW)      \
    X(4, 2, PAIRS) X(1, 1, OWN) X(2, 1, OWN) X(3, 1, OWN) X(4, 1, OWN)
#if LANE_BITS == 5
#define KINDS(X) KINDS_OF_BOTH(X) X(5, 1, NARROW) X(5, 1, WIDE) X(5, 1, OWN)
#else
#define KINDS(X) KINDS_OF_BOTH(X) X(4, 1, WIDE)
#endif
#define KIND(bits, values, form) (((bits)*8 + (values)) * 4 + (form))

static struct kind kind_of(const struct kv_trellis_transition *transition)
{
    const enum form folded = transition->bits > KV_TRELLIS_NARROW ? WIDE
                             : transition->bits > 3 && transition->values > 1
                                 ? PAIRS
                                 : NARROW;

    return (struct kind){transition->bits < LANE_BITS ? transition->bits
                                                      : LANE_BITS,
                         transition->values, transition->folded ? folded : OWN};
}

/* ---- what numbers cost ------------------------------------------------- */

/* Lane i of a vector holds the state whose last LANE_BITS bits are i rotated
 * left by `bits` (by LANE_BITS: not rotated).  Then the LANES >> bits costs of
 * its states' predecessors repeat in the order in which they lie in memory.
 *
 * A folded table (kv_trellis_map()) has the entries of the states without bits
 * 6 and 7; WIDE: without bit 7.  Setting bit 7 of a state flips bit 8 and a few
 * of the last bits of its entry; setting bit 6 flips other last bits.  So a few
 * vectors of costs, with lanes flipped, serve all states.  For bit 7 the sums
 * with the costs before are flipped instead, after their minimum is taken: the
 * flipped bits are the transition's own. */
ALWAYS_INLINE size_t vectors_of(enum form form)
{
    return form == OWN ? VECTORS : (form == WIDE ? 256 : 128) / LANES;
}

/* The first state in base vector h. */
ALWAYS_INLINE size_t state_of(enum form form, size_t h)
{
    const size_t half = vectors_of(form) / 2;

    return form == OWN ? h * LANES : h % half * LANES + h / half * 256;
}

/* The bit of a lane's index that holds state bit `bit`. */
ALWAYS_INLINE size_t lane_bit(unsigned bits, unsigned bit)
{
    return (size_t)1 << (bit + LANE_BITS - bits) % LANE_BITS;
}

ALWAYS_INLINE bool bit_of(size_t k, unsigned bit)
{
    return k * LANES >> bit & 1;
}

/* The last bits that a state's bit 6 or 7 flips. */
ALWAYS_INLINE unsigned flips_of(enum form form, unsigned bit)
{
    switch (form) {
    case NARROW:
        return bit == 6 ? 0x18 : 1;
    case PAIRS:
        return bit == 6 ? 6 : 0xb;
    case WIDE:
        return bit == 6 ? 0 : 2;
    default:
        return 0;
    }
}

/* How lanes are flipped if bit 7 is set, or bit 6. */
ALWAYS_INLINE size_t lane_flip(struct kind kind, unsigned bit)
{
    size_t by = 0;

    UNROLL
    for (unsigned i = 0; i < LANE_BITS; i++)
        if (flips_of(kind.form, bit) >> i & 1)
            by |= lane_bit(kind.bits, i);
    return by;
}

/* The base vector with the costs of vector k's states. */
ALWAYS_INLINE size_t base_of(enum form form, size_t k)
{
    const size_t high = bit_of(k, 7) != bit_of(k, 8);
    const size_t half = vectors_of(form) / 2;

    if (form == OWN)
        return k;
    if (LANE_BITS == 4 && flips_of(form, 6) >> 4 && bit_of(k, 6))
        k ^= 1; /* bit 4 */
    return k % half + high * half;
}

/* The numbers of base vectors, as positions in the order of lanes. */
ALWAYS_INLINE void load_numbers(const struct kv_trellis_job *job,
                                struct kind kind, vi32 (*number)[VECTORS])
{
    UNROLL
    for (size_t v = 0; v < kind.values; v++) {
        UNROLL
        for (size_t h = 0; h < vectors_of(kind.form); h++) {
            const vi32 x = positions(job->transition->table + v * STATES +
                                         state_of(kind.form, h),
                                     job->whole[v].number);

            number[v][h] = permute(x, (LANE_BITS - kind.bits) % LANE_BITS, 0);
        }
    }
}

/* The cost of a distance.  near: shift and slope have no effect; a constant. */
ALWAYS_INLINE vi32 cost_of(vi32 d, size_t values, bool near,
                           const struct kv_trellis_whole *whole)
{
    const vi32 far =
        v_set1_i16((int16_t)(KV_TRELLIS_FAR(values) >> whole->shift));
    const vi32 size = v_abs_i16(d), low = v_min_u16(size, far);

    if (near)
        return v_mulhrs_i16(d, d);
    d = v_shl_i16(low, whole->shift);
    return v_add_i16(v_mulhrs_i16(d, d),
                     v_shr_i16(v_sub_i16(size, low), whole->slope));
}

/* The costs of the numbers for bitstream i. */
ALWAYS_INLINE void value_costs(const struct kv_trellis_job *job,
                               struct kind kind, bool near,
                               vi32 (*number)[VECTORS], size_t i, vi32 *cost)
{
    UNROLL
    for (size_t v = 0; v < kind.values; v++) {
        const vi32 x = v_set1_i16((short)job->x[v * AT_ONCE + i]);

        UNROLL
        for (size_t h = 0; h < vectors_of(kind.form); h++) {
            const vi32 c = cost_of(v_subs_i16(x, number[v][h]), kind.values,
                                   near, job->whole);

            cost[h] = v ? v_adds_u16(cost[h], c) : c;
        }
    }
    UNROLL
    for (size_t h = 0; h < vectors_of(kind.form); h++)
        cost[h] = v_shl_i16(
            v_min_u16(cost[h], v_set1_i16((short)KV_TRELLIS_TRANSITION_COST)),
            3);
}

/* ---- the least --------------------------------------------------------- */

/* The costs of one bitstream's transition; base: costs of base vectors' numbers
 * without bit 6, and with it. */
struct costs {
    vi32 base[2][VECTORS];
    const uint16_t *before; /* costs of the states before */
    unsigned bits;          /* bits of the transition */
    unsigned own; /* bits of a mark that the transition determines */
};

/* marked: bits of a mark. */
ALWAYS_INLINE vi32 cost_at(const struct costs *c, struct kind kind, bool own,
                           unsigned marked, size_t k)
{
    const vi32 cost = add_costs(c->base[bit_of(k, 6)][base_of(kind.form, k)],
                                c->before + (k * LANES >> c->bits), kind.bits);
    const size_t mark = k * LANES >> (KV_TRELLIS_BITS - marked);

    return own ? v_add_i16(cost, v_set1_i16((int16_t)(mark & c->own))) : cost;
}

/* The minimum over vectors g, g + apart, .., in the order of states. */
ALWAYS_INLINE vi32 min_of(const struct costs *c, struct kind kind, bool own,
                          unsigned marked, size_t g)
{
    const size_t apart = VECTORS >> marked, seventh = 128 / LANES;
    const size_t by = lane_flip(kind, 7);
    const bool both = by && apart <= seventh; /* with bit 7, and without */
    vi32 best[2];

    UNROLL
    for (size_t k = g; k < VECTORS; k += apart) {
        const vi32 cost = cost_at(c, kind, own, marked, k);
        const size_t which = both && bit_of(k, 7);

        best[which] = k == g || (both && k == g + seventh)
                          ? cost
                          : v_min_u16(best[which], cost);
    }
    if (both)
        *best = v_min_u16(*best, flip(best[1], by));
    return permute(*best, kind.bits % LANE_BITS,
                   !both && bit_of(g, 7) ? by : 0);
}

/* A cost in the form that the next transition reads. */
ALWAYS_INLINE vi32 marked_again(vi32 cost, const uint16_t *mark)
{
    cost = v_min_u16(cost, v_set1_i16((short)KV_TRELLIS_MAX_COST | MARK));
    return v_or(v_and(cost, v_set1_i16((short)~MARK)), v_load_i32(mark));
}

/* Joins the lanes of groups that have several paths, over all vectors.  Lanes
 * past the groups have copies of their costs, with arbitrary marks. */
ALWAYS_INLINE void join(vi32 *best, size_t n, size_t groups,
                        const uint16_t *mark, uint16_t *to)
{
    UNROLL
    for (size_t half = n / 2; half; half /= 2)
        if (half * LANES >= groups)
            for (size_t g = 0; g < half; g++)
                best[g] = v_min_u16(best[g], best[g + half]);
    UNROLL
    for (size_t by = LANES / 2; by; by /= 2)
        if (by >= groups)
            *best = v_min_u16(*best, flip(*best, by));
    UNROLL
    for (size_t g = 0; g < n / 2; g++)
        if (!g || g * LANES < groups)
            v_store_i32(to + g * LANES,
                        marked_again(best[g], mark + g * LANES));
}

/* own, marked: constants.  If next is at most 3, marks alone distinguish a
 * group's states. */
ALWAYS_INLINE void keep_min(const struct kv_trellis_job *job,
                            const struct costs *c, struct kind kind, bool own,
                            unsigned marked, size_t i)
{
    const size_t apart = VECTORS >> marked;
    uint16_t *const to = job->to + i * ROW;
    uint8_t *const note = job->note + i * kv_trellis_note(job->next);
    vi32 best[VECTORS / 2], marks[32 / LANES] = {v_set1_i16(0)};

    UNROLL
    for (size_t g = 0; g < apart; g++)
        best[g] = min_of(c, kind, own, marked, g);
    if (marked == 3 && job->next > 3) {
        UNROLL
        for (size_t g = 0; g < apart; g++)
            v_store_i32(note + g * sizeof(vi32), best[g]);
        join(best, apart, (size_t)STATES >> job->next, job->mark, to);
        return;
    }
    UNROLL
    for (size_t g = apart; g-- > 0;) {
        v_store_i32(to + g * LANES,
                    marked_again(best[g], job->mark + g * LANES));
        marks[g % (32 / LANES)] =
            v_or(v_shl_i16(marks[g % (32 / LANES)], marked),
                 v_and(best[g], v_set1_i16((1 << marked) - 1)));
    }
    store_marks(note, marks);
}

/* ---- a transition
 * ------------------------------------------------------------ */

/* own, marked: constants. */
ALWAYS_INLINE void advance_bitstreams(const struct kv_trellis_job *job,
                                      struct kind kind, bool near, bool own,
                                      unsigned marked, vi32 (*number)[VECTORS])
{
    const size_t by = lane_flip(kind, 6);

    for (size_t i = 0; i < job->n; i++) {
        struct costs c = {
            .before = job->from + i * ROW,
            .bits = kind.bits < LANE_BITS ? kind.bits : job->transition->bits};

        if (own)
            c.own = (1u << (c.bits + marked - KV_TRELLIS_BITS)) - 1;
        value_costs(job, kind, near, number, i, c.base[0]);
        UNROLL
        for (size_t h = 0; h < vectors_of(kind.form); h++)
            c.base[1][h] = by ? flip(c.base[0][h], by) : c.base[0][h];
        keep_min(job, &c, kind, own, marked, i);
    }
}

/* There is a loop for each kind of marks, because with branches in one loop,
 * compilers load the operands that the branches share early and broadcast them
 * separately. */
ALWAYS_INLINE void advance_marked(const struct kv_trellis_job *job,
                                  struct kind kind, bool near,
                                  vi32 (*number)[VECTORS])
{
    const unsigned marked = kv_trellis_marked(job->next);
    const bool own = kind.bits == LANE_BITS &&
                     job->transition->bits + marked > KV_TRELLIS_BITS;

    if (own && marked == 3)
        advance_bitstreams(job, kind, near, true, 3, number);
    else if (own)
        advance_bitstreams(job, kind, near, true, 2, number);
    else if (marked == 1)
        advance_bitstreams(job, kind, near, false, 1, number);
    else if (marked == 2)
        advance_bitstreams(job, kind, near, false, 2, number);
    else
        advance_bitstreams(job, kind, near, false, 3, number);
}

ALWAYS_INLINE void advance_kind(const struct kv_trellis_job *job,
                                struct kind kind)
{
    vi32 number[KV_TRELLIS_MAX_VALUES][VECTORS];

    load_numbers(job, kind, number);
    if (!job->whole->shift && job->whole->slope == KV_TRELLIS_NO_SLOPE)
        advance_marked(job, kind, true, number);
    else
        advance_marked(job, kind, false, number);
}

static void advance(const struct kv_trellis_job *job)
{
    const struct kind kind = kind_of(job->transition);

    switch (KIND(kind.bits, kind.values, kind.form)) {
#define CASE(B, V, F)                              \
    case KIND(B, V, F):                            \
        advance_kind(job, (struct kind){B, V, F}); \
        break;
        KINDS(CASE)
#undef CASE
    default: /* several values, and more than 3 bits or numbers of their own */
        abort();
    }
}

static void subtract_min(uint16_t *cost, size_t n)
{
    vi32 best = v_load_i32(cost);

    for (size_t r = LANES; r < n; r += LANES)
        best = v_min_u16(best, v_load_i32(cost + r));
    UNROLL
    for (size_t by = 1; by < LANES; by *= 2)
        best = v_min_u16(best, flip(best, by));
    best = v_and(best, v_set1_i16((short)~MARK));
    for (size_t r = 0; r < n; r += LANES)
        v_store_i32(cost + r, v_sub_i16(v_load_i32(cost + r), best));
}

const struct kv_trellis_ops NAME(kv_trellis_ops) = {advance, subtract_min};
