/* The search of trellis_impl.h in plain C. */
#include "kernels/trellis_impl.h"

#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    ROW = KV_TRELLIS_ROW,
    NOTE = KV_TRELLIS_NOTE,
    MOST = KV_TRELLIS_MOST_COST
};

_Static_assert(MOST + (1 << 15) <= UINT16_MAX, "a sum of costs is 16 bits");

static int value_cost(int x, float number, const struct kv_trellis_whole *whole,
                      unsigned values)
{
    const int far = KV_TRELLIS_FAR(values) >> whole->shift;
    int d = x - kv_trellis_nearest(number * whole->number), more = 0;

    d = d < -0x8000 ? -0x8000 : d > 0x7fff ? 0x7fff : d;
    if (whole->shift) {
        d = d < 0 ? -d : d;
        more = d > far ? d - far : 0;
        d = (d - more) << whole->shift;
    }
    return ((d * d + 0x4000) >> 15) + (more >> whole->slope);
}

/* Of string i's best path to this state. */
static int cost(const struct kv_trellis_job *job, size_t i, size_t state)
{
    const struct kv_trellis_step *step = job->step;
    int sum = job->least[i * ROW + (state >> step->bits)];

    for (size_t v = 0; v < step->values; v++)
        sum +=
            value_cost(job->x[v * AT_ONCE + i], step->table[v * STATES + state],
                       &job->whole[v], step->values);
    return sum;
}

static void advance(const struct kv_trellis_job *job)
{
    const size_t groups = STATES >> job->next;

    for (size_t i = 0; i < job->n; i++) {
        uint32_t *const note = job->note + i * NOTE;
        int all[STATES], best[STATES / 2];

        for (size_t s = 0; s < STATES; s++) {
            all[s] = cost(job, i, s);
            if (s < groups || all[s] < best[s % groups])
                best[s % groups] = all[s];
        }
        memset(note, 0, NOTE * sizeof(*note));
        for (size_t s = 0; s < STATES; s++)
            note[s / 32] |= (uint32_t)(all[s] == best[s % groups]) << s % 32;
        for (size_t r = 0; r < groups; r++)
            job->to[i * ROW + r] = (uint16_t)(best[r] < MOST ? best[r] : MOST);
    }
}

static void settle(uint16_t *cost, size_t n)
{
    uint16_t least = MOST;

    for (size_t r = 0; r < n; r++)
        least = cost[r] < least ? cost[r] : least;
    for (size_t r = 0; r < n; r++)
        cost[r] = (uint16_t)(cost[r] - least);
}

static unsigned words_with(const uint32_t *note, const uint32_t *bits)
{
    unsigned found = 0;

    for (unsigned k = 0; k < NOTE; k++)
        found |= (unsigned)((note[k] & bits[k >> 2 & 1]) != 0) << k;
    return found;
}

#include "kernels/trellis_back.h"

const struct kv_trellis_search kv_trellis_search_c = {advance, settle, go_back,
                                                      0};
