/* The choice of a spec for each place, compared with all choices; and its
 * guarantee if there are too many choices. */
#include "eval/allocate.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>

enum { MAX_PLACES = 6, MAX_SPECS = 4 };

struct problem {
    size_t n_places, n_specs;
    struct kv_offer offer[MAX_PLACES * MAX_SPECS];
};

/* Few different bytes and costs, so that sums coincide; costs fall with bytes
 * mostly. */
static struct problem random_problem(uint64_t key)
{
    struct problem p = {.n_places = 1 + kv_random(key, 0) % MAX_PLACES,
                        .n_specs = 1 + kv_random(key, 1) % MAX_SPECS};

    for (size_t i = 0; i < p.n_places * p.n_specs; i++) {
        const double bytes = (double)(1 + kv_random(key, 10 + i) % 6);

        p.offer[i].bytes = bytes;
        p.offer[i].cost = (double)(kv_random(key, 100 + i) % 4) / 2 + 4 / bytes;
    }
    return p;
}

static struct kv_offer sum_of(const struct problem *p, const size_t *choice)
{
    struct kv_offer sum = {0};

    for (size_t i = 0; i < p->n_places; i++) {
        assert_in_range(choice[i], 0, p->n_specs - 1);
        sum.bytes += p->offer[i * p->n_specs + choice[i]].bytes;
        sum.cost += p->offer[i * p->n_specs + choice[i]].cost;
    }
    return sum;
}

/* The least cost within the bytes, at the fewest bytes; false: none fits. */
static bool every_choice(const struct problem *p, double bytes,
                         struct kv_offer *best)
{
    size_t n = 1;
    bool any = false;

    for (size_t i = 0; i < p->n_places; i++)
        n *= p->n_specs;
    for (size_t i = 0; i < n; i++) {
        size_t choice[MAX_PLACES], left = i;
        struct kv_offer sum;

        for (size_t j = 0; j < p->n_places; j++, left /= p->n_specs)
            choice[j] = left % p->n_specs;
        sum = sum_of(p, choice);
        if (sum.bytes > bytes)
            continue;
        if (!any || sum.cost < best->cost ||
            (sum.cost == best->cost && sum.bytes < best->bytes))
            *best = sum;
        any = true;
    }
    return any;
}

static void test_brute_force(void **state)
{
    size_t met = 0, missed = 0;

    (void)state;
    for (uint64_t key = 0; key < 500; key++) {
        const struct problem p = random_problem(key);
        const double values = 8 * (double)p.n_places;
        const double bits = (double)(4 + kv_random(key, 2) % 24) / 4;
        size_t choice[MAX_PLACES];
        struct kv_offer want, got;
        struct kv_err e = {""};
        const int rc = kv_allocate(p.offer, p.n_places, p.n_specs, values, bits,
                                   choice, &e);

        if (!every_choice(&p, bits * values / 8, &want)) {
            assert_int_equal(rc, -1);
            assert_says(e, "cannot be met: the given specs need at least");
            missed++;
            continue;
        }
        assert_int_equal(rc, 0);
        got = sum_of(&p, choice);
        assert_within(got.cost, want.cost, 1e-12);
        assert_true(got.bytes == want.bytes);
        met++;
    }
    assert_true(met > 100 && missed > 10);
}

/* The sentence's bits are enough, and a hair less is not. */
static void test_min_bits(void **state)
{
    const struct kv_offer offer[] = {{1000, 3}, {400, 5}, {333, 1}, {700, 0}};
    const double values = 2400;
    struct kv_err e = {""};
    size_t choice[2];

    (void)state;
    assert_int_equal(kv_allocate(offer, 2, 2, values, 2, choice, &e), -1);
    assert_string_equal(e.msg, "2 bits per value cannot be met: the given "
                               "specs need at least 2.4434");
    assert_int_equal(kv_allocate(offer, 2, 2, values, 2.4434, choice, &e), 0);
    assert_int_equal(choice[0], 1);
    assert_int_equal(choice[1], 0);
    assert_int_equal(kv_allocate(offer, 2, 2, values, 2.4433, choice, &e), -1);
}

/* A budget met to the byte is met, though no double holds the bits. */
static void test_exact_budget(void **state)
{
    const double values = 392;

    (void)state;
    for (size_t i = 1; i < 1000; i++) {
        const struct kv_offer offer = {(double)i, 1};
        const double bits = offer.bytes * 8 / values;
        struct kv_err e = {""};
        size_t choice;

        if (kv_allocate(&offer, 1, 1, values, bits, &choice, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(
            kv_allocate(&offer, 1, 1, values, bits * 0.99999, &choice, &e), -1);
    }
}

/* More sums than are kept.  The cost is a constant minus the bytes, so the best
 * choice fills the budget; each place loses at most one step of it. */
static void test_too_many_sums(void **state)
{
    enum { PLACES = 48, SPECS = 5 };
    struct kv_offer *offer = kv_alloc(PLACES * SPECS, sizeof(*offer));
    const double budget = 24e6, step = budget / KV_ALLOCATE_SUMS;
    size_t choice[PLACES];
    double bytes = 0;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < PLACES * SPECS; i++) {
        offer[i].bytes = (double)(1 + kv_random(3, i) % 1000000);
        offer[i].cost = 1e6 - offer[i].bytes;
    }
    if (kv_allocate(offer, PLACES, SPECS, budget, 8, choice, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < PLACES; i++)
        bytes += offer[i * SPECS + choice[i]].bytes;
    assert_true(bytes <= budget);
    assert_true(bytes >= budget - (PLACES + 1) * step);
    free(offer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_min_bits),
        cmocka_unit_test(test_exact_budget),
        cmocka_unit_test(test_too_many_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
