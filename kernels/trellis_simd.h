/* The search of trellis.h, LANES states side by side, each lane doing exactly
 * what the plain C does.  Included by trellis_avx2.c and trellis_avx512.c,
 * which name the registers:
 *
 *   LANE_BITS          LANES = 1 << LANE_BITS
 *   vf, vi             LANES floats, LANES 32-bit integers
 *   v_load v_store v_all v_min
 *   v_load_first(p, n) n lanes, the others 0
 *   v_fma(a, b, c) v_fnma(a, b, c)     c + a b, c - a b
 *   v_pick(v, at)      lane i is v's lane at[i] % LANES
 *   v_again(p, bits)   lane i is p[i % (LANES >> bits)]
 *   v_every(p, by, n)  lane i is p[i * by], i < n; n = 2, 4, 8 .. LANES; may
 *                      read to p + n * by
 *   v_equal(a, b)      a bit for each lane
 *   v_nearer(a, b)     that nearer 0, or its negative; where it is one
 *                      operation
 *   i_load i_shift(v, by, and)      right, then plus `and`
 *   NAME(f)            f with the level's suffix */
#include "kernels/trellis_impl.h"
#include "kernels/unroll.h"

#include <math.h>
#include <stdbool.h>

enum {
    LANES = 1 << LANE_BITS,
    BITS = KV_TRELLIS_BITS,
    STATES = KV_TRELLIS_STATES,
    TOGETHER = LANES / 2, /* strings: as many as registers hold */
    VALUES = KV_TRELLIS_MOST_VALUES,
    FEW = KV_TRELLIS_FEW
};

/* What its kind of step makes of a call; constants where they are inlined.
 * bits: FEW stands for more too, where they make no difference. */
struct kind {
    size_t n;
    unsigned bits;
    size_t values;
};

/* Those there is code for: several values of more than 3 bits are not. */
#define FEW_BITS(X, values) X(1, values) X(2, values) X(3, values)
#define SEVERAL_VALUES(X) FEW_BITS(X, 2) FEW_BITS(X, 3) FEW_BITS(X, 4)
#define KINDS(X) FEW_BITS(X, 1) X(4, 1) X(FEW, 1) SEVERAL_VALUES(X)
#define KIND(bits, values) ((bits) * (VALUES + 1) + (values))

static unsigned kind_of(const struct kv_trellis_step *step)
{
    return KIND(step->bits < FEW ? step->bits : FEW, step->values);
}

static bool has_kind(const struct kv_trellis_step *step)
{
    return step->values == 1 || step->bits < 4;
}

/* ---- forwards ---------------------------------------------------------- */

/* lane i: i turned left by b of its LANE_BITS bits. */
#define LANE(b, i) (((i) << (b) | (i) >> (LANE_BITS - (b))) % LANES)
#define FOUR(b, i) LANE(b, i), LANE(b, i + 1), LANE(b, i + 2), LANE(b, i + 3)
#define ROW(b)                                          \
    {                                                   \
        FOUR(b, 0), FOUR(b, 4), FOUR(b, 8), FOUR(b, 12) \
    }
static const int32_t turned_lanes[][16] = {ROW(0), ROW(1), ROW(2), ROW(3)};

/* What costs are made of: x and scale of each value in all lanes.  LANES states
 * have predecessors p, p + 1, .. that repeat 1 << bits times each; so that
 * they are loaded as they stand, over and over, lanes are in the order of the
 * turned table (kv_trellis_turn()), until `back` brings them back. */
struct terms {
    vf x[TOGETHER][VALUES], scale[VALUES];
    vi back;
};

ALWAYS_INLINE void set_terms(const struct kv_trellis_job *job, struct kind kind,
                             struct terms *t)
{
    if (kind.bits < LANE_BITS)
        t->back = i_load(turned_lanes[LANE_BITS - kind.bits]);
    UNROLL
    for (size_t v = 0; v < kind.values; v++) {
        t->scale[v] = v_all(job->scale[v]);
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            t->x[i][v] = v_all(job->x[i * job->x_stride + job->place[v]]);
    }
}

/* Value v of states [s, s + LANES), in the order of `terms`. */
ALWAYS_INLINE vf load_table(const struct kv_trellis_job *job, struct kind kind,
                            size_t s, size_t v)
{
    const size_t order = LANES == 16 ? 1 : 2; /* kv_trellis_turn() */

    if (kind.bits < LANE_BITS)
        return v_load(job->step->turned + (order * kind.values + v) * STATES +
                      s);
    return v_load(job->step->table + v * STATES + s);
}
_Static_assert(LANES == 16 || LANES == 8, "orders of a table");

