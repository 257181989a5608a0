/* Trellis-coded quantization against a search of every path, and what training
 * reaches against Marcellin and Fischer's figures and the Gaussian bound. */
#include "tests/test.h"
#include "tests/trellis_setup.h"

/* Without values 0, left_out, 2 left_out, .. */
static double distance_but(const struct setup *s, const uint8_t *bytes,
                           size_t left_out)
{
    float got[MAX_TRANSITIONS * 4];
    double sum = 0;

    kv_trellis_decode(s->transition, s->n_transitions, bytes, 0, s->scale, 1,
                      got, 0, s->place);
    for (size_t i = 0; i < s->n_values; i++)
        if (!left_out || i % left_out)
            sum += (double)(s->x[i] - got[i]) * (double)(s->x[i] - got[i]);
    return sum;
}

static double distance(const struct setup *s, const uint8_t *bytes)
{
    return distance_but(s, bytes, 0);
}

static void encode_one(const struct setup *s, uint8_t *bytes)
{
    void *workspace =
        malloc(kv_trellis_workspace(s->transition, s->n_transitions, 1));

    kv_trellis_encode(s->transition, s->n_transitions, s->x, 0, s->place,
                      s->whole, 1, workspace, bytes, 0);
    free(workspace);
}

/* The mean error of a value. */
static double expected_error(const struct setup *s)
{
    double sum = 0;
    size_t at = 0;

    for (size_t k = 0; k < s->n_transitions; k++)
        for (unsigned v = 0; v < s->transition[k].values; v++, at++)
            sum += s->transition[k].error * pow((double)s->scale[at], 2);
    return sum / (double)s->n_values;
}

/* Compared with every bitstream of up to 14 bits: a value's cost is rounded to
 * a quarter of the expected error. */
static void test_finds_the_best_path(void **state)
{
    size_t found = 0;

    (void)state;
    for (size_t skip = 0; skip < KINDS; skip++) {
        struct setup s;
        uint8_t bytes[8], other[8];
        size_t bits = 0, n = 0;
        double best = INFINITY;

        for (; bits + kinds[(n + skip) % KINDS].bits <= 14; n++)
            bits += kinds[(n + skip) % KINDS].bits;
        set_up(&s, n, skip, 1, 10 * skip, FILLED);
        for (size_t i = 0; i < s.n_values; i++)
            s.x[i] /= 2;
        encode_one(&s, bytes);
        for (unsigned u = 0; u < 1u << bits; u++) {
            for (size_t i = 0; i < 2; i++)
                other[i] = (uint8_t)((u << (16 - bits)) >> (8 - 8 * i));
            best = fmin(best, distance(&s, other));
        }
        assert_true(distance(&s, bytes) <=
                    best + 0.25 * expected_error(&s) * (double)s.n_values);
        found += distance(&s, bytes) <= best * (1 + 1e-6);
        tear_down(&s);
    }
    assert_true(found >= KINDS * 3 / 4);
}

/* The least distance of any bitstream, from a search in f64. */
static double min_distance(const struct setup *s)
{
    enum { STATES = KV_TRELLIS_STATES };
    double cost[2][STATES] = {{0}};
    size_t at = 0;

    for (size_t i = 1; i < STATES; i++)
        cost[0][i] = INFINITY;
    for (size_t k = 0; k < s->n_transitions; at += s->transition[k++].values) {
        const struct kv_trellis_transition *transition = &s->transition[k];
        const double *before = cost[k % 2];
        double *after = cost[1 - k % 2];

        for (size_t i = 0; i < STATES; i++) {
            after[i] = INFINITY;
            for (size_t high = 0; high < (size_t)1 << transition->bits; high++)
                after[i] =
                    fmin(after[i],
                         before[high << (KV_TRELLIS_BITS - transition->bits) |
                                i >> transition->bits]);
            for (size_t v = 0; v < transition->values; v++)
                after[i] += pow((double)(s->x[s->place[at + v]] -
                                         s->scale[at + v] *
                                             transition->table[v * STATES + i]),
                                2);
        }
    }
    for (size_t i = 1; i < STATES; i++)
        cost[s->n_transitions % 2][0] =
            fmin(cost[s->n_transitions % 2][0], cost[s->n_transitions % 2][i]);
    return cost[s->n_transitions % 2][0];
}

