/* The encoder of trellis.h: its units of cost, then the search, transition
 * after transition to the end and back. */
#include "kernels/level.h"
#include "kernels/trellis/impl.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    ROW = KV_TRELLIS_ROW,
    MAX = KV_TRELLIS_MAX_COST
};

/* ---- positions and costs ------------------------------------------------- */

/* x is clamped to this distance past all numbers.  There a number costs more
 * the further away it is, but not so much that paths are lost. */
static const double BEYOND = 8 * KV_TRELLIS_NEAR;

/* Clamps x to float's range: a table of 0s may have any scale. */
static float in_float(double x)
{
    return (float)fmax(fmin(x, (double)FLT_MAX), (double)-FLT_MAX);
}

/* A far distance costs an extra distance >> slope.  This matters if all numbers
 * may be far: their gaps are wide or, from 6 bits on, a state can reach only
 * few of many numbers, which are close together. */
static unsigned slope_of(const struct kv_trellis_transition *transition,
                         double gap, unsigned shift)
{
    if (transition->bits <= KV_TRELLIS_NARROW &&
        gap / 2 < KV_TRELLIS_FAR(transition->values) >> shift)
        return KV_TRELLIS_NO_SLOPE;
    return transition->values < 3 ? transition->values + 4 : 7;
}

/* near: the distance whose cost is 4. */
static void count_transition(const struct kv_trellis_transition *transition,
                             const float *scale, double near,
                             struct kv_trellis_whole *whole)
{
    const double beyond = BEYOND / sqrt(transition->values);
    double max = 0, part = 1, reach, gap;
    unsigned shift = 0;

    for (unsigned v = 0; v < transition->values; v++)
        max = fmax(max, fabs((double)scale[v]) * KV_TRELLIS_NEAR / near);
    reach = max * (double)transition->reach;
    gap = max * (double)transition->gap;
    for (; shift < 8 && part * (reach + beyond) > 0x7fff; part /= 2)
        shift++;
    part = fmin(part, 0x7fff / (reach + beyond));
    for (unsigned v = 0; v < transition->values; v++)
        whole[v] = (struct kv_trellis_whole){
            .x = (float)(part * KV_TRELLIS_NEAR / near),
            .number =
                in_float(part * KV_TRELLIS_NEAR / near * (double)scale[v]),
            .max = (int16_t)(part * (reach + beyond)),
            .shift = (uint8_t)shift,
            .slope = (uint8_t)slope_of(transition, part * gap, shift)};
}

/* The mean of the values' expected errors, each at most max.  logs: the mean
 * logarithm of the errors that are not 0. */
static double mean_error(const struct kv_trellis_transition *transition,
                         size_t n_transitions, const float *scale, double max,
                         double *logs)
{
    double sum = 0, log_sum = 0;
    size_t n = 0, n_logs = 0;

    for (size_t k = 0; k < n_transitions; n += transition[k++].values)
        for (unsigned v = 0; v < transition[k].values; v++) {
            const double error = transition[k].error * (double)scale[n + v] *
                                 (double)scale[n + v];

            sum += fmin(error, max);
            log_sum += error > 0 ? log(error) : 0;
            n_logs += error > 0;
        }
    *logs = n_logs ? log_sum / (double)n_logs : 0;
    return sum / (double)n;
}

/* A few values with a much larger expected error (transitions have at most 8
 * bits) must not make the others' costs 0. */
static double unit_error(const struct kv_trellis_transition *transition,
                         size_t n_transitions, const float *scale)
{
    static const double MAX_RATIO = 16;
    double logs, error;

    error = mean_error(transition, n_transitions, scale, INFINITY, &logs);
    return isfinite(error) ? mean_error(transition, n_transitions, scale,
                                        MAX_RATIO * exp(logs), &logs)
                           : error;
}

void kv_trellis_count(const struct kv_trellis_transition *transition,
                      size_t n_transitions, const float *scale,
                      struct kv_trellis_whole *whole)
{
    const double near = sqrt(unit_error(transition, n_transitions, scale));

    for (size_t k = 0; k < n_transitions; k++) {
        if (near > 1e-30 && isfinite(near))
            count_transition(&transition[k], scale, near, whole);
        else /* numbers that are all 0: any path is as good */
            memset(whole, 0, transition[k].values * sizeof(*whole));
        scale += transition[k].values;
        whole += transition[k].values;
    }
}

static const struct kv_trellis_ops *level_ops(void)
{
    static const struct kv_trellis_ops *const versions[] =
        KV_VERSIONS(&kv_trellis_ops_c, &kv_trellis_ops_avx2,
                    &kv_trellis_ops_avx512, &kv_trellis_ops_avx512);

    return versions[kv_level_version()];
}

/* ---- forwards ---------------------------------------------------------- */

