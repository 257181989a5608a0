/* ZipCache's normalised attention (lib/saliency.h) on cases worked by hand. */
#include "lib/saliency.h"
#include "tests/test.h"

#include <math.h>

/* Without a scale every visible token weighs the same: 1 / (p + 1) from probe
 * p, over the probes that see it. */
static void test_flat(void **state)
{
    const struct kv_shape s = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 2};
    const float q[2 * 2] = {1, 2, 3, 4};
    const float k[5 * 2] = {5, 1, 0, 2, 9, 9, 1, 1, 2, 2};
    const size_t at[] = {1, 3};
    float out[5];

    (void)state;
    kv_saliency(&s, q, at, 2, k, 5, out);
    assert_within(out[0], (1.0 / 2 + 1.0 / 4) / 2, 1e-7);
    assert_within(out[1], (1.0 / 2 + 1.0 / 4) / 2, 1e-7);
    assert_within(out[2], 1.0 / 4, 1e-7); /* only probe 3 sees it */
    assert_within(out[3], 1.0 / 4, 1e-7);
    assert_within(out[4], 0, 0); /* no probe does */
}

/* Four query heads on two KV heads, one probe: head h looks along q[h], its
 * logits are ln of 1, 3 or of 1, 1. */
static void test_heads(void **state)
{
    const struct kv_shape s = {
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 2, .attn_scale = 2};
    const float a = (float)log(3) / 2;
    const float q[4 * 2] = {1, 0, 0, 1, 1, 0, -1, 0};
    const float k[2 * 4] = {0, 0, a, 0, /* token 0: head 0, head 1 */
                            a, 0, 0, 0};
    const size_t at = 1;
    float out[2 * 2];

    (void)state;
    kv_saliency(&s, q, &at, 1, k, 2, out);
    /* head 0: 1/4, 3/4; head 1: 1/2, 1/2; head 2: 3/4, 1/4; head 3: 1/4, 3/4 */
    assert_within(out[0], (0.25 + 0.5) / 2, 1e-7);
    assert_within(out[1], (0.75 + 0.5) / 2, 1e-7);
    assert_within(out[2], (0.75 + 0.25) / 2, 1e-7);
    assert_within(out[3], (0.25 + 0.75) / 2, 1e-7);
}

/* The largest halves: no overflow, all weight on one token. */
static void test_extremes(void **state)
{
    const struct kv_shape s = {
        .n_heads = 1, .n_kv_heads = 1, .head_dim = 2, .attn_scale = 1};
    const float q[] = {65504, 65504};
    const float k[] = {65504, 65504, -65504, -65504};
    const size_t at = 1;
    float out[2];

    (void)state;
    kv_saliency(&s, q, &at, 1, k, 2, out);
    assert_within(out[0], 1, 0);
    assert_within(out[1], 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