/* Long bitstreams, of transitions of one kind and of all. */
static void test_finds_nearly_the_best_path(void **state)
{
    double worse = 0;

    (void)state;
    for (size_t skip = 0; skip < KINDS; skip++)
        for (size_t often = 1; often <= MAX_TRANSITIONS;
             often += MAX_TRANSITIONS - 1) {
            uint8_t bytes[4 * MAX_TRANSITIONS];
            struct setup s;

            set_up(&s, MAX_TRANSITIONS, skip, often, 3 * skip, FILLED);
            for (size_t i = 0; i < s.n_values; i++)
                s.x[i] /= 2;
            encode_one(&s, bytes);
            assert_true(distance(&s, bytes) <= min_distance(&s) * 1.025);
            worse += distance(&s, bytes) / min_distance(&s) - 1;
            tear_down(&s);
        }
    assert_true(worse <= 0.0025 * 2 * KINDS);
}

/* Values far out of the tables' reach do not blind the search to the others,
 * some of which have to share a transition with them. */
static void test_far_values(void **state)
{
    (void)state;
    for (size_t skip = 0; skip < KINDS; skip++)
        for (size_t every = 2; every <= 32; every *= 4) {
            uint8_t bytes[4 * MAX_TRANSITIONS];
            struct setup s;
            double min, near;

            set_up(&s, MAX_TRANSITIONS, skip, 1, 3 * skip, ORDINARY);
            encode_one(&s, bytes);
            near = distance_but(&s, bytes, every);
            for (size_t i = 0; i < s.n_values; i += every)
                s.x[i] *= 30;
            min = min_distance(&s);
            encode_one(&s, bytes);
            assert_true(distance(&s, bytes) <= min * 1.06);
            assert_true(distance_but(&s, bytes, every) <= near * 3);
            tear_down(&s);
        }
}

/* If all numbers are far away, the search still finds one that is near enough:
 * random levels of 8 bits with wide gaps, and values beyond most of them.
 * Otherwise the result would be arbitrary (up to 9 times the least
 * distance). */
static void test_wide_gaps(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint8_t bytes[4 * MAX_TRANSITIONS];
        struct setup s;

        set_up(&s, MAX_TRANSITIONS, 18, MAX_TRANSITIONS, seed, ORDINARY);
        encode_one(&s, bytes);
        assert_true(distance(&s, bytes) <= min_distance(&s) * 2);
        tear_down(&s);
    }
}

/* Now and then a value between one level of 5 bits and all others, far from
 * each: the nearer is found. */
static void test_between_levels(void **state)
{
    enum { KIND = 16, FAR = 8 };

    (void)state;
    for (int transpose = 0; transpose < 2; transpose++) {
        uint8_t bytes[4 * MAX_TRANSITIONS];
        const float x = transpose ? 5.6f : 4.9f;
        struct setup s;

        set_up(&s, MAX_TRANSITIONS, KIND, MAX_TRANSITIONS, 1, ORDINARY);
        for (size_t i = 0; i < KV_TRELLIS_STATES; i++)
            s.table[KIND][i] = i % 32 ? fminf(s.table[KIND][i], 2.5f) : FAR;
        for (size_t i = 0; i < MAX_TRANSITIONS; i++) {
            s.transition[i] = kv_trellis_transition(5, 1, s.table[KIND], false);
            s.scale[i] = 1;
            s.x[i] = i % 8 == 3 ? x : s.x[i] / 2;
        }
        kv_trellis_count(s.transition, s.n_transitions, s.scale, s.whole);
        encode_one(&s, bytes);
        assert_true(distance(&s, bytes) <= min_distance(&s) * 1.005);
        tear_down(&s);
    }
}

/* Values twice as large as those trained on: few numbers of 6 bits are near, of
 * one state hardly any (1.66 times the least distance if far ones cost the
 * same). */
static void test_larger_values(void **state)
{
    enum { N = 400, LEN = 128 };
    const unsigned bits = 6;
    float *x = kv_alloc(N * LEN, sizeof(*x)), kept[KV_TRELLIS_ENTRIES / 2];
    float table[KV_TRELLIS_STATES];
    double found = 0, min = 0;

    (void)state;
    for (size_t i = 0; i < N * LEN; i++)
        x[i] = (float)kv_random_normal(3, i);
    kv_trellis_train(bits, 1, x, N, LEN, 8, 1, kept);
    kv_trellis_unfold(bits, 1, kept, table);
    for (uint64_t seed = 0; seed < (SANITIZED ? 20 : 200); seed++) {
        struct setup s = {.n_transitions = MAX_TRANSITIONS,
                          .n_values = MAX_TRANSITIONS};
        uint8_t bytes[MAX_TRANSITIONS];

        for (size_t i = 0; i < MAX_TRANSITIONS; i++) {
            s.transition[i] = kv_trellis_transition(bits, 1, table, true);
            s.scale[i] = 1;
            s.place[i] = (uint32_t)i;
            s.x[i] = 2 * (float)kv_random_normal(seed + 10, i);
        }
        kv_trellis_count(s.transition, s.n_transitions, s.scale, s.whole);
        encode_one(&s, bytes);
        found += distance(&s, bytes);
        min += min_distance(&s);
    }
    assert_true(found <= min * 1.1);
    free(x);
}

