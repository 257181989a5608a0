#include "kernels/trellis.h"
#include "kernels/level.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>

#define LANES 8
#define NAME(f) f##_c
#include "kernels/trellis_loops.h"

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

static size_t string_bits(const struct kv_trellis_step *step, size_t n_steps)
{
    size_t bits = 0;

    for (size_t i = 0; i < n_steps; i++)
        bits += step[i].bits;
    return bits;
}

size_t kv_trellis_bytes(const struct kv_trellis_step *step, size_t n_steps)
{
    return (string_bits(step, n_steps) + 7) / 8;
}

size_t kv_trellis_scratch(size_t n_steps)
{
    return n_steps * (STATES / 2);
}

/* Writes the low `bits` bits of u so that they end before bit `end`. */
static void put_bits(uint8_t *bytes, size_t end, unsigned u, unsigned bits)
{
    for (unsigned i = 0; i < bits; i++) {
        const size_t at = end - 1 - i;

        bytes[at / 8] |= (uint8_t)((u >> i & 1) << (7 - at % 8));
    }
}

void kv_trellis_encode(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, const float *scale, void *scratch,
                       uint8_t *bytes)
{
    kv_trellis_advance *const advance_best = best_level();
    uint8_t *back = scratch;
    float cost[KV_TRELLIS_STATES];
    size_t end = string_bits(step, n_steps);
    unsigned s = 0;

    for (size_t i = 0; i < STATES; i++)
        cost[i] = i ? INFINITY : 0;
    for (size_t i = 0; i < n_steps; i++) {
        advance_best(&step[i], x, scale, cost, back + i * (STATES / 2));
        x += step[i].values;
        scale += step[i].values;
    }
    for (unsigned i = 1; i < STATES; i++)
        if (cost[i] < cost[s])
            s = i;
    memset(bytes, 0, (end + 7) / 8);
    for (size_t i = n_steps; i-- > 0;) {
        const unsigned bits = step[i].bits;
        const unsigned rest = s >> bits;

        put_bits(bytes, end, s, bits);
        end -= bits;
        s = (unsigned)back[i * (STATES / 2) + rest]
                << (KV_TRELLIS_BITS - bits) |
            rest;
    }
}

/* The next `bits` bits of the string, which begin at bit `at`. */
static unsigned get_bits(const uint8_t *bytes, size_t at, unsigned bits)
{
    const size_t last = at + bits - 1;
    unsigned two = (unsigned)bytes[at / 8] << 8;

    if (last / 8 > at / 8)
        two |= bytes[last / 8];
    return two >> (16 - at % 8 - bits) & ((1u << bits) - 1);
}

void kv_trellis_states(const struct kv_trellis_step *step, size_t n_steps,
                       const uint8_t *bytes, uint16_t *state)
{
    unsigned s = 0;
    size_t at = 0;

    for (size_t i = 0; i < n_steps; i++) {
        s = (s << step[i].bits | get_bits(bytes, at, step[i].bits)) &
            (STATES - 1);
        at += step[i].bits;
        state[i] = (uint16_t)s;
    }
}

