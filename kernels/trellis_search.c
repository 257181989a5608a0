/* The encoder of trellis.h: one step in plain C, all steps, the way back. */
#include "kernels/level.h"
#include "kernels/trellis_impl.h"

#include <math.h>
#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    ROW = KV_TRELLIS_ROW,
    AT_ONCE = KV_TRELLIS_AT_ONCE,
    END = KV_TRELLIS_MOST_BITS /* states are grouped so after the last step */
};

/* The least cost of a path to this state (trellis_impl.h). */
static float cost(const struct kv_trellis_step *step, const float *x,
                  const float *scale, const float *least, size_t state)
{
    float c = least[state >> step->bits];

    for (size_t v = 0; v < step->values; v++) {
        const float d = fmaf(-scale[v], step->table[v * STATES + state], x[v]);

        c = fmaf(d, d, c);
    }
    return c;
}

/* State j of group r costs less than all before it. */
static void put_from(union kv_trellis_from *from, unsigned next, size_t r,
                     size_t j)
{
    if (next < KV_TRELLIS_FEW)
        from->mask[r / 16 << next | j] |= (uint16_t)(1u << r % 16);
    else
        from->which[r] = (uint8_t)j;
}

void kv_trellis_advance_c(const struct kv_trellis_step *step, unsigned next,
                          size_t n, const float *x, size_t x_stride,
                          const float *scale, const float *least, float *to,
                          union kv_trellis_from *from)
{
    const size_t groups = STATES >> next;

    for (size_t i = 0; i < n; i++) {
        memset(&from[i], 0, sizeof(from[i]));
        for (size_t s = 0; s < STATES; s++) {
            const float c = cost(step, x, scale, least, s);

            if (s < groups)
                to[s] = c;
            if (c < to[s % groups]) {
                to[s % groups] = c;
                put_from(&from[i], next, s % groups, s / groups);
            }
        }
        x += x_stride;
        least += ROW;
        to += ROW;
    }
}

static kv_trellis_advance *best_level(void)
{
#ifdef __x86_64__
    if (kv_level_get() >= KV_LEVEL_AVX512)
        return kv_trellis_advance_avx512;
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return kv_trellis_advance_avx2;
#endif
    return kv_trellis_advance_c;
}

/* What a search of n strings writes down. */
struct notes {
    float *least[2]; /* [n][ROW]: before a step and after it, by turns */
    union kv_trellis_from *from; /* [n_steps][n] */
    uint16_t *state;             /* [n_steps][n]: of the paths */
};

size_t kv_trellis_scratch(size_t n_steps, size_t n)
{
    return (n < AT_ONCE ? n : AT_ONCE) *
           (2 * ROW * sizeof(float) +
            n_steps * (sizeof(union kv_trellis_from) + sizeof(uint16_t)));
}

static struct notes notes_at(void *scratch, size_t n_steps, size_t n)
{
    float *least = scratch;
    union kv_trellis_from *from = (void *)(least + 2 * n * ROW);

    return (struct notes){.least = {least, least + n * ROW},
                          .from = from,
                          .state = (uint16_t *)(from + n_steps * n)};
}

/* The state that a path to group r comes from.  Which it is cannot be guessed:
 * no branch depends on it. */
static size_t state_from(const union kv_trellis_from *from, unsigned next,
                         size_t r)
{
    const uint16_t *mask = from->mask + (r / 16 << next);
    size_t which = 0;

    if (next >= KV_TRELLIS_FEW)
        which = from->which[r];
    else if (next == 1)
        which = mask[1] >> r % 16 & 1;
    else {
        uint64_t last = 1; /* of four masks the group's bits, some set */

        for (size_t j = 0; j < (size_t)1 << next; j += 4) {
            uint64_t four, any;

            memcpy(&four, mask + j, sizeof(four));
            four = four >> r % 16 & 0x0001000100010001;
            any = -(uint64_t)(four != 0);
            which = (which & ~any) | (j & any);
            last = (last & ~any) | (four & any);
        }
        which += (63 - (size_t)__builtin_clzll(last)) / 16;
    }
    return which << (KV_TRELLIS_BITS - next) | r;
}

/* The state with the least cost, the lowest on ties; after the last step. */
static size_t last_state(const float *least, const union kv_trellis_from *from)
{
    const size_t groups = STATES >> END;
    size_t best = 0;

    for (size_t r = 1; r < groups; r++)
        if (least[r] < least[best] ||
            (least[r] == least[best] && from->which[r] < from->which[best]))
            best = r;
    return state_from(from, END, best);
}

/* The best paths of n strings, at most AT_ONCE. */
static void find_paths(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, size_t x_stride, const float *scale,
                       size_t n, const struct notes *to)
{
    kv_trellis_advance *const advance = best_level();
    const float *end = to->least[n_steps % 2];
    const size_t last = n_steps - 1;

    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < (size_t)STATES >> step->bits; r++)
            to->least[0][i * ROW + r] = r ? INFINITY : 0;
    for (size_t k = 0; k < n_steps; k++) {
        advance(&step[k], k < last ? step[k + 1].bits : END, n, x, x_stride,
                scale, to->least[k % 2], to->least[1 - k % 2],
                to->from + k * n);
        x += step[k].values;
        scale += step[k].values;
    }
    for (size_t i = 0; i < n; i++)
        to->state[last * n + i] =
            (uint16_t)last_state(end + i * ROW, &to->from[last * n + i]);
    for (size_t k = last; k > 0; k--)
        for (size_t i = 0; i < n; i++)
            to->state[(k - 1) * n + i] = (uint16_t)state_from(
                &to->from[(k - 1) * n + i], step[k].bits,
                (size_t)to->state[k * n + i] >> step[k].bits);
}

static void put_four(uint8_t *bytes, uint64_t u)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(u >> (24 - 8 * i));
}

/* The string of a path whose states are `every` apart. */
static void put_string(const struct kv_trellis_step *step, size_t n_steps,
                       const uint16_t *state, size_t every, uint8_t *bytes)
{
    uint64_t window = 0;
    unsigned in = 0;

    for (size_t k = 0; k < n_steps; k++) {
        const unsigned bits = step[k].bits;

        window = window << bits | (state[k * every] & ((1u << bits) - 1));
        in += bits;
        if (in >= 32) {
            in -= 32;
            put_four(bytes, window >> in);
            bytes += 4;
        }
    }
    for (; in >= 8; in -= 8)
        *bytes++ = (uint8_t)(window >> (in - 8));
    if (in)
        *bytes = (uint8_t)(window << (8 - in));
}

void kv_trellis_encode(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, const float *scale, size_t n,
                       void *scratch, uint8_t *bytes, size_t stride)
{
    size_t len = 0;

    for (size_t k = 0; k < n_steps; k++)
        len += step[k].values;
    for (size_t i = 0; n_steps && i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        const struct notes notes = notes_at(scratch, n_steps, m);

        find_paths(step, n_steps, x + i * len, len, scale, m, &notes);
        for (size_t j = 0; j < m; j++)
            put_string(step, n_steps, notes.state + j, m,
                       bytes + (i + j) * stride);
    }
}
