/* One step of the search, LANES states side by side, each lane doing exactly
 * what the plain C does.  Included by trellis_avx2.c and trellis_avx512.c,
 * which name the registers:
 *
 *   vf, vi             LANES floats, LANES 32-bit integers
 *   v_load v_store v_all v_add v_sub v_mul v_min      as they say
 *   v_pick(v, at)      lane i is v's lane at[i]
 *   v_store_less(bit, a, b)    LANES bits, whether a < b
 *   i_load i_shift(v, by)      right
 *   NAME(f)            f with the level's suffix */
#include "kernels/trellis_impl.h"
#include "kernels/unroll.h"

#include <string.h>

static const size_t STATES = KV_TRELLIS_STATES, ROW = KV_TRELLIS_ROW,
                    WORDS = KV_TRELLIS_WORDS;

/* What one call works on: n strings (a constant where it is inlined). */
struct job {
    const struct kv_trellis_step *step;
    unsigned next; /* leaves at least LANES groups */
    const float *x;
    size_t x_stride;
    const float *scale, *least;
    float *to;
    uint64_t *bit;
};

/* What its kind of step makes of a call; constants where they are inlined.
 * alike: LANES states have one predecessor. */
struct kind {
    size_t n, values;
    int alike;
};

/* What costs are made of: x and scale of each value in all lanes, and which of
 * LANES predecessors each lane has. */
struct terms {
    vf x[KV_TRELLIS_TOGETHER][KV_TRELLIS_MOST_VALUES];
    vf scale[KV_TRELLIS_MOST_VALUES];
    vi before;
};

ALWAYS_INLINE void set_terms(const struct job *job, struct kind kind,
                             struct terms *t)
{
    static const int32_t count[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                      8, 9, 10, 11, 12, 13, 14, 15};

    t->before = i_shift(i_load(count), job->step->bits);
    UNROLL
    for (size_t v = 0; v < kind.values; v++) {
        t->scale[v] = v_all(job->scale[v]);
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            t->x[i][v] = v_all(job->x[i * job->x_stride + v]);
    }
}

/* Of states [s, s + LANES), for each string. */
ALWAYS_INLINE void costs(const struct job *job, struct kind kind,
                         const struct terms *t, size_t s, vf *cost)
{
    vf level[KV_TRELLIS_MOST_VALUES];

    UNROLL
    for (size_t v = 0; v < kind.values; v++)
        level[v] =
            v_mul(t->scale[v], v_load(job->step->table + v * STATES + s));
    UNROLL
    for (size_t i = 0; i < kind.n; i++) {
        const float *least = job->least + i * ROW + (s >> job->step->bits);
        vf e = v_sub(t->x[i][0], level[0]);

        cost[i] = v_mul(e, e);
        UNROLL
        for (size_t v = 1; v < kind.values; v++) {
            e = v_sub(t->x[i][v], level[v]);
            cost[i] = v_add(cost[i], v_mul(e, e));
        }
        cost[i] =
            v_add(kind.alike ? v_all(*least) : v_pick(v_load(least), t->before),
                  cost[i]);
    }
}

ALWAYS_INLINE void advance(const struct job *job, struct kind kind)
{
    const size_t groups = STATES >> job->next;
    struct terms t;

    set_terms(job, kind, &t);
    for (size_t r = 0; r < groups; r += LANES) {
        vf best[KV_TRELLIS_TOGETHER], cost[KV_TRELLIS_TOGETHER];

        /* Of each group the first state, which join() wants to be set. */
        costs(job, kind, &t, r, best);
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            memset((uint8_t *)(job->bit + i * WORDS) + r / 8, 0xff, LANES / 8);
        for (size_t s = r + groups; s < STATES; s += groups) {
            costs(job, kind, &t, s, cost);
            UNROLL
            for (size_t i = 0; i < kind.n; i++) {
                v_store_less((uint8_t *)(job->bit + i * WORDS) + s / 8, cost[i],
                             best[i]);
                best[i] = v_min(cost[i], best[i]);
            }
        }
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            v_store(job->to + i * ROW + r, best[i]);
    }
}

ALWAYS_INLINE void advance_values(const struct job *job, size_t n)
{
    switch (job->step->values) {
#define CASE(VALUES)                               \
    case VALUES:                                   \
        advance(job, (struct kind){n, VALUES, 0}); \
        break;
        CASE(2)
        CASE(3)
        CASE(4)
#undef CASE
    case 1:
        if ((size_t)1 << job->step->bits >= LANES)
            advance(job, (struct kind){n, 1, 1});
        else
            advance(job, (struct kind){n, 1, 0});
        break;
    }
}
_Static_assert(KV_TRELLIS_MOST_VALUES == 4, "every number of values");

/* Groups by MOST high bits are joined to those by `next`, in place. */
enum { MOST = KV_TRELLIS_BITS - 4, MANY = KV_TRELLIS_STATES >> MOST };
_Static_assert(MANY >= LANES, "a vector of groups");

/* Of the joined groups r, r + few, ... that are in the set, all with the same
 * cost, only the one with the lowest state stays. */
static unsigned drop_ties(const uint64_t *bit, size_t few, unsigned set)
{
    for (size_t i = 0; i < MANY; i++)
        for (size_t j = i + few; j < MANY; j += few)
            if (set >> i & set >> j & 1)
                set &= ~(1u << (kv_trellis_last(bit, i, MOST) <
                                        kv_trellis_last(bit, j, MOST)
                                    ? j
                                    : i));
    return set;
}

static void join(unsigned next, float *to, uint64_t *bit)
{
    const size_t few = STATES >> next;
    unsigned least = 0; /* set of groups */

    for (size_t r = 0; r < few; r++) {
        float min = to[r];

        for (size_t i = r + few; i < MANY; i += few)
            min = to[i] < min ? to[i] : min;
        for (size_t i = r; i < MANY; i += few)
            least |= (unsigned)(to[i] <= min) << i;
        to[r] = min;
    }
    if ((size_t)__builtin_popcount(least) > few)
        least = drop_ties(bit, few, least);
    for (size_t i = 0; i < WORDS; i++)
        bit[i] &= least * kv_trellis_group(0, MOST);
}

void NAME(kv_trellis_advance)(const struct kv_trellis_step *step, unsigned next,
                              size_t n, const float *x, size_t x_stride,
                              const float *scale, const float *least, float *to,
                              uint64_t *bit)
{
    struct job job = {
        step, next < MOST ? next : MOST, x, x_stride, scale, least, to, bit};

    if (n == KV_TRELLIS_TOGETHER)
        advance_values(&job, KV_TRELLIS_TOGETHER);
    for (size_t i = 0; n < KV_TRELLIS_TOGETHER && i < n; i++) {
        advance_values(&job, 1);
        job.x += x_stride;
        job.least += ROW;
        job.to += ROW;
        job.bit += WORDS;
    }
    for (size_t i = 0; next > MOST && i < n; i++)
        join(next, to + i * ROW, bit + i * WORDS);
}