/* Workspace for n bitstreams. */
struct workspace {
    uint16_t *from, *to; /* [n][ROW] */
    uint8_t *note;       /* for each transition [n][kv_trellis_note()] */
    int16_t *x;          /* [values of all transitions][AT_ONCE] */
    uint16_t *
        state; /* [n_transitions + 1][AT_ONCE]: after each transition, then 0 */
    uint8_t *bytes; /* [kv_trellis_bytes()][AT_ONCE] */
};

static size_t all_values(const struct kv_trellis_transition *transition,
                         size_t n_transitions)
{
    size_t n = 0;

    for (size_t k = 0; k < n_transitions; k++)
        n += transition[k].values;
    return n;
}

/* Bits of the transition after transition k, which group the states of k; after
 * the last transition all states are one group. */
static unsigned bits_after(const struct kv_trellis_transition *transition,
                           size_t n_transitions, size_t k)
{
    return k + 1 < n_transitions ? transition[k + 1].bits : KV_TRELLIS_BITS;
}

/* The bytes of all notes of a bitstream. */
static size_t all_notes(const struct kv_trellis_transition *transition,
                        size_t n_transitions)
{
    size_t n = 0;

    for (size_t k = 0; k < n_transitions; k++)
        n += kv_trellis_note(bits_after(transition, n_transitions, k));
    return n;
}

size_t kv_trellis_workspace(const struct kv_trellis_transition *transition,
                            size_t n_transitions, size_t n)
{
    n = n < AT_ONCE ? n : AT_ONCE;
    return n * (2 * ROW * sizeof(uint16_t) +
                all_notes(transition, n_transitions)) +
           AT_ONCE * (all_values(transition, n_transitions) * sizeof(int16_t) +
                      (n_transitions + 1) * sizeof(uint16_t) +
                      kv_trellis_bytes(transition, n_transitions));
}

/* notes: the bytes of one bitstream's notes. */
static struct workspace workspace_in(void *workspace, size_t n_transitions,
                                     size_t n_values, size_t notes, size_t n)
{
    struct workspace r = {.from = workspace};

    r.to = r.from + n * ROW;
    r.note = (void *)(r.to + n * ROW);
    r.x = (void *)(r.note + n * notes);
    r.state = (void *)(r.x + n_values * AT_ONCE);
    r.bytes = (void *)(r.state + (n_transitions + 1) * AT_ONCE);
    return r;
}

static float clamp(float x, float max)
{
    return x < -max ? -max : x > max ? max : x;
}

/* Positions of n bitstreams' values; to: [n_values][AT_ONCE]. */
static void find_positions(const float *x, size_t x_stride,
                           const uint32_t *place,
                           const struct kv_trellis_whole *whole,
                           size_t n_values, size_t n, int16_t *to)
{
    for (size_t v = 0; v < n_values; v++, to += AT_ONCE)
        for (size_t i = 0; i < n; i++)
            to[i] = (int16_t)kv_trellis_nearest(
                clamp(x[i * x_stride + place[v]] * whole[v].x, whole[v].max));
}

/* The part of transition k's marks that is known before it: mark[r] for states
 * whose first bits are r, inherited from the states before.  The transition's
 * own bits give the rest (loops.h).  mark: [STATES >> bits of the
 * transition]. */
static void find_marks(const struct kv_trellis_transition *transition,
                       size_t n_transitions, size_t k, uint16_t *mark)
{
    const unsigned bits = transition[k].bits;
    const unsigned marked =
        kv_trellis_marked(bits_after(transition, n_transitions, k));
    const unsigned all = bits + marked;

    for (size_t r = 0; r < (size_t)STATES >> bits; r++)
        mark[r] =
            (uint16_t)(all < KV_TRELLIS_BITS ? r >> (KV_TRELLIS_BITS - all)
                                             : r << (all - KV_TRELLIS_BITS));
}

/* Makes all transitions of n bitstreams and writes their notes. */
static void advance_all(const struct kv_trellis_ops *ops,
                        const struct kv_trellis_transition *transition,
                        size_t n_transitions,
                        const struct kv_trellis_whole *whole, size_t n,
                        struct workspace w)
{
    uint16_t mark[ROW] = {0};
    unsigned bits = transition->bits,
             after = bits_after(transition, n_transitions, 0);

