#include "kernels/trellis.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = KV_TRELLIS_STATES, HALF = KV_TRELLIS_HALF };

static size_t string_bits(const struct kv_trellis_step *step, size_t n_steps)
{
    size_t bits = 0;

    for (size_t i = 0; i < n_steps; i++)
        bits += step[i].bits;
    return bits;
}

/* The lowest n bits of i turned left by `by`. */
static size_t turn_left(size_t i, unsigned by, unsigned n)
{
    return (i << by | i >> (n - by)) % ((size_t)1 << n);
}

void kv_trellis_turn(unsigned bits, unsigned values, const float *table,
                     float *turned)
{
    for (size_t v = 0; v < values; v++)
        for (size_t s = 0; s < STATES; s++)
            turned[v * STATES + turn_left(s, bits, KV_TRELLIS_BITS)] =
                table[v * STATES + s];
    for (unsigned b = 4; b >= 3; b--) {
        const size_t lanes = (size_t)1 << b;

        turned += values * STATES;
        for (size_t i = 0; bits < b && i < values * STATES; i++)
            turned[i] = table[i - i % lanes + turn_left(i % lanes, bits, b)];
    }
}

size_t kv_trellis_bytes(const struct kv_trellis_step *step, size_t n_steps)
{
    return (string_bits(step, n_steps) + 7) / 8;
}

/* The state after so many bits of the string, which are its last ones. */
static unsigned state_after(const uint8_t *bytes, size_t bits)
{
    const size_t last = (bits - 1) / 8;
    const unsigned before = last ? bytes[last - 1] : 0;

    return (before << 8 | bytes[last]) >> (7 - (bits - 1) % 8) & (STATES - 1);
}
_Static_assert(KV_TRELLIS_BITS <= 9, "two bytes hold a state at any bit");

void kv_trellis_states(const struct kv_trellis_step *step, size_t n_steps,
                       const uint8_t *bytes, uint16_t *state)
{
    size_t bits = 0;

    for (size_t i = 0; i < n_steps; i++) {
        bits += step[i].bits;
        state[i] = (uint16_t)state_after(bytes, bits);
    }
}

void kv_trellis_decode(const struct kv_trellis_step *step, size_t n_steps,
                       const uint8_t *bytes, size_t stride, const float *scale,
                       size_t n, float *x, size_t x_stride,
                       const uint32_t *place)
{
    size_t bits = 0, value = 0;

    for (size_t i = 0; i < n_steps; i++) {
        bits += step[i].bits;
        for (size_t v = 0; v < step[i].values; v++, value++) {
            const float *const level = step[i].table + v * STATES;
            const float by = scale[value];
            float *const to = x + place[value];

            for (size_t s = 0; s < n; s++)
                to[s * x_stride] =
                    by * level[state_after(bytes + s * stride, bits)];
        }
    }
}

void kv_trellis_mirror(unsigned values, const float *half, float *table)
{
    for (size_t v = 0; v < values; v++, half += HALF, table += STATES)
        for (size_t s = 0; s < HALF; s++) {
            table[s] = half[s];
            table[HALF + s] = -half[s];
        }
}

/* ---- training ---------------------------------------------------------- */

/* The x below which a share p of the normal distribution lies. */
static double normal_quantile(double p)
{
    double low = -10, high = 10;

    for (int i = 0; i < 60; i++) {
        const double x = (low + high) / 2;

        if (erfc(-x * M_SQRT1_2) / 2 < p)
            low = x;
        else
            high = x;
    }
    return (low + high) / 2;
}

/* Normal quantiles in random order, each with either sign.  At high rates the
 * best levels are as dense as the cube root of the density, those of a normal
 * distribution sqrt(3) times as wide; at low rates as the values.  Training
 * alone widens them too slowly to get there. */
static void start_half(unsigned bits, unsigned values, uint64_t seed,
                       float *half)
{
    const double rate = (double)bits / values / KV_TRELLIS_MOST_BITS;
    const double width = pow(3, rate * rate / 2);

    for (unsigned v = 0; v < values; v++) {
        const uint64_t of_row = kv_mix(seed, v);
        float *row = half + v * HALF;

        for (size_t s = 0; s < HALF; s++) {
            const double x =
                width * normal_quantile(((double)s + 0.5) / STATES);

            row[s] = (float)(kv_random(~of_row, s) % 2 ? x : -x);
        }
        for (size_t s = HALF; s-- > 1;) {
            const size_t j = kv_random(of_row, s) % (s + 1);
            const float swap = row[s];

            row[s] = row[j];
            row[j] = swap;
        }
    }
}

