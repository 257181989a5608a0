/* PyramidKV's budgets by layer (lib/policies/pyramidkv.c): sums, order, ends.
 */
#include "lib/policies/policies.h"
#include "tests/protocol_setup.h"

static size_t pyramid_budget(const struct ready *r, size_t layer, size_t n)
{
    return kv_policy_pyramidkv.plan(&r->spec.policy, &r->shape, layer, n)
        .budget;
}

/* Together the layers hold the budget; lower layers hold no less than higher
 * layers, and no layer more than all tokens. */
static void check_pyramid(const char *policy, size_t mean, size_t n)
{
    static const size_t layers[] = {1, 2, 5, 24, 32};
    struct ready r = f32_ready(), p = with_policy(&r, policy);

    for (size_t i = 0; i < sizeof(layers) / sizeof(*layers); i++) {
        size_t sum = 0, before = n;

        p.shape.n_layers = layers[i];
        for (size_t layer = 0; layer < layers[i]; layer++) {
            const size_t budget = pyramid_budget(&p, layer, n);

            assert_true(budget <= before);
            sum += before = budget;
        }
        if (sum != layers[i] * mean)
            fail_msg("%s: %zu layers keep %zu tokens, not %zu each", policy,
                     layers[i], sum, mean);
    }
}

static void test_pyramid_budgets(void **state)
{
    struct ready r = f32_ready(), p = with_policy(&r, "pyramidkv:b0.8w4+");

    (void)state;
    check_pyramid("pyramidkv:b0.2w4+", 200, 1000);
    check_pyramid("pyramidkv:b0.5w4+", 389, 777); /* rounded from 388.5 */
    check_pyramid("pyramidkv:b0.8w4+", 800, 1000);
    check_pyramid("pyramidkv:b0.9w4+", 58, 64); /* rounded from 57.6 */
    check_pyramid("pyramidkv:b48w8a3+", 48, 64);
    check_pyramid("pyramidkv:b8w8+", 8, 64); /* the newest alone */
    check_pyramid("pyramidkv:b1w4+", 64, 64);
    p.shape.n_layers = 3; /* layer 0 has all, layer 2 the rest */
    assert_int_equal(pyramid_budget(&p, 0, 100), 100);
    assert_int_equal(pyramid_budget(&p, 1, 100), 80);
    assert_int_equal(pyramid_budget(&p, 2, 100), 60);
}

static void test_pyramid(void **state)
{
    struct ready r = f32_ready(), p = with_policy(&r, "pyramidkv:b100w20+");
    size_t sum = 0, before = SIZE_MAX;

    (void)state;
    p.shape.n_layers = 32;
    for (size_t layer = 0; layer < 32; layer++) {
        const size_t budget = pyramid_budget(&p, layer, 1000);

        assert_true(budget < before);
        sum += before = budget;
    }
    assert_int_equal(before, 24); /* 20 and 80 / 20 */
    assert_int_equal(sum, 32 * 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pyramid_budgets),
        cmocka_unit_test(test_pyramid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