/* Of states [s, s + LANES), for each string. */
ALWAYS_INLINE void costs(const struct kv_trellis_job *job, struct kind kind,
                         const struct terms *t, size_t s, vf *cost)
{
    vf table[VALUES];

    UNROLL
    for (size_t v = 0; v < kind.values; v++)
        table[v] = load_table(job, kind, s, v);
    UNROLL
    for (size_t i = 0; i < kind.n; i++) {
        const unsigned bits = kind.bits < FEW ? kind.bits : job->step->bits;

        cost[i] =
            v_again(job->least + i * kv_trellis_row(kind.bits) + (s >> bits),
                    kind.bits);
        UNROLL
        for (size_t v = 0; v < kind.values; v++) {
            const vf d = v_fnma(t->scale[v], table[v], t->x[i][v]);

            cost[i] = v_fma(d, d, cost[i]);
        }
    }
}

/* best: the lesser of it and the costs of states [s, s + LANES). */
ALWAYS_INLINE void keep_least(const struct kv_trellis_job *job,
                              struct kind kind, const struct terms *t, size_t s,
                              vf *best)
{
    vf cost[TOGETHER];

    costs(job, kind, t, s, cost);
    UNROLL
    for (size_t i = 0; i < kind.n; i++)
        best[i] = v_min(cost[i], best[i]);
}

#ifdef v_nearer
_Static_assert(STATES >> FEW == LANES, "a register is all groups");

/* Of steps of one value, this and the next of FEW bits or more: 2 LANES states
 * have one predecessor, and each group two of them, the nearer to x being the
 * better.  Whether it is done. */
ALWAYS_INLINE bool advance_near(const struct kv_trellis_job *job, size_t n)
{
    const unsigned bits = job->step->bits;
    const vf scale = v_all(*job->scale);
    vf x[TOGETHER], best[TOGETHER];

    UNROLL
    for (size_t i = 0; i < n; i++) {
        x[i] = v_all(job->x[i * job->x_stride + *job->place]);
        best[i] = v_all(INFINITY);
    }
    for (size_t s = 0; s < STATES; s += 2 * LANES) {
        const float *const least = job->least + (s >> bits);
        const vf low = v_load(job->step->table + s);
        const vf high = v_load(job->step->table + s + LANES);

        UNROLL
        for (size_t i = 0; i < n; i++) {
            const vf d =
                v_nearer(v_fnma(scale, low, x[i]), v_fnma(scale, high, x[i]));

            best[i] = v_min(v_fma(d, d, v_all(least[i * LANES])), best[i]);
        }
    }
    UNROLL
    for (size_t i = 0; i < n; i++)
        v_store(job->to + i * LANES, best[i]);
    return true;
}
#else
ALWAYS_INLINE bool advance_near(const struct kv_trellis_job *job, size_t n)
{
    (void)job;
    (void)n;
    return false;
}
#endif

ALWAYS_INLINE void advance_kind(const struct kv_trellis_job *job,
                                struct kind kind)
{
    const unsigned next = job->next < FEW ? job->next : FEW;
    const size_t groups = (size_t)STATES >> next;
    struct terms t;

    if (kind.bits == FEW && next == FEW && advance_near(job, kind.n))
        return;
    set_terms(job, kind, &t);
    for (size_t r = 0; r < groups; r += LANES) {
        vf best[TOGETHER];

        costs(job, kind, &t, r, best);
        keep_least(job, kind, &t, r + groups, best);
        for (size_t s = r + 2 * groups; s < STATES; s += 2 * groups) {
            keep_least(job, kind, &t, s, best);
            keep_least(job, kind, &t, s + groups, best);
        }
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            v_store(job->to + i * kv_trellis_row(next) + r,
                    kind.bits < LANE_BITS ? v_pick(best[i], t.back) : best[i]);
    }
}

ALWAYS_INLINE void advance_any(const struct kv_trellis_job *job, size_t n)
{
    switch (kind_of(job->step)) {
#define CASE(B, V)                                 \
    case KIND(B, V):                               \
        advance_kind(job, (struct kind){n, B, V}); \
        break;
        KINDS(CASE)
#undef CASE
    }
}