    find_marks(transition, n_transitions, 0, mark);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < (size_t)STATES >> bits; r++)
            w.from[i * ROW + r] = (uint16_t)((r ? MAX : 0) | mark[r]);
    for (size_t k = 0; k < n_transitions; k++) {
        const unsigned next = bits_after(transition, n_transitions, k);
        uint16_t *const swap = w.from;

        if (k + 1 < n_transitions &&
            (next != bits ||
             after != bits_after(transition, n_transitions, k + 1))) {
            bits = next;
            after = bits_after(transition, n_transitions, k + 1);
            find_marks(transition, n_transitions, k + 1, mark);
        }
        ops->advance(&(struct kv_trellis_job){.transition = &transition[k],
                                              .whole = whole,
                                              .next = next,
                                              .n = n,
                                              .x = w.x,
                                              .from = w.from,
                                              .to = w.to,
                                              .mark = mark,
                                              .note = w.note});
        if ((k + 1) % KV_TRELLIS_SUBTRACT == 0)
            for (size_t i = 0; i < n; i++)
                ops->subtract_min(w.to + i * ROW, (size_t)STATES >> next);
        w.from = w.to;
        w.to = swap;
        w.note += n * kv_trellis_note(next);
        w.x += transition[k].values * AT_ONCE;
        whole += transition[k].values;
    }
}

/* ---- backwards --------------------------------------------------------- */

/* The last state of the best path to group r.  A transition of `next` bits
 * treats the states of a group alike.  The state is unpacked from marks
 * (kv_trellis_note()), or found as the best of several paths. */
static unsigned state_before(unsigned next, const uint8_t *note, unsigned r)
{
    const uint16_t *const cost = (const void *)note;
    const unsigned paths = (unsigned)kv_trellis_paths(next);
    unsigned best = UINT_MAX; /* a cost and its index, without a branch */

    if (next <= 3) {
        const unsigned mark =
            note[r % KV_TRELLIS_MARKS] >> next * (r / KV_TRELLIS_MARKS);

        return (mark % (1u << next)) << (KV_TRELLIS_BITS - next) | r;
    }
    for (unsigned p = r; p < paths; p += STATES >> next) {
        const unsigned path = (unsigned)cost[p] * STATES + p;

        best = path < best ? path : best;
    }
    return (best / STATES & KV_TRELLIS_MARK) * paths + best % STATES;
}

/* note: the end of all notes; state: after each transition, from the last one
 * on. */
static void go_back(const struct kv_trellis_transition *transition,
                    size_t n_transitions, size_t n, const uint8_t *note,
                    uint16_t *state)
{
    for (size_t k = n_transitions; k-- > 0;) {
        const unsigned next = bits_after(transition, n_transitions, k);
        const size_t bytes = kv_trellis_note(next);
        uint16_t *const at = state + k * AT_ONCE;

        note -= n * bytes;
        for (size_t i = 0; i < n; i++)
            at[i] = (uint16_t)state_before(next, note + i * bytes,
                                           (unsigned)at[AT_ONCE + i] >> next);
    }
}

/* Writes the bitstreams of paths, state [n_transitions][AT_ONCE], byte after
 * byte: bytes [size][AT_ONCE].  A byte has the last bits of one state and, if
 * these are too few, of the previous state; common bits are equal. */
static void make_bytes(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const uint16_t *state, size_t size,
                       uint8_t *bytes)
{
    const struct kv_trellis_transition *const last =
        transition + n_transitions - 1;
    size_t end = transition->bits,
           before = 0; /* bits up to a transition and to its last */
    const uint16_t *s = state, *t = state;

    for (size_t want = 8; want <= 8 * size; want += 8, bytes += AT_ONCE) {
        for (; end < want && transition < last; s += AT_ONCE) {
            before = end;
            end += (++transition)->bits;
            t = s;
        }
        for (size_t i = 0; i < AT_ONCE; i++)
            bytes[i] =
                end < want
                    ? (uint8_t)(s[i] << (want - end))
                    : (uint8_t)(s[i] >> (end - want) | t[i] << (want - before));
    }
}

void kv_trellis_encode(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const float *x, size_t x_stride,
                       const uint32_t *place,
                       const struct kv_trellis_whole *whole, size_t n,
                       void *workspace, uint8_t *bytes, size_t stride)
{
    const struct kv_trellis_ops *const ops = level_ops();
    const size_t size = kv_trellis_bytes(transition, n_transitions);
    const size_t values = all_values(transition, n_transitions);
    const size_t notes = all_notes(transition, n_transitions);

    for (size_t i = 0; n_transitions && i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        const struct workspace w =
            workspace_in(workspace, n_transitions, values, notes, m);

        memset(w.state, 0, (n_transitions + 1) * AT_ONCE * sizeof(*w.state));
        find_positions(x + i * x_stride, x_stride, place, whole, values, m,
                       w.x);
        advance_all(ops, transition, n_transitions, whole, m, w);
        go_back(transition, n_transitions, m, w.note + m * notes, w.state);
        make_bytes(transition, n_transitions, w.state, size, w.bytes);
        for (size_t j = 0; j < m; j++)
            for (size_t b = 0; b < size; b++)
                bytes[(i + j) * stride + b] = w.bytes[b * AT_ONCE + j];
    }
}
