/* The search of impl.h in plain C. */
#include "kernels/trellis/impl.h"

#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    ROW = KV_TRELLIS_ROW,
    MARK = KV_TRELLIS_MARK,
    MAX = KV_TRELLIS_MAX_COST
};

_Static_assert(MAX + 8 * KV_TRELLIS_TRANSITION_COST + MARK <= UINT16_MAX,
               "a sum of costs and a mark are 16 bits");

static int value_cost(int x, float number, const struct kv_trellis_whole *whole,
                      unsigned values)
{
    const int far = KV_TRELLIS_FAR(values) >> whole->shift;
    int d = x - kv_trellis_nearest(number * whole->number), more = 0;

    d = d < -0x8000 ? -0x8000 : d > 0x7fff ? 0x7fff : d;
    if (whole->shift || whole->slope != KV_TRELLIS_NO_SLOPE) {
        d = d < 0 ? -d : d;
        more = d > far ? d - far : 0;
        d = (d - more) << whole->shift;
    }
    return ((d * d + 0x4000) >> 15) + (more >> whole->slope);
}

/* The cost of bitstream i's best path to this state, without its mark. */
static int cost(const struct kv_trellis_job *job, size_t i, size_t state)
{
    const struct kv_trellis_transition *transition = job->transition;
    int sum = 0;

    for (size_t v = 0; v < transition->values; v++)
        sum += value_cost(job->x[v * AT_ONCE + i],
                          transition->table[v * STATES + state], &job->whole[v],
                          transition->values);
    sum = sum < KV_TRELLIS_TRANSITION_COST ? sum : KV_TRELLIS_TRANSITION_COST;
    return (job->from[i * ROW + (state >> transition->bits)] & ~MARK) + 8 * sum;
}

static void advance(const struct kv_trellis_job *job)
{
    const unsigned next = job->next;
    const size_t groups = STATES >> next, paths = kv_trellis_paths(next);
    uint16_t path[STATES / 2];

    for (size_t i = 0; i < job->n; i++) {
        uint16_t *const to = job->to + i * ROW;
        uint8_t *const note = job->note + i * kv_trellis_note(next);

        for (size_t s = 0; s < STATES; s++) {
            const int to_s = cost(job, i, s) | (int)(s / paths);

            if (s < paths || to_s < path[s % paths])
                path[s % paths] = (uint16_t)to_s;
        }
        for (size_t p = 0; p < paths; p++) {
            const int best = path[p] < MAX ? path[p] & ~MARK : MAX;

            if (p < groups || best < (to[p % groups] & ~MARK))
                to[p % groups] = (uint16_t)(best | job->mark[p % groups]);
        }
        if (next > 3) {
            memcpy(note, path, paths * sizeof(*path));
            continue;
        }
        memset(note, 0, KV_TRELLIS_MARKS);
        for (size_t p = 0; p < paths; p++)
            note[p % KV_TRELLIS_MARKS] |=
                (uint8_t)((path[p] & MARK) << next * (p / KV_TRELLIS_MARKS));
    }
}

static void subtract_min(uint16_t *cost, size_t n)
{
    int min = MAX;

    for (size_t r = 0; r < n; r++)
        min = (cost[r] & ~MARK) < min ? cost[r] & ~MARK : min;
    for (size_t r = 0; r < n; r++)
        cost[r] = (uint16_t)(cost[r] - min);
}

const struct kv_trellis_ops kv_trellis_ops_c = {advance, subtract_min};
