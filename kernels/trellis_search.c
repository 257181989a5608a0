/* The encoder of trellis.h: strings by a level's search, step after step to the
 * end and back. */
#include "kernels/level.h"
#include "kernels/trellis_impl.h"

#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    ROW = KV_TRELLIS_ROW,
    NOTE = KV_TRELLIS_NOTE,
    MOST = KV_TRELLIS_MOST_COST
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

/* Scratch memory for n strings. */
struct room {
    uint16_t *least, *to; /* [n][ROW] */
    uint32_t *note;       /* [n_steps][n][NOTE] */
    int16_t *x;           /* [values of all steps][AT_ONCE] */
    uint16_t *state;      /* [n_steps + 1][AT_ONCE]: after each step, then 0 */
    uint8_t *bytes;       /* [kv_trellis_bytes()][AT_ONCE] */
};

static size_t all_values(const struct kv_trellis_step *step, size_t n_steps)
{
    size_t n = 0;

    for (size_t k = 0; k < n_steps; k++)
        n += step[k].values;
    return n;
}

size_t kv_trellis_scratch(const struct kv_trellis_step *step, size_t n_steps,
                          size_t n)
{
    n = n < AT_ONCE ? n : AT_ONCE;
    return n * 2 * ROW * sizeof(uint16_t) +
           n * n_steps * NOTE * sizeof(uint32_t) +
           AT_ONCE * (all_values(step, n_steps) * sizeof(int16_t) +
                      (n_steps + 1) * sizeof(uint16_t) +
                      kv_trellis_bytes(step, n_steps));
}

static struct room room_in(void *scratch, size_t n_steps, size_t n_values,
                           size_t n)
{
    struct room r = {.least = scratch};

    r.to = r.least + n * ROW;
    r.note = (void *)(r.to + n * ROW);
    r.x = (void *)(r.note + n_steps * n * NOTE);
    r.state = (void *)(r.x + n_values * AT_ONCE);
    r.bytes = (void *)(r.state + (n_steps + 1) * AT_ONCE);
    return r;
}

static float held(float x, float most)
{
    return x < -most ? -most : x > most ? most : x;
}

/* Positions of n strings' values; to: [n_values][AT_ONCE]. */
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

/* Of the step after step k, which say how its states are grouped; all are one
 * group after the last. */
static unsigned bits_after(const struct kv_trellis_step *step, size_t n_steps,
                           size_t k)
{
    return k + 1 < n_steps ? step[k + 1].bits : KV_TRELLIS_BITS;
}

/* All steps of n strings, to the notes. */
static void advance_all(const struct kv_trellis_search *search,
                        const struct kv_trellis_step *step, size_t n_steps,
                        const struct kv_trellis_whole *whole, size_t n,
                        struct room room)
{
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < (size_t)STATES >> step->bits; r++)
            room.least[i * ROW + r] = r ? MOST : 0;
    for (size_t k = 0; k < n_steps; k++) {
        const unsigned next = bits_after(step, n_steps, k);
        uint16_t *const swap = room.least;

        search->advance(&(struct kv_trellis_job){.step = &step[k],
                                                 .whole = whole,
                                                 .next = next,
                                                 .n = n,
                                                 .x = room.x,
                                                 .least = room.least,
                                                 .to = room.to,
                                                 .note = room.note});
        if ((k + 1) % KV_TRELLIS_SETTLE == 0)
            for (size_t i = 0; i < n; i++)
                search->settle(room.to + i * ROW, (size_t)STATES >> next);
        room.least = room.to;
        room.to = swap;
        room.note += n * NOTE;
        room.x += step[k].values * AT_ONCE;
        whole += step[k].values;
    }
}

/* ---- backwards --------------------------------------------------------- */

/* Of steps like this one; kv_trellis_search says where a level's lanes leave a
 * state's bit. */
static void find_bits(const struct kv_trellis_step *step, unsigned lane_bits,
                      struct kv_trellis_order *o)
{
    const unsigned turn = step->bits < lane_bits ? step->bits : 0;
    const unsigned flips =
        kv_trellis_flips(kv_trellis_map(step->bits, step->values), 7);
    const unsigned lanes = (1u << lane_bits) - 1;

