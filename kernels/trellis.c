#include "kernels/trellis.h"
#include "kernels/level.h"
#include "kernels/trellis_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STATES = KV_TRELLIS_STATES,
    ROW = KV_TRELLIS_ROW,
    WORDS = KV_TRELLIS_WORDS,
    ALL_ROWS = KV_TRELLIS_TOGETHER * ROW,
    ALL_WORDS = KV_TRELLIS_TOGETHER * WORDS,
    END = 5 /* by so many high bits states are grouped after the last step */
};

/* The least cost of a path to this state (trellis_impl.h). */
static inline float cost(const struct kv_trellis_step *step, const float *x,
                         const float *scale, const float *least, size_t state)
{
    float error = 0;

    for (size_t v = 0; v < step->values; v++) {
        const float e = x[v] - scale[v] * step->table[v * STATES + state];

        error += e * e;
    }
    return least[state >> step->bits] + error;
}

void kv_trellis_advance_c(const struct kv_trellis_step *step, unsigned next,
                          size_t n, const float *x, size_t x_stride,
                          const float *scale, const float *least, float *to,
                          uint64_t *bit)
{
    const size_t groups = STATES >> next;

    memset(bit, 0, n * WORDS * sizeof(*bit));
    for (size_t i = 0; i < n; i++) {
        for (size_t r = 0; r < groups; r++)
            to[r] = INFINITY;
        for (size_t s = 0; s < STATES; s++) {
            const float c = cost(step, x, scale, least, s);

            if (c < to[s % groups]) {
                to[s % groups] = c;
                bit[s / 64] |= (uint64_t)1 << s % 64;
            }
        }
        x += x_stride;
        least += ROW;
        to += ROW;
        bit += WORDS;
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

/* What a search of KV_TRELLIS_TOGETHER strings writes down. */
struct notes {
    uint64_t (*bit)[ALL_WORDS]; /* [n_steps] */
    float *least[2];            /* before a step and after it, by turns */
    uint16_t *state;            /* [n_steps][n]: of the paths */
};

static struct notes notes_at(void *scratch, size_t n_steps)
{
    uint64_t(*bit)[ALL_WORDS] = scratch;
    float *least = (float *)(bit + n_steps);

    return (struct notes){
        .bit = bit,
        .least = {least, least + ALL_ROWS},
        .state = (uint16_t *)(least + 2 * (size_t)ALL_ROWS),
    };
}

size_t kv_trellis_scratch(size_t n_steps)
{
    return n_steps * (ALL_WORDS * sizeof(uint64_t) +
                      KV_TRELLIS_TOGETHER * sizeof(uint16_t)) +
           2 * ALL_ROWS * sizeof(float);
}

/* The state with the least cost, the lowest on ties, of what was found for the
 * groups by END high bits. */
static size_t last_state(const float *least, const uint64_t *bit)
{
    const size_t groups = STATES >> END;
    size_t best = STATES;
    float min = INFINITY;

    for (size_t r = 0; r < groups; r++) {
        const size_t s =
            least[r] <= min ? kv_trellis_last(bit, r, END) : STATES;

        if (least[r] < min || s < best) {
            min = least[r];
            best = s;
        }
    }
    return best;
}

/* The best paths of n strings, at most KV_TRELLIS_TOGETHER. */
static void find_paths(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, size_t x_stride, const float *scale,
                       size_t n, const struct notes *to)
{
    kv_trellis_advance *const advance = best_level();
    const float *end = to->least[n_steps % 2];

    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < (size_t)STATES >> step->bits; r++)
            to->least[0][i * ROW + r] = r ? INFINITY : 0;
    for (size_t k = 0; k < n_steps; k++) {
        advance(&step[k], k + 1 < n_steps ? step[k + 1].bits : END, n, x,
                x_stride, scale, to->least[k % 2], to->least[1 - k % 2],
                to->bit[k]);
        x += step[k].values;
        scale += step[k].values;
    }
    for (size_t i = 0; i < n; i++)
        to->state[(n_steps - 1) * n + i] = (uint16_t)last_state(
            end + i * ROW, to->bit[n_steps - 1] + i * WORDS);
    for (size_t k = n_steps - 1; k > 0; k--)
        for (size_t i = 0; i < n; i++) {
            const unsigned bits = step[k].bits;

            to->state[(k - 1) * n + i] = (uint16_t)kv_trellis_last(
                to->bit[k - 1] + i * WORDS,
                (size_t)to->state[k * n + i] >> bits, bits);
        }
}

/* The string of a path whose states are `every` apart. */
static void put_string(const struct kv_trellis_step *step, size_t n_steps,
                       const uint16_t *state, size_t every, uint8_t *bytes)
{
    unsigned window = 0, in = 0;

    for (size_t k = 0; k < n_steps; k++) {
        const unsigned bits = step[k].bits;

        window = window << bits | (state[k * every] & ((1u << bits) - 1));
        for (in += bits; in >= 8; in -= 8)
            *bytes++ = (uint8_t)(window >> (in - 8));
    }
    if (in)
        *bytes = (uint8_t)(window << (8 - in));
}

static size_t count_values(const struct kv_trellis_step *step, size_t n_steps)
{
    size_t values = 0;

    for (size_t k = 0; k < n_steps; k++)
        values += step[k].values;
    return values;
}

void kv_trellis_encode(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, const float *scale, size_t n,
                       void *scratch, uint8_t *bytes, size_t stride)
{
    const size_t len = count_values(step, n_steps);
    const struct notes notes = notes_at(scratch, n_steps);

    for (size_t i = 0; n_steps && i < n; i += KV_TRELLIS_TOGETHER) {
        const size_t m =
            n - i < KV_TRELLIS_TOGETHER ? n - i : KV_TRELLIS_TOGETHER;

        find_paths(step, n_steps, x + i * len, len, scale, m, &notes);
        for (size_t j = 0; j < m; j++)
            put_string(step, n_steps, notes.state + j, m,
                       bytes + (i + j) * stride);
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

/* Normal quantiles in random order.  At high rates the best levels are as dense
 * as the cube root of the density, those of a normal distribution sqrt(3) times
 * as wide; at low rates as the values.  Training alone widens them too slowly
 * to get there. */
static void start_table(unsigned bits, unsigned values, uint64_t seed,
                        float *table)
{
    const double rate = (double)bits / values / KV_TRELLIS_MOST_BITS;
    const double width = pow(3, rate * rate / 2);

    for (unsigned v = 0; v < values; v++) {
        float *row = table + v * STATES;

        for (size_t s = 0; s < STATES; s++)
            row[s] =
                (float)(width * normal_quantile(((double)s + 0.5) / STATES));
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
    const size_t size = kv_trellis_bytes(r->step, r->steps);

#pragma omp parallel
    {
        void *scratch = kv_lines(kv_trellis_scratch(r->steps), 1);
        uint8_t *bytes = kv_alloc(KV_TRELLIS_TOGETHER, size);

#pragma omp for schedule(static)
        for (size_t i = 0; i < n; i += KV_TRELLIS_TOGETHER) {
            const size_t m =
                n - i < KV_TRELLIS_TOGETHER ? n - i : KV_TRELLIS_TOGETHER;

            kv_trellis_encode(r->step, r->steps, x + i * r->len, r->one, m,
                              scratch, bytes, size);
            for (size_t j = 0; j < m; j++)
                kv_trellis_states(r->step, r->steps, bytes + j * size,
                                  state + (i + j) * r->steps);
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

    start_table(bits, values, seed, table);
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
