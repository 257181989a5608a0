/* The encoder of trellis.h: bitstreams by a level's search, transition after
 * transition to the end and back. */
#include "kernels/level.h"
#include "kernels/trellis/impl.h"

#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    ROW = KV_TRELLIS_ROW,
    MOST = KV_TRELLIS_MAX_COST
};

static const struct kv_trellis_search *best_level(void)
{
#ifdef __x86_64__
    if (kv_level_get() >= KV_LEVEL_AVX512)
        return &kv_trellis_search_avx512;
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return &kv_trellis_search_avx2;
#endif
    return &kv_trellis_search_c;
}

/* ---- forwards ---------------------------------------------------------- */

/* Workspace for n bitstreams. */
struct room {
    uint16_t *least, *to; /* [n][ROW] */
    uint8_t *note;        /* of each transition [n][kv_trellis_note()] */
    int16_t *x;           /* [values of all transitions][AT_ONCE] */
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

/* Of the transition after transition k, which say how its states are grouped;
 * all are one group after the last. */
static unsigned bits_after(const struct kv_trellis_transition *transition,
                           size_t n_transitions, size_t k)
{
    return k + 1 < n_transitions ? transition[k + 1].bits : KV_TRELLIS_BITS;
}

/* Bytes of a bitstream's. */
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

/* notes: bytes of a bitstream's. */
static struct room room_in(void *workspace, size_t n_transitions,
                           size_t n_values, size_t notes, size_t n)
{
    struct room r = {.least = workspace};

    r.to = r.least + n * ROW;
    r.note = (void *)(r.to + n * ROW);
    r.x = (void *)(r.note + n * notes);
    r.state = (void *)(r.x + n_values * AT_ONCE);
    r.bytes = (void *)(r.state + (n_transitions + 1) * AT_ONCE);
    return r;
}

static float held(float x, float most)
{
    return x < -most ? -most : x > most ? most : x;
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
                held(x[i * x_stride + place[v]] * whole[v].x, whole[v].most));
}

/* Of marks after transition k, what is known before it: mark[r] of states whose
 * first bits are r, those that the transition goes on from.  The others are the
 * transition's own (trellis_simd.h).  mark: [STATES >> bits of the transition].
 */
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

/* All transitions of n bitstreams, to the notes. */
static void advance_all(const struct kv_trellis_search *search,
                        const struct kv_trellis_transition *transition,
                        size_t n_transitions,
                        const struct kv_trellis_whole *whole, size_t n,
                        struct room room)
{
    uint16_t mark[ROW] = {0};
    unsigned bits = transition->bits,
             after = bits_after(transition, n_transitions, 0);

    find_marks(transition, n_transitions, 0, mark);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < (size_t)STATES >> bits; r++)
            room.least[i * ROW + r] = (uint16_t)((r ? MOST : 0) | mark[r]);
    for (size_t k = 0; k < n_transitions; k++) {
        const unsigned next = bits_after(transition, n_transitions, k);
        uint16_t *const swap = room.least;

        if (k + 1 < n_transitions &&
            (next != bits ||
             after != bits_after(transition, n_transitions, k + 1))) {
            bits = next;
            after = bits_after(transition, n_transitions, k + 1);
            find_marks(transition, n_transitions, k + 1, mark);
        }
        search->advance(&(struct kv_trellis_job){.transition = &transition[k],
                                                 .whole = whole,
                                                 .next = next,
                                                 .n = n,
                                                 .x = room.x,
                                                 .least = room.least,
                                                 .to = room.to,
                                                 .mark = mark,
                                                 .note = room.note});
        if ((k + 1) % KV_TRELLIS_SUBTRACT == 0)
            for (size_t i = 0; i < n; i++)
                search->settle(room.to + i * ROW, (size_t)STATES >> next);
        room.least = room.to;
        room.to = swap;
        room.note += n * kv_trellis_note(next);
        room.x += transition[k].values * AT_ONCE;
        whole += transition[k].values;
    }
}

/* ---- backwards --------------------------------------------------------- */

/* note: the end of all; state: after each transition, from the last one on. */
static void go_all_back(const struct kv_trellis_search *search,
                        const struct kv_trellis_transition *transition,
                        size_t n_transitions, size_t n, const uint8_t *note,
                        uint16_t *state)
{
    for (size_t k = n_transitions; k-- > 0;) {
        const unsigned next = bits_after(transition, n_transitions, k);

        note -= n * kv_trellis_note(next);
        search->go_back(next, n, note, state + (k + 1) * AT_ONCE,
                        state + k * AT_ONCE);
    }
}

/* The bitstreams of paths, state [n_transitions][AT_ONCE], byte after byte:
 * bytes [size] [AT_ONCE].  A byte has the last bits of one state and, where
 * those are not all, of the one before; what both have is the same. */
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
    const struct kv_trellis_search *const search = best_level();
    const size_t size = kv_trellis_bytes(transition, n_transitions);
    const size_t values = all_values(transition, n_transitions);
    const size_t notes = all_notes(transition, n_transitions);

    for (size_t i = 0; n_transitions && i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        const struct room room =
            room_in(workspace, n_transitions, values, notes, m);

        memset(room.state, 0,
               (n_transitions + 1) * AT_ONCE * sizeof(*room.state));
        find_positions(x + i * x_stride, x_stride, place, whole, values, m,
                       room.x);
        advance_all(search, transition, n_transitions, whole, m, room);
        go_all_back(search, transition, n_transitions, m, room.note + m * notes,
                    room.state);
        make_bytes(transition, n_transitions, room.state, size, room.bytes);
        for (size_t j = 0; j < m; j++)
            for (size_t b = 0; b < size; b++)
                bytes[(i + j) * stride + b] = room.bytes[b * AT_ONCE + j];
    }
}