/* One value, the last, of which far more error is expected than of all others,
 * as where 8 bits are too few for it, does not blind the search to them. */
static void test_one_large_value(void **state)
{
    enum { LARGE = 9, OTHERS = 8 }; /* kinds, of 8 and 5 bits */
    double before = 0, after = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint8_t bytes[4 * MAX_TRANSITIONS];
        struct setup s;

        set_up(&s, MAX_TRANSITIONS, OTHERS, MAX_TRANSITIONS, seed, ORDINARY);
        s.transition[MAX_TRANSITIONS - 1] =
            kv_trellis_transition(8, 1, s.table[LARGE], true);
        for (size_t i = 0; i < s.n_values; i++)
            s.x[i] /= 2;
        kv_trellis_count(s.transition, s.n_transitions, s.scale, s.whole);
        encode_one(&s, bytes);
        before += distance_but(&s, bytes, s.n_values);
        s.scale[MAX_TRANSITIONS - 1] *= 8 * 64;
        s.x[0] *= 8 * 64;
        kv_trellis_count(s.transition, s.n_transitions, s.scale, s.whole);
        encode_one(&s, bytes);
        after += distance_but(&s, bytes, s.n_values);
        tear_down(&s);
    }
    assert_true(after <= before * 1.05);
}

/* Several bitstreams at once are decoded as each by itself. */
static void test_decodes_several(void **state)
{
    enum { STRINGS = 35, BYTES = 4 * MAX_TRANSITIONS };
    uint8_t bytes[STRINGS * BYTES];
    float all[STRINGS * MAX_TRANSITIONS * 4], one[MAX_TRANSITIONS * 4];
    struct setup s;

    (void)state;
    set_up(&s, MAX_TRANSITIONS, 0, 1, 1, ORDINARY);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)kv_random(5, i);
    for (size_t n = 0; n <= STRINGS; n++) {
        kv_trellis_decode(s.transition, s.n_transitions, bytes, BYTES, s.scale,
                          n, all, s.n_values, s.place);
        for (size_t i = 0; i < n; i++) {
            kv_trellis_decode(s.transition, s.n_transitions, bytes + i * BYTES,
                              0, s.scale, 1, one, 0, s.place);
            assert_memory_equal(all + i * s.n_values, one,
                                s.n_values * sizeof(*one));
        }
    }
    tear_down(&s);
}

/* No byte past a bitstream's end is written, or read by the decoder. */
static void test_no_steps_and_ends(void **state)
{
    struct setup s;
    uint8_t *bytes;
    void *workspace;
    float none;
    double was;

    (void)state;
    kv_trellis_encode(NULL, 0, NULL, 0, NULL, NULL, 1, NULL, &(uint8_t){0}, 1);
    kv_trellis_decode(NULL, 0, NULL, 0, NULL, 1, &none, 0, NULL);
    assert_int_equal(kv_trellis_bytes(NULL, 0), 0);
    for (size_t n = 1; n <= KINDS; n++) {
        set_up(&s, n, 3, 1, n, ORDINARY);
        workspace = malloc(kv_trellis_workspace(s.transition, n, 1));
        bytes = malloc(kv_trellis_bytes(s.transition, n) + 1);
        bytes[kv_trellis_bytes(s.transition, n)] = 0x5a;
        kv_trellis_encode(s.transition, n, s.x, 0, s.place, s.whole, 1,
                          workspace, bytes, 0);
        assert_int_equal(bytes[kv_trellis_bytes(s.transition, n)], 0x5a);
        was = distance(&s, bytes);
        bytes[kv_trellis_bytes(s.transition, n)] = 0xa5;
        assert_true(distance(&s, bytes) == was);
        free(bytes);
        free(workspace);
        tear_down(&s);
    }
}

/* Of each value by itself: a state has the number of its entry, the entries of
 * the second half those of the first one, negated; as many states have one
 * entry as another, and those that differ in the bits of a transition alone
 * never do.
 */