    o->bits = step->bits;
    o->values = step->values;
    o->folded = step->folded;
    for (unsigned s = 0; s < 32; s++)
        for (unsigned i = 0; i < 2; i++) {
            const unsigned lane = (step->folded && i ? s ^ flips : s) & lanes;
            const unsigned at =
                (s & ~lanes) |
                ((lane >> turn | lane << (lane_bits - turn)) & lanes);

            o->bit[s][i] = 1u << (lane_bits != 4 ? at
                                                 : (at & 7) | (at & 8) << 1 |
                                                       (at & 16) >> 1);
        }
}

static void find_groups(unsigned groups, struct kv_trellis_order *o)
{
    o->groups = groups;
    memcpy(o->group, o->bit, sizeof(o->group));
    for (unsigned s = groups; s < 32; s++)
        for (unsigned i = 0; i < 2; i++)
            o->group[s & (groups - 1)][i] |= o->bit[s][i];
}

/* state: after each step, from the last one on. */
static void go_all_back(const struct kv_trellis_search *search,
                        const struct kv_trellis_step *step, size_t n_steps,
                        size_t n, const uint32_t *note, uint16_t *state)
{
    struct kv_trellis_order order = {.bits = 0};

    for (size_t k = n_steps; k-- > 0;) {
        const unsigned next = bits_after(step, n_steps, k);
        const bool alike = order.bits == step[k].bits &&
                           order.values == step[k].values &&
                           order.folded == step[k].folded;

        if (!alike)
            find_bits(&step[k], search->lane_bits, &order);
        if (!alike || order.groups != (unsigned)STATES >> next)
            find_groups((unsigned)STATES >> next, &order);
        search->go_back(&order, n, note + k * n * NOTE,
                        state + (k + 1) * AT_ONCE, state + k * AT_ONCE);
    }
}

/* The strings of paths, state [n_steps][AT_ONCE], byte after byte: bytes [size]
 * [AT_ONCE].  A byte has the last bits of one state and, where those are not
 * all, of the one before; what both have is the same. */
static void make_bytes(const struct kv_trellis_step *step, size_t n_steps,
                       const uint16_t *state, size_t size, uint8_t *bytes)
{
    const struct kv_trellis_step *const last = step + n_steps - 1;
    size_t end = step->bits, before = 0; /* bits up to a step and to its last */
    const uint16_t *s = state, *t = state;

    for (size_t want = 8; want <= 8 * size; want += 8, bytes += AT_ONCE) {
        for (; end < want && step < last; s += AT_ONCE) {
            before = end;
            end += (++step)->bits;
            t = s;
        }
        for (size_t i = 0; i < AT_ONCE; i++)
            bytes[i] =
                end < want
                    ? (uint8_t)(s[i] << (want - end))
                    : (uint8_t)(s[i] >> (end - want) | t[i] << (want - before));
    }
}

void kv_trellis_encode(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, size_t x_stride, const uint32_t *place,
                       const struct kv_trellis_whole *whole, size_t n,
                       void *scratch, uint8_t *bytes, size_t stride)
{
    const struct kv_trellis_search *const search = best_level();
    const size_t size = kv_trellis_bytes(step, n_steps);
    const size_t values = all_values(step, n_steps);

    for (size_t i = 0; n_steps && i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        const struct room room = room_in(scratch, n_steps, values, m);

        memset(room.state, 0, (n_steps + 1) * AT_ONCE * sizeof(*room.state));
        find_positions(x + i * x_stride, x_stride, place, whole, values, m,
                       room.x);
        advance_all(search, step, n_steps, whole, m, room);
        go_all_back(search, step, n_steps, m, room.note, room.state);
        make_bytes(step, n_steps, room.state, size, room.bytes);
        for (size_t j = 0; j < m; j++)
            for (size_t b = 0; b < size; b++)
                bytes[(i + j) * stride + b] = room.bytes[b * AT_ONCE + j];
    }
}