/* Every state becomes the mean of the values it stood for, and of those that
 * its mirror image stood for, negated; the value it had counts as PRIOR of
 * them: a state that is hardly used stays near. */
static void improve(const struct kv_trellis_step *step, const float *x,
                    size_t n, size_t len, const uint16_t *state, float *half)
{
    enum { PRIOR = 4 };
    const size_t each = step->values, steps = len / each;
    double *sum = kv_alloc(each * HALF, sizeof(*sum));
    double *count = kv_alloc(HALF, sizeof(*count));

    for (size_t i = 0; i < n * steps; i++) {
        const size_t s = state[i] % HALF;

        count[s]++;
        for (size_t v = 0; v < each; v++)
            sum[v * HALF + s] +=
                (double)(state[i] < HALF ? x[i * each + v] : -x[i * each + v]);
    }
    for (size_t v = 0; v < each; v++)
        for (size_t s = 0; s < HALF; s++) {
            float *t = &half[v * HALF + s];

            *t = (float)((sum[v * HALF + s] + PRIOR * (double)*t) /
                         (count[s] + PRIOR));
        }
    free(count);
    free(sum);
}

/* Steps of one kind, each value in its place at a scale of 1. */
struct run {
    struct kv_trellis_step *step;
    float *one, *turned;
    uint32_t *place;
    size_t steps, len;
};

static struct run new_run(unsigned bits, unsigned values, const float *table,
                          size_t len)
{
    struct run r = {.steps = len / values, .len = len};

    r.step = kv_alloc(r.steps, sizeof(*r.step));
    r.one = kv_alloc(len, sizeof(*r.one));
    r.place = kv_alloc(len, sizeof(*r.place));
    r.turned = kv_alloc(KV_TRELLIS_ORDERS * values * STATES, sizeof(*r.turned));
    for (size_t i = 0; i < r.steps; i++)
        r.step[i] = (struct kv_trellis_step){bits, values, table, r.turned};
    for (size_t i = 0; i < len; i++) {
        r.one[i] = 1;
        r.place[i] = (uint32_t)i;
    }
    return r;
}

static void free_run(struct run *r)
{
    free(r->step);
    free(r->one);
    free(r->place);
    free(r->turned);
}

/* The states of n sequences on their best paths: [n][steps]. */
static void find_states(const struct run *r, const float *x, size_t n,
                        uint16_t *state)
{
    enum { AT_ONCE = 16 };
    const size_t size = kv_trellis_bytes(r->step, r->steps);

    kv_trellis_turn(r->step->bits, r->step->values, r->step->table, r->turned);
#pragma omp parallel
    {
        void *scratch =
            kv_lines_unset(kv_trellis_scratch(r->step, r->steps, AT_ONCE), 1);
        uint8_t *bytes = kv_alloc(AT_ONCE, size);

#pragma omp for schedule(static)
        for (size_t i = 0; i < n; i += AT_ONCE) {
            const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;

            kv_trellis_encode(r->step, r->steps, x + i * r->len, r->len,
                              r->place, r->one, m, scratch, bytes, size);
            for (size_t j = 0; j < m; j++)
                kv_trellis_states(r->step, r->steps, bytes + j * size,
                                  state + (i + j) * r->steps);
        }
        free(bytes);
        free(scratch);
    }
}

void kv_trellis_train(unsigned bits, unsigned values, const float *x, size_t n,
                      size_t len, size_t rounds, uint64_t seed, float *half)
{
    float *table = kv_alloc(values * STATES, sizeof(*table));
    struct run r = new_run(bits, values, table, len);
    uint16_t *state = kv_alloc(n, r.steps * sizeof(*state));

    start_half(bits, values, seed, half);
    for (size_t i = 0; i < rounds; i++) {
        const size_t some = i < rounds / 2 ? (n + 3) / 4 : n;

        kv_trellis_mirror(values, half, table);
        find_states(&r, x, some, state);
        improve(r.step, x, some, len, state, half);
    }
    free(state);
    free_run(&r);
    free(table);
}

double kv_trellis_error(unsigned bits, unsigned values, const float *half,
                        const float *x, size_t n, size_t len)
{
    float *table = kv_alloc(values * STATES, sizeof(*table));
    struct run r = new_run(bits, values, table, len);
    uint16_t *state = kv_alloc(n, r.steps * sizeof(*state));
    double sum = 0;

    kv_trellis_mirror(values, half, table);
    find_states(&r, x, n, state);
    for (size_t i = 0; i < n * len; i++) {
        const double e =
            (double)(x[i] - table[i % values * STATES + state[i / values]]);

        sum += e * e;
    }
    free(state);
    free_run(&r);
    free(table);
    return sum / (double)(n * len);
}