static void check_unfold(unsigned values)
{
    float kept[3 * KV_TRELLIS_ENTRIES / 2], table[3 * KV_TRELLIS_STATES];

    for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++)
        kept[i] = (float)kv_random_normal(1, i);
    for (unsigned bits = 1; bits <= KV_TRELLIS_MAX_BITS; bits++) {
        const struct kv_trellis_map *map = kv_trellis_map(bits, values);
        const size_t n = kv_trellis_kept(bits);
        size_t states[KV_TRELLIS_ENTRIES] = {0};

        for (unsigned s = 0; s < KV_TRELLIS_STATES; s++)
            states[kv_trellis_entry(map, s)]++;
        for (size_t i = 0; i < 2 * n; i++)
            assert_int_equal(states[i], KV_TRELLIS_STATES / (2 * n));
        kv_trellis_unfold(bits, values, kept, table);
        for (size_t i = 0; i < values * (size_t)KV_TRELLIS_STATES; i++) {
            const size_t v = i / KV_TRELLIS_STATES, s = i % KV_TRELLIS_STATES;
            const unsigned entry = kv_trellis_entry(map, (unsigned)s);
            const float x = kept[v * n + entry % n];

            assert_true(table[i] == (entry < n ? x : -x));
            for (size_t j = s >> bits << bits; j < s; j++)
                assert_true(table[i] != table[i - s + j]);
        }
    }
}

static void test_unfold(void **state)
{
    (void)state;
    for (unsigned values = 1; values <= 3; values++)
        check_unfold(values);
}

static void test_last_bits(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= KV_TRELLIS_MAX_BITS; bits++)
        for (unsigned s = 0; s < KV_TRELLIS_STATES; s++)
            assert_int_equal(kv_trellis_entry(kv_trellis_last_bits(bits), s),
                             s % (1u << bits));
}

/* Memoryless Gaussian: between the bound and, at 1, 2 and 6 bits, what the best
 * scalar quantizer reaches (0.3634, 0.1175, 0.00065). */
static void test_training(void **state)
{
    enum { N = 1600, LEN = 128, ROUNDS = 8 };
    const struct {
        unsigned bits, values;
        double max;
    } want[] = {{1, 4, 0.765},
                {1, 2, 0.56},
                {1, 1, 0.315},
                {2, 1, 0.09},
                {6, 1, 0.00056}};
    float *x = kv_alloc(N * LEN, sizeof(*x));
    float *fresh = kv_alloc(N * LEN / 16, sizeof(*fresh));
    float *kept = kv_alloc(4 * KV_TRELLIS_ENTRIES, sizeof(*kept));

    (void)state;
    for (size_t i = 0; i < N * LEN; i++)
        x[i] = (float)kv_random_normal(3, i);
    for (size_t i = 0; i < N * LEN / 16; i++)
        fresh[i] = (float)kv_random_normal(77, i);
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        const double bound = pow(4, -(double)want[i].bits / want[i].values);
        double mse;

        kv_trellis_train(want[i].bits, want[i].values, x, N, LEN, ROUNDS, 1,
                         kept);
        mse = kv_trellis_error(want[i].bits, want[i].values, kept, fresh,
                               N / 16, LEN);
        if (!(mse > bound && mse < want[i].max))
            fail_msg("%u bits for %u values: %g", want[i].bits, want[i].values,
                     mse);
    }
    free(kept);
    free(fresh);
    free(x);
}

/* Values that are all equal, or two, or a single one: the table's numbers are
 * finite. */
static void test_trains_on_anything(void **state)
{
    static const float values[][2] = {{0, 0}, {3, 3}, {-1, 2}, {1e-30f, 1e30f}};
    enum { MAX = 64 };
    float x[MAX], kept[KV_TRELLIS_ENTRIES];

    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++)
        for (unsigned bits = 1; bits <= KV_TRELLIS_MAX_BITS; bits++)
            for (size_t n = 1; n <= 4; n++) {
                const size_t len = n == 1 ? 1 : MAX / n;
                double error;

                for (size_t k = 0; k < MAX; k++)
                    x[k] = values[i][k % 2];
                kv_trellis_train(bits, 1, x, n, len, 4, 1, kept);
                for (size_t k = 0; k < kv_trellis_kept(bits); k++)
                    assert_true(isfinite(kept[k]));
                error = kv_trellis_error(bits, 1, kept, x, n, len);
                assert_true(isfinite(error));
                if (!i)
                    assert_true(error == 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_best_path),
        cmocka_unit_test(test_finds_nearly_the_best_path),
        cmocka_unit_test(test_far_values),
        cmocka_unit_test(test_wide_gaps),
        cmocka_unit_test(test_between_levels),
        cmocka_unit_test(test_larger_values),
        cmocka_unit_test(test_one_large_value),
        cmocka_unit_test(test_decodes_several),
        cmocka_unit_test(test_no_steps_and_ends),
        cmocka_unit_test(test_unfold),
        cmocka_unit_test(test_last_bits),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_trains_on_anything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
