#include "kernels/trellis/trellis.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = KV_TRELLIS_STATES };

static size_t bitstream_bits(const struct kv_trellis_transition *transition,
                             size_t n_transitions)
{
    size_t bits = 0;

    for (size_t i = 0; i < n_transitions; i++)
        bits += transition[i].bits;
    return bits;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* The largest gap between neighbours among n numbers. */
static float widest_gap(const float *x, size_t n)
{
    float sorted[STATES], gap = 0;

    memcpy(sorted, x, n * sizeof(*x));
    qsort(sorted, n, sizeof(*sorted), by_size);
    for (size_t i = 1; i < n; i++)
        gap = fmaxf(gap, sorted[i] - sorted[i - 1]);
    return gap;
}

struct kv_trellis_transition kv_trellis_transition(unsigned bits,
                                                   unsigned values,
                                                   const float *table,
                                                   bool folded)
{
    const size_t n = values * (size_t)STATES;
    double squares = 0;
    struct kv_trellis_transition transition = {
        .bits = bits, .values = values, .table = table, .folded = folded};

    for (size_t i = 0; i < n; i++) {
        squares += (double)table[i] * (double)table[i];
        transition.reach = fmaxf(transition.reach, fabsf(table[i]));
    }
    for (size_t i = 0; i < n; i += STATES)
        transition.gap = fmaxf(transition.gap, widest_gap(table + i, STATES));
    transition.error =
        squares / (double)n * exp2(-2 * (double)bits / (double)values);
    return transition;
}

size_t kv_trellis_bytes(const struct kv_trellis_transition *transition,
                        size_t n_transitions)
{
    return (bitstream_bits(transition, n_transitions) + 7) / 8;
}

/* The state after `bits` bits of the bitstream: their last KV_TRELLIS_BITS. */
static unsigned state_after(const uint8_t *bytes, size_t bits)
{
    const size_t last = (bits - 1) / 8;
    const unsigned before = last ? bytes[last - 1] : 0;

    return (before << 8 | bytes[last]) >> (7 - (bits - 1) % 8) & (STATES - 1);
}
_Static_assert(KV_TRELLIS_BITS <= 9, "two bytes hold a state at any bit");

void kv_trellis_states(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const uint8_t *bytes,
                       uint16_t *state)
{
    size_t bits = 0;

    for (size_t i = 0; i < n_transitions; i++) {
        bits += transition[i].bits;
        state[i] = (uint16_t)state_after(bytes, bits);
    }
}

void kv_trellis_decode(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const uint8_t *bytes,
                       size_t stride, const float *scale, size_t n, float *x,
                       size_t x_stride, const uint32_t *place)
{
    enum { AT_ONCE = 16 };

    for (size_t first = 0; n_transitions && first < n; first += AT_ONCE) {
        const size_t m = n - first < AT_ONCE ? n - first : AT_ONCE;
        size_t bits = 0, value = 0;

        for (size_t i = 0; i < n_transitions; i++) {
            unsigned state[AT_ONCE];

            bits += transition[i].bits;
            for (size_t s = 0; s < m; s++)
                state[s] = state_after(bytes + s * stride, bits);
            for (size_t v = 0; v < transition[i].values; v++, value++) {
                const float *const number = transition[i].table + v * STATES;
                const float by = scale[value];
                float *const to = x + place[value];

                for (size_t s = 0; s < m; s++)
                    to[s * x_stride] = by * number[state[s]];
            }
        }
        bytes += m * stride;
        x += m * x_stride;
    }
}

/* ---- maps ---------------------------------------------------------------- */

const struct kv_trellis_map *kv_trellis_last_bits(unsigned bits)
{
    static const struct kv_trellis_map maps[] = {
        {1, {1}},
        {2, {1, 2}},
        {3, {1, 2, 4}},
        {4, {1, 2, 4, 8}},
        {5, {1, 2, 4, 8, 16}},
        {6, {1, 2, 4, 8, 16, 32}},
        {7, {1, 2, 4, 8, 16, 32, 64}},
        {8, {1, 2, 4, 8, 16, 32, 64, 128}}};

    return &maps[bits - 1];
}

/* of: the low bits, and the sign. */
const struct kv_trellis_map *kv_trellis_map(unsigned bits, unsigned values)
{
    static const struct kv_trellis_map narrow = {
        7, {0x081, 0x002, 0x004, 0x048, 0x050, 0x020, 0x180}};
    static const struct kv_trellis_map pairs = {
        7, {0x081, 0x0c2, 0x044, 0x088, 0x010, 0x020, 0x180}};
    static const struct kv_trellis_map wide = {
        8, {0x001, 0x082, 0x004, 0x008, 0x010, 0x020, 0x040, 0x180}};

    if (bits > KV_TRELLIS_NARROW)
        return &wide;
    return bits > 3 && values > 1 ? &pairs : &narrow;
}

size_t kv_trellis_kept(unsigned bits)
{
    return (size_t)1 << (kv_trellis_map(bits, 1)->bits - 1);
}

/* The index of a state's number among the kept numbers. */
struct folded {
    size_t at;
    bool negated;
};

static struct folded fold(unsigned bits, unsigned values, unsigned state)
{
    const size_t kept = kv_trellis_kept(bits);
    const size_t entry = kv_trellis_entry(kv_trellis_map(bits, values), state);

    return (struct folded){entry % kept, entry >= kept};
}

void kv_trellis_unfold(unsigned bits, unsigned values, const float *kept,
                       float *table)
{
    for (size_t v = 0; v < values; v++, kept += kv_trellis_kept(bits))
        for (unsigned s = 0; s < STATES; s++) {
            const struct folded f = fold(bits, values, s);

            *table++ = f.negated ? -kept[f.at] : kept[f.at];
        }
}

/* ---- training ---------------------------------------------------------- */

enum { QUANTILES = 1024, ENOUGH = 1 << 16 };

/* Quantiles [QUANTILES + 1] of the sizes of n values, from at most ENOUGH of
 * them. */
static void find_quantiles(const float *x, size_t n, float *quantile)
{
    const size_t apart = (n + ENOUGH - 1) / ENOUGH;
    const size_t m = (n + apart - 1) / apart;
    float *size = kv_alloc(m, sizeof(*size));

    for (size_t i = 0; i < m; i++)
        size[i] = fabsf(x[i * apart]);
    qsort(size, m, sizeof(*size), by_size);
    for (size_t i = 0; i <= QUANTILES; i++)
        quantile[i] = size[i * (m - 1) / QUANTILES];
    free(size);
}

/* Chooses n sizes as dense as f^power, where f is the density of the sizes that
 * have these quantiles.  Quantiles are 1 / f apart, so that from one to the
 * next the integral of f^power grows as their distance to the power of 1 -
 * power does.  A size that many values share counts as one. */
static void spread(const float *quantile, double power, size_t n, float *size)
{
    double grows[QUANTILES], all = 0, sum = 0;
    size_t at = 0;

    for (size_t i = 0; i < QUANTILES; i++)
        all += grows[i] =
            pow((double)(quantile[i + 1] - quantile[i]), 1 - power);
    for (size_t i = 0; i < n; i++) {
        const double want = all * ((double)i + 0.5) / (double)n;

        while (at < QUANTILES - 1 && sum + grows[at] < want)
            sum += grows[at++];

        const double share = all > 0 ? (want - sum) / grows[at] : 0;

        size[i] = (float)((double)quantile[at] * (1 - share) +
                          (double)quantile[at + 1] * share);
    }
}

/* Starts with numbers of either sign, in random order.  At high rates the best
 * numbers are as dense as the cube root of the values' density, at low rates as
 * the values.  Training alone spreads them too slowly to get there. */
static void start(unsigned bits, unsigned values, const float *x, size_t n_x,
                  uint64_t seed, float *kept)
{
    const double rate = (double)bits / values / KV_TRELLIS_MAX_BITS;
    const size_t n = kv_trellis_kept(bits);
    float quantile[QUANTILES + 1], size[KV_TRELLIS_ENTRIES / 2];

    find_quantiles(x, n_x, quantile);
    spread(quantile, pow(3, -rate), n, size);
    for (unsigned v = 0; v < values; v++, kept += n) {
        const uint64_t of_row = kv_mix(seed, v);

        for (size_t i = 0; i < n; i++)
            kept[i] = kv_random(~of_row, i) % 2 ? size[i] : -size[i];
        for (size_t i = n; i-- > 1;) {
            const size_t j = kv_random(of_row, i) % (i + 1);
            const float swap = kept[i];

            kept[i] = kept[j];
            kept[j] = swap;
        }
    }
}

/* Every number becomes the mean of the values it stood for; a value that it
 * stood for with the other sign enters negated.  Its old value counts as PRIOR
 * of these values, so that a number that is hardly used stays near. */
static void improve(const struct kv_trellis_transition *transition,
                    const float *x, size_t n, size_t len, const uint16_t *state,
                    float *kept)
{
    enum { PRIOR = 4 };
    const size_t each = transition->values, transitions = len / each;
    const size_t size = kv_trellis_kept(transition->bits);
    double *sum = kv_alloc(each * size, sizeof(*sum));
    double *count = kv_alloc(size, sizeof(*count));
    struct folded of[STATES];

    for (unsigned s = 0; s < STATES; s++)
        of[s] = fold(transition->bits, transition->values, s);
    for (size_t i = 0; i < n * transitions; i++) {
        const struct folded f = of[state[i]];

        count[f.at]++;
        for (size_t v = 0; v < each; v++)
            sum[v * size + f.at] +=
                (double)(f.negated ? -x[i * each + v] : x[i * each + v]);
    }
    for (size_t i = 0; i < each * size; i++)
        kept[i] = (float)((sum[i] + PRIOR * (double)kept[i]) /
                          (count[i % size] + PRIOR));
    free(count);
    free(sum);
}

/* Transitions of one kind, with each value at its own index and a scale of
 * 1. */
struct run {
    struct kv_trellis_transition *transition;
    struct kv_trellis_whole *whole;
    float *one;
    uint32_t *place;
    size_t transitions, len;
};

static struct run new_run(size_t values, size_t len)
{
    struct run r = {.transitions = len / values, .len = len};

    r.transition = kv_alloc(r.transitions, sizeof(*r.transition));
    r.whole = kv_alloc(len, sizeof(*r.whole));
    r.one = kv_alloc(len, sizeof(*r.one));
    r.place = kv_alloc(len, sizeof(*r.place));
    for (size_t i = 0; i < len; i++) {
        r.one[i] = 1;
        r.place[i] = (uint32_t)i;
    }
    return r;
}

static void free_run(struct run *r)
{
    free(r->transition);
    free(r->whole);
    free(r->one);
    free(r->place);
}

/* Sets all transitions to a stored table, which is unfolded to `table`. */
static void set_table(struct run *r, unsigned bits, unsigned values,
                      const float *kept, float *table)
{
    kv_trellis_unfold(bits, values, kept, table);
    r->transition[0] = kv_trellis_transition(bits, values, table, true);
    for (size_t i = 1; i < r->transitions; i++)
        r->transition[i] = r->transition[0];
    kv_trellis_count(r->transition, r->transitions, r->one, r->whole);
}

/* The states of n sequences on their best paths: [n][transitions]. */
static void find_states(const struct run *r, const float *x, size_t n,
                        uint16_t *state)
{
    enum { AT_ONCE = 16 };
    const size_t size = kv_trellis_bytes(r->transition, r->transitions);

#pragma omp parallel
    {
        void *workspace = kv_lines_unset(
            kv_trellis_workspace(r->transition, r->transitions, AT_ONCE), 1);
        uint8_t *bytes = kv_alloc(AT_ONCE, size);

#pragma omp for schedule(static)
        for (size_t i = 0; i < n; i += AT_ONCE) {
            const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;

            kv_trellis_encode(r->transition, r->transitions, x + i * r->len,
                              r->len, r->place, r->whole, m, workspace, bytes,
                              size);
            for (size_t j = 0; j < m; j++)
                kv_trellis_states(r->transition, r->transitions,
                                  bytes + j * size,
                                  state + (i + j) * r->transitions);
        }
        free(bytes);
        free(workspace);
    }
}

void kv_trellis_train(unsigned bits, unsigned values, const float *x, size_t n,
                      size_t len, size_t rounds, uint64_t seed, float *kept)
{
    float *table = kv_alloc(values * STATES, sizeof(*table));
    struct run r = new_run(values, len);
    uint16_t *state = kv_alloc(n, r.transitions * sizeof(*state));

    start(bits, values, x, n * len, seed, kept);
    for (size_t i = 0; i < rounds; i++) {
        const size_t some = i < rounds / 2 ? (n + 3) / 4 : n;

        set_table(&r, bits, values, kept, table);
        find_states(&r, x, some, state);
        improve(r.transition, x, some, len, state, kept);
    }
    free(state);
    free_run(&r);
    free(table);
}

double kv_trellis_error(unsigned bits, unsigned values, const float *kept,
                        const float *x, size_t n, size_t len)
{
    float *table = kv_alloc(values * STATES, sizeof(*table));
    struct run r = new_run(values, len);
    uint16_t *state = kv_alloc(n, r.transitions * sizeof(*state));
    double sum = 0;

    set_table(&r, bits, values, kept, table);
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