/* 16 groups become those by next > FEW bits, in place. */
static void join(unsigned next, float *to)
{
    for (size_t n = 8; n >= (size_t)STATES >> next; n /= 2)
        for (size_t r = 0; r < n; r++)
            to[r] = to[r + n] < to[r] ? to[r + n] : to[r];
}

static void advance(const struct kv_trellis_job *all)
{
    struct kv_trellis_job job = *all;

    if (!has_kind(job.step)) {
        kv_trellis_search_c.advance(all);
        return;
    }
    for (size_t n = job.n; n; n -= job.n) {
        job.n = n < TOGETHER ? 1 : TOGETHER;
        if (job.n > 1)
            advance_any(&job, TOGETHER);
        else
            advance_any(&job, 1);
        for (size_t i = 0; job.next > FEW && i < job.n; i++)
            join(job.next, job.to + i * kv_trellis_row(job.next));
        job.x += job.n * job.x_stride;
        job.least += job.n * kv_trellis_row(job.step->bits);
        job.to += job.n * kv_trellis_row(job.next);
    }
}

/* ---- backwards --------------------------------------------------------- */

/* The least costs before states r + j (STATES >> bits), j from `from` on; r is
 * below STATES >> bits. */
ALWAYS_INLINE vf before(const float *least, size_t bits, size_t r, size_t from)
{
    const size_t n = (size_t)1 << bits;

    if (2 * bits < BITS) {
        const size_t by = (size_t)STATES >> 2 * bits;

        return v_every(least + (r >> bits) + from * by, by,
                       n < LANES ? n : LANES);
    }

    const size_t shift = 2 * bits - BITS, first = from >> shift;

    if (shift >= LANE_BITS)
        return v_all(least[first]);
    return v_pick(v_load(least + first / LANES * LANES),
                  i_shift(i_load(turned_lanes[0]), shift, first % LANES));
}

ALWAYS_INLINE size_t first_bit(uint64_t of, size_t n)
{
    return (size_t)__builtin_ctzll(of | (uint64_t)1 << (n - 1));
}

/* Which of the states own + j (STATES >> bits) cost `least`, of up to 64 from
 * j = from on: a bit for each.  own is below STATES >> bits; bits and values
 * are constants.  Lanes after a row's n may seem to, but the first is not among
 * them. */
ALWAYS_INLINE uint64_t which_cost(const struct kv_trellis_job *job, size_t bits,
                                  size_t values, size_t own, size_t from,
                                  vf least)
{
    const size_t n = (size_t)1 << bits, wide = n < LANES ? n : LANES;
    const float *table = job->step->turned + (own << bits) + from;
    uint64_t found = 0;

    UNROLL
    for (size_t j = 0; j < (n < 64 ? n : 64); j += wide) {
        vf cost = before(job->least, bits, own, from + j);

        UNROLL
        for (size_t v = 0; v < values; v++) {
            const vf t = v_load_first(table + v * STATES + j, wide);
            const vf d =
                v_fnma(v_all(job->scale[v]), t, v_all(job->x[job->place[v]]));

            cost = v_fma(d, d, cost);
        }
        found |= (uint64_t)v_equal(cost, least) << j;
    }
    return found;
}

/* The first state of group r by next <= bits bits whose cost is `least`.  bits,
 * values: constants, as next is where it is bits. */
ALWAYS_INLINE size_t first_of(const struct kv_trellis_job *job, size_t bits,
                              size_t next, size_t values, size_t r, float least)
{
    /* bits of states that such a group has of one by `bits` */
    static const uint64_t every[] = {~(uint64_t)0,
                                     0x5555555555555555,
                                     0x1111111111111111,
                                     0x0101010101010101,
                                     0x0001000100010001,
                                     0x0000000100000001,
                                     1};
    const size_t n = (size_t)1 << bits, own = r % (STATES >> bits);
    const uint64_t mine =
        next == bits ? *every : every[bits - next] << (r >> (BITS - bits));

    for (size_t from = 0;; from += 64) {
        const uint64_t found =
            mine & which_cost(job, bits, values, own, from, v_all(least));

        if (found || from + 64 >= n) /* at last the last one, for NaN */
            return (from + first_bit(found, n < 64 ? n : 64)) << (BITS - bits) |
                   own;
    }
}

/* The same by next > bits bits, bits <= 5: the states of several groups by
 * `bits`. */
