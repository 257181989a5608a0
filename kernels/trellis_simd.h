/* One step of the search, LANES states side by side, each lane doing exactly
 * what the plain C does.  Included by trellis_avx2.c and trellis_avx512.c,
 * which name the registers:
 *
 *   LANE_BITS          LANES = 1 << LANE_BITS
 *   vf, vi             LANES floats, LANES 32-bit integers
 *   v_load v_store v_all v_min
 *   v_fma(a, b, c) v_fnma(a, b, c)     c + a b, c - a b
 *   v_pick(v, at)      lane i is v's lane at[i]
 *   v_keep(&best, &j_best, cost, j)    both where cost < best
 *   v_store_less(p, a, b)      LANES bits, whether a < b
 *   i_load i_shift(v, by)      right
 *   vj j_all j_add j_store     LANES small numbers; stored as bytes
 *   NAME(f)            f with the level's suffix */
#include "kernels/trellis_impl.h"
#include "kernels/unroll.h"

#include <string.h>

enum {
    LANES = 1 << LANE_BITS,
    STATES = KV_TRELLIS_STATES,
    ROW = KV_TRELLIS_ROW,
    TOGETHER = 4, /* strings */
    VALUES = KV_TRELLIS_MOST_VALUES,
    MOST = KV_TRELLIS_FEW /* bits by which states are grouped at first */
};

/* What one call works on. */
struct job {
    const struct kv_trellis_step *step;
    unsigned next; /* at most MOST */
    const float *x;
    size_t x_stride;
    const float *scale, *least;
    float *to;
    union kv_trellis_from *from;
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
    vf x[TOGETHER][VALUES], scale[VALUES];
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
    vf table[VALUES];

    UNROLL
    for (size_t v = 0; v < kind.values; v++)
        table[v] = v_load(job->step->table + v * STATES + s);
    UNROLL
    for (size_t i = 0; i < kind.n; i++) {
        const float *least = job->least + i * ROW + (s >> job->step->bits);

        cost[i] = kind.alike ? v_all(*least) : v_pick(v_load(least), t->before);
        UNROLL
        for (size_t v = 0; v < kind.values; v++) {
            const vf d = v_fnma(t->scale[v], table[v], t->x[i][v]);

            cost[i] = v_fma(d, d, cost[i]);
        }
    }
}

/* The least of groups r to r + LANES, next < FEW. */
ALWAYS_INLINE void keep_masks(const struct job *job, struct kind kind,
                              const struct terms *t, unsigned next, size_t r,
                              vf *best)
{
    uint16_t *mask[TOGETHER];
    vf cost[TOGETHER];

    UNROLL
    for (size_t i = 0; i < kind.n; i++)
        mask[i] = &job->from[i].mask[r / 16 << next];
    for (size_t j = 1; j < (size_t)1 << next; j++) {
        costs(job, kind, t, r + j * (STATES >> next), cost);
        UNROLL
        for (size_t i = 0; i < kind.n; i++) {
            v_store_less((uint8_t *)&mask[i][j] + r % 16 / 8, cost[i], best[i]);
            best[i] = v_min(cost[i], best[i]);
        }
    }
}

/* The same, next >= FEW. */
ALWAYS_INLINE void keep_which(const struct job *job, struct kind kind,
                              const struct terms *t, size_t r, vf *best)
{
    const size_t groups = STATES >> job->next;
    vf cost[TOGETHER];
    vj which[TOGETHER], j = j_all(0);

    UNROLL
    for (size_t i = 0; i < kind.n; i++)
        which[i] = j;
    for (size_t s = r + groups; s < STATES; s += groups) {
        j = j_add(j, j_all(1));
        costs(job, kind, t, s, cost);
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            v_keep(&best[i], &which[i], cost[i], j);
    }
    UNROLL
    for (size_t i = 0; i < kind.n; i++)
        j_store(job->from[i].which + r, which[i]);
}

ALWAYS_INLINE void advance(const struct job *job, struct kind kind)
{
    const size_t groups = STATES >> job->next;
    struct terms t;

    set_terms(job, kind, &t);
    for (size_t r = 0; r < groups; r += LANES) {
        vf best[TOGETHER];

        costs(job, kind, &t, r, best);
        if (job->next == 1) /* a loop of one turn would cost more than it */
            keep_masks(job, kind, &t, 1, r, best);
        else if (job->next < KV_TRELLIS_FEW)
            keep_masks(job, kind, &t, job->next, r, best);
        else
            keep_which(job, kind, &t, r, best);
        UNROLL
        for (size_t i = 0; i < kind.n; i++)
            v_store(job->to + i * ROW + r, best[i]);
    }
}

ALWAYS_INLINE void advance_values(const struct job *job, size_t n)
{
    switch (job->step->values) {
#define CASE(V)                               \
    case V:                                   \
        advance(job, (struct kind){n, V, 0}); \
        break;
        CASE(2)
        CASE(3)
        CASE(4)
#undef CASE
    case 1:
        if (job->step->bits >= LANE_BITS)
            advance(job, (struct kind){n, 1, 1});
        else
            advance(job, (struct kind){n, 1, 0});
        break;
    }
}
_Static_assert(VALUES == 4, "every number of values");

/* Costs are not negative: in order as their bits are. */
ALWAYS_INLINE uint64_t cost_and_state(const float *to, const uint8_t *which,
                                      size_t i)
{
    uint32_t cost;

    memcpy(&cost, &to[i], sizeof(cost));
    return (uint64_t)cost << 32 | (uint64_t)which[i] << 4 | i;
}

/* 16 groups by MOST bits become those by `next`, in place. */
static void join(unsigned next, float *to, uint8_t *which)
{
    const size_t few = STATES >> next;

    for (size_t r = 0; r < few; r++) {
        uint64_t best = cost_and_state(to, which, r);
        uint32_t cost;

        for (size_t i = r + few; i < 16; i += few) {
            const uint64_t other = cost_and_state(to, which, i);

            best = other < best ? other : best;
        }
        cost = (uint32_t)(best >> 32);
        memcpy(&to[r], &cost, sizeof(cost));
        which[r] = (uint8_t)((uint32_t)best >> (KV_TRELLIS_BITS - next));
    }
}

void NAME(kv_trellis_advance)(const struct kv_trellis_step *step, unsigned next,
                              size_t n, const float *x, size_t x_stride,
                              const float *scale, const float *least, float *to,
                              union kv_trellis_from *from)
{
    struct job job = {
        step, next < MOST ? next : MOST, x, x_stride, scale, least, to, from};

    while (n) {
        const size_t now = n < TOGETHER ? 1 : TOGETHER;

        if (now > 1)
            advance_values(&job, TOGETHER);
        else
            advance_values(&job, 1);
        for (size_t i = 0; next > MOST && i < now; i++)
            join(next, job.to + i * ROW, job.from[i].which);
        job.x += now * x_stride;
        job.least += now * ROW;
        job.to += now * ROW;
        job.from += now;
        n -= now;
    }
}
