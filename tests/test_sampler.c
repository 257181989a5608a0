/* The choice of a token against its definition, as transformers has it:
 * RepetitionPenaltyLogitsProcessor, then TemperatureLogitsWarper,
 * TopKLogitsWarper and TopPLogitsWarper. */
#include "eval/sampler.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>
#include <stdbool.h>

static void make(float *x, size_t n, uint64_t key)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(3 * kv_random_normal(key, i));
}

/* The probabilities that are left, by sorting all; without ties. */
static void plain(const struct kv_sampling *s, const float *x, size_t n,
                  double *p)
{
    size_t *order = kv_alloc(n, sizeof(*order)); /* falling */
    const size_t k = s->top_k && s->top_k < n ? s->top_k : n;
    double sum = 0, above = 0, left = 0;

    for (size_t i = 0; i < n; i++) {
        size_t at = i;

        for (; at && x[order[at - 1]] < x[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        p[i] = 0;
    }
    for (size_t i = 0; i < k; i++)
        sum += exp((double)x[order[i]] / s->temperature);
    for (size_t i = 0; i < k && above < s->top_p; i++) {
        p[order[i]] = exp((double)x[order[i]] / s->temperature) / sum;
        above += p[order[i]];
    }
    for (size_t i = 0; i < n; i++)
        left += p[i];
    for (size_t i = 0; i < n; i++)
        p[i] /= left;
    free(order);
}

/* u walks over [0, 1) and takes each id in proportion to its probability. */
static void check_shares(const struct kv_sampling *s, size_t n, uint64_t key)
{
    enum { STEPS = 4096 };
    float *x = kv_alloc(n, sizeof(*x)), *again = kv_alloc(n, sizeof(*x));
    double *want = kv_alloc(n, sizeof(*want));
    size_t *got = kv_alloc(n, sizeof(*got));

    make(x, n, key);
    plain(s, x, n, want);
    for (size_t i = 0; i < STEPS; i++) {
        memcpy(again, x, n * sizeof(*x));
        got[kv_sampling_choose(s, again, n, (double)i / STEPS)]++;
    }
    for (size_t i = 0; i < n; i++)
        if (fabs((double)got[i] / STEPS - want[i]) > 1.0 / STEPS + 1e-9)
            fail_msg("id %zu of %zu: %g, expected %g (top_k %zu, top_p %g)", i,
                     n, (double)got[i] / STEPS, want[i], s->top_k, s->top_p);
    free(got);
    free(want);
    free(again);
    free(x);
}

static void test_shares(void **state)
{
    static const size_t sizes[] = {1, 2, 7, 50}, top_k[] = {0, 1, 3, 50, 99};
    static const double top_p[] = {1, 0.999, 0.9, 0.5, 0.01},
                        temperature[] = {0.3, 1, 4};

    (void)state;
    for (size_t i = 0; i < 4 * 5 * 5 * 3; i++) {
        const struct kv_sampling s = {1, temperature[i / 100],
                                      top_p[i / 20 % 5], top_k[i / 4 % 5]};

        check_shares(&s, sizes[i % 4], i);
    }
}

static void test_greedy(void **state)
{
    const struct kv_sampling s = KV_SAMPLING_GREEDY;
    float x[] = {-1, 4, 2, 4}, same[4];

    (void)state;
    for (int i = 0; i < 3; i++) {
        memcpy(same, x, sizeof(x));
        assert_int_equal(kv_sampling_choose(&s, x, 4, i / 3.0), 1);
        assert_memory_equal(x, same, sizeof(x));
    }
}

/* Tokens tied with the k-th stay; if top_p cuts through a tie, the lowest ids
 * stay. */
static void test_ties(void **state)
{
    const float x[] = {0, 1, 1, 1, -5};
    float again[5];
    bool seen[5] = {false};
    const struct kv_sampling k = {1, 1, 1, 2}, p = {1, 1, 0.3, 0};

    (void)state;
    for (size_t i = 0; i < 64; i++) {
        memcpy(again, x, sizeof(x));
        seen[kv_sampling_choose(&k, again, 5, (double)i / 64)] = true;
    }
    assert_true(!seen[0] && seen[1] && seen[2] && seen[3] && !seen[4]);
    for (size_t i = 0; i < 64; i++) {
        memcpy(again, x, sizeof(x));
        assert_in_range(kv_sampling_choose(&p, again, 5, (double)i / 64), 1, 2);
    }
}

static void test_extremes(void **state)
{
    const struct kv_sampling cold = {1, 1e-30, 0.9, 0}, hot = {1, 9e5, 1, 0};
    float x[] = {-3e38f, 3e38f, 1, 2}, again[4];

    (void)state;
    for (size_t i = 0; i < 8; i++) {
        memcpy(again, x, sizeof(x));
        assert_int_equal(kv_sampling_choose(&cold, again, 4, (double)i / 8), 1);
        memcpy(again, x, sizeof(x));
        assert_in_range(kv_sampling_choose(&hot, again, 4, (double)i / 8), 0,
                        3);
    }
    memcpy(again, x, sizeof(x));
    assert_in_range(kv_sampling_choose(&hot, again, 4, 1 - 0x1p-53), 0, 3);
}

/* Once for an id that occurs twice. */
static void test_repetition(void **state)
{
    const struct kv_sampling s = {2, 0, 1, 0}, none = KV_SAMPLING_GREEDY;
    const int32_t ids[] = {1, 3, 1};
    const float want[] = {4, 2, -4, -8};
    float x[] = {4, 4, -4, -4};

    (void)state;
    kv_sampling_penalize(&none, x, 4, ids, 3);
    assert_true(x[1] == 4);
    kv_sampling_penalize(&s, x, 4, ids, 3);
    assert_memory_equal(x, want, sizeof(x));
    kv_sampling_penalize(&s, x, 4, ids, 0);
    assert_memory_equal(x, want, sizeof(x));
}

static void test_check(void **state)
{
    static const struct {
        struct kv_sampling s;
        const char *words; /* NULL: it is right */
    } cases[] = {
        {{1, 0, 1, 0}, NULL},
        {{1.2, 0.7, 0.9, 40}, NULL},
        {{0, 0, 1, 0}, "--repetition-penalty 0"},
        {{NAN, 0, 1, 0}, "--repetition-penalty"},
        {{1, -1, 1, 0}, "--temperature -1"},
        {{1, NAN, 1, 0}, "--temperature"},
        {{1, 1, 0, 0}, "--top-p 0"},
        {{1, 1, 1.5, 0}, "--top-p 1.5"},
        {{1, 0, 1, 4}, "--top-k goes with --temperature"},
        {{1, 0, 0.5, 0}, "--top-p goes with --temperature"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_err e = {""};

        assert_int_equal(kv_sampling_check(&cases[i].s, &e),
                         cases[i].words ? -1 : 0);
        if (cases[i].words)
            assert_non_null(strstr(e.msg, cases[i].words));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),     cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_ties),       cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_repetition), cmocka_unit_test(test_check),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