ALWAYS_INLINE size_t first_of_several(const struct kv_trellis_job *job,
                                      size_t bits, size_t next, size_t values,
                                      size_t r, float least)
{
    size_t first = STATES;

    for (size_t own = r; own < (size_t)STATES >> bits;
         own += (size_t)STATES >> next) {
        const uint64_t found =
            which_cost(job, bits, values, own, 0, v_all(least));
        const size_t s =
            (size_t)__builtin_ctzll(found | 1ull << 63) << (BITS - bits) | own;

        first = s < first ? s : first;
    }
    return first % STATES; /* some state, for NaN */
}

/* rises: next > bits; a constant. */
ALWAYS_INLINE void back_kind(struct kv_trellis_job job, unsigned bits,
                             unsigned next, size_t values, bool rises,
                             const uint16_t *after, uint16_t *state)
{
    for (size_t i = 0; i < job.n; i++) {
        const size_t r = (size_t)after[i] >> next;
        const float least = job.to[r];

        state[i] =
            (uint16_t)(rises ? first_of_several(&job, bits, next, values, r,
                                                least)
                             : first_of(&job, bits, next, values, r, least));
        job.x += job.x_stride;
        job.least += kv_trellis_row(bits);
        job.to += kv_trellis_row(next);
    }
}

/* next <= bits, and more than bits - 7. */
static void back_among(const struct kv_trellis_job *job, const uint16_t *after,
                       uint16_t *state)
{
    const unsigned next = job->next;

    switch (KIND(job->step->bits, job->step->values)) {
#define CASE(B)                                               \
    case KIND(B, 1):                                          \
        if (next == B)                                        \
            back_kind(*job, B, B, 1, false, after, state);    \
        else                                                  \
            back_kind(*job, B, next, 1, false, after, state); \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
#undef CASE
#define CASE(B, V)                                        \
    case KIND(B, V):                                      \
        back_kind(*job, B, next, V, false, after, state); \
        break;
        SEVERAL_VALUES(CASE)
#undef CASE
    }
}
_Static_assert(KV_TRELLIS_MOST_BITS == 8 && VALUES == 4, "every kind");

/* A rate that rises from 1 or 2 bits. */
static void back_rising(const struct kv_trellis_job *job, const uint16_t *after,
                        uint16_t *state)
{
    const unsigned bits = job->step->bits, next = job->next;

    switch (job->step->values) {
#define CASE(V)                                              \
    case V:                                                  \
        if (bits == 1)                                       \
            back_kind(*job, 1, next, V, true, after, state); \
        else                                                 \
            back_kind(*job, 2, next, V, true, after, state); \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
#undef CASE
    }
}

/* The first of all states whose cost is the least. */
ALWAYS_INLINE size_t first_of_all(const struct kv_trellis_job *job,
                                  struct kind kind)
{
    const vf least = v_all(*job->to);
    struct terms t;

    set_terms(job, kind, &t);
    for (size_t s = 0;; s += LANES) {
        unsigned found;
        vf cost;

        costs(job, kind, &t, s, &cost);
        if (kind.bits < LANE_BITS)
            cost = v_pick(cost, t.back);
        found = v_equal(cost, least);
        if (found || s + LANES == STATES)
            return s + first_bit(found, LANES);
    }
}

/* After the last step. */
static void back_all(struct kv_trellis_job job, uint16_t *state)
{
    for (size_t i = 0; i < job.n; i++) {
        switch (kind_of(job.step)) {
#define CASE(B, V)                                                       \
    case KIND(B, V):                                                     \
        state[i] = (uint16_t)first_of_all(&job, (struct kind){1, B, V}); \
        break;
            KINDS(CASE)
#undef CASE
        }
        job.x += job.x_stride;
        job.least += kv_trellis_row(job.step->bits);
        job.to += kv_trellis_row(BITS);
    }
}

static void go_back(const struct kv_trellis_job *job, const uint16_t *after,
                    uint16_t *state)
{
    const unsigned bits = job->step->bits, next = job->next;

    if (next == BITS && has_kind(job->step))
        back_all(*job, state);
    else if (next <= bits && next + 7 > bits && has_kind(job->step))
        back_among(job, after, state);
    else if (next > bits && bits <= 2)
        back_rising(job, after, state);
    else /* a rate that rises further, or falls from 8 bits to 1: few steps */
        kv_trellis_search_c.go_back(job, after, state);
}

const struct kv_trellis_search NAME(kv_trellis_search) = {advance, go_back};