void kv_trellis_decode(const struct kv_trellis_step *step, size_t n_steps,
                       const uint8_t *bytes, const float *scale, float *x)
{
    unsigned s = 0;
    size_t at = 0;

    for (size_t i = 0; i < n_steps; i++) {
        s = (s << step[i].bits | get_bits(bytes, at, step[i].bits)) &
            (STATES - 1);
        at += step[i].bits;
        for (unsigned v = 0; v < step[i].values; v++)
            *x++ = *scale++ * step[i].table[v * STATES + s];
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

static void start_table(unsigned values, uint64_t seed, float *table)
{
    for (unsigned v = 0; v < values; v++) {
        float *row = table + v * STATES;

        for (size_t s = 0; s < STATES; s++)
            row[s] = (float)normal_quantile(((double)s + 0.5) / STATES);
        for (size_t s = STATES; s-- > 1;) {
            const size_t j = kv_random(kv_mix(seed, v), s) % (s + 1);
            const float swap = row[s];

            row[s] = row[j];
            row[j] = swap;
        }
    }
}

/* Every state becomes the mean of the values it stood for, the value it had
 * counting as PRIOR of them: a state that is hardly used stays near. */
static void improve(const struct kv_trellis_step *step, const float *x,
                    size_t n, size_t len, const uint16_t *state, float *table)
{
    enum { PRIOR = 2 };
    const size_t each = step->values, steps = len / each;
    double *sum = kv_alloc(each * STATES, sizeof(*sum));
    double *count = kv_alloc(STATES, sizeof(*count));

    for (size_t i = 0; i < n * steps; i++) {
        count[state[i]]++;
        for (size_t v = 0; v < each; v++)
            sum[v * STATES + state[i]] += (double)x[i * each + v];
    }
    for (size_t v = 0; v < each; v++)
        for (size_t s = 0; s < STATES; s++) {
            float *t = &table[v * STATES + s];

            *t = (float)((sum[v * STATES + s] + PRIOR * (double)*t) /
                         (count[s] + PRIOR));
        }
    free(count);
    free(sum);
}

/* Steps of one kind, and a scale of 1 for each value. */
struct run {
    struct kv_trellis_step *step;
    float *one;
    size_t steps, len;
};

static struct run new_run(unsigned bits, unsigned values, const float *table,
                          size_t len)
{
    struct run r = {.steps = len / values, .len = len};

    r.step = kv_alloc(r.steps, sizeof(*r.step));
    r.one = kv_alloc(len, sizeof(*r.one));
    for (size_t i = 0; i < r.steps; i++)
        r.step[i] = (struct kv_trellis_step){bits, values, table};
    for (size_t i = 0; i < len; i++)
        r.one[i] = 1;
    return r;
}

static void free_run(struct run *r)
{
    free(r->step);
    free(r->one);
}

/* The states of n sequences on their best paths: [n][steps]. */
static void find_states(const struct run *r, const float *x, size_t n,
                        uint16_t *state)
{
#pragma omp parallel
    {
        void *scratch = kv_alloc(kv_trellis_scratch(r->steps), 1);
        uint8_t *bytes = kv_alloc(kv_trellis_bytes(r->step, r->steps), 1);

#pragma omp for schedule(static)
        for (size_t i = 0; i < n; i++) {
            kv_trellis_encode(r->step, r->steps, x + i * r->len, r->one,
                              scratch, bytes);
            kv_trellis_states(r->step, r->steps, bytes, state + i * r->steps);
        }
        free(bytes);
        free(scratch);
    }
}

void kv_trellis_train(unsigned bits, unsigned values, const float *x, size_t n,
                      size_t len, size_t rounds, uint64_t seed, float *table)
{
    struct run r = new_run(bits, values, table, len);
    uint16_t *state = kv_alloc(n, r.steps * sizeof(*state));

    start_table(values, seed, table);
    for (size_t i = 0; i < rounds; i++) {
        const size_t some = i < rounds / 2 ? (n + 3) / 4 : n;

        find_states(&r, x, some, state);
        improve(r.step, x, some, len, state, table);
    }
    free(state);
    free_run(&r);
}

double kv_trellis_error(unsigned bits, unsigned values, const float *table,
                        const float *x, size_t n, size_t len)
{
    struct run r = new_run(bits, values, table, len);
    uint16_t *state = kv_alloc(n, r.steps * sizeof(*state));
    double sum = 0;

    find_states(&r, x, n, state);
    for (size_t i = 0; i < n * len; i++) {
        const double e =
            (double)(x[i] - table[i % values * STATES + state[i / values]]);

        sum += e * e;
    }
    free(state);
    free_run(&r);
    return sum / (double)(n * len);
}
