#include "kernels/tiles/rope.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/rope_table.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kv_shape shape_of(size_t head_dim, size_t n_rot, bool neighbours)
{
    struct kv_shape s = {.n_heads = 1,
                         .n_kv_heads = 1,
                         .head_dim = head_dim,
                         .n_rot = n_rot,
                         .neighbours = neighbours};

    for (size_t i = 0; i < n_rot; i++)
        s.inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)head_dim);
    return s;
}

/* Against lib/rope_table.h, values up to 1/2. */
static void check(size_t head_dim, size_t n_rot, bool neighbours, size_t first)
{
    const struct kv_shape s = shape_of(head_dim, n_rot, neighbours);
    const size_t n = KV_TILE_PART * head_dim;
    struct kv_tiles_rope *r =
        kv_tiles_rope_new(head_dim, kv_shape_pairs(&s), s.inv_freq);
    float *want = kv_alloc(n, sizeof(*want)), *x = kv_alloc(n, sizeof(*x));
    double square = 0;

    for (size_t i = 0; i < n; i++)
        want[i] = (float)kv_random_unit(first + n_rot, i) - 0.5f;
    for (size_t t = 0; t < KV_TILE_PART; t++)
        for (size_t c = 0; c < head_dim; c++)
            x[c * KV_TILE_PART + t] = want[t * head_dim + c];
    kv_rope(&s, want, KV_TILE_PART, 1, first);
    kv_tiles_rope_rotate(r, first, x);
    for (size_t t = 0; t < KV_TILE_PART; t++)
        for (size_t c = 0; c < head_dim; c++) {
            const float a = x[c * KV_TILE_PART + t], b = want[t * head_dim + c];

            assert_within(a, b, 2e-7);
            square += ((double)a - (double)b) * ((double)a - (double)b);
        }
    assert_within(sqrt(square / (double)n), 0, 3e-8);
    kv_tiles_rope_free(r);
    free(want);
    free(x);
}

static void test_equals_rope(void **state)
{
    static const size_t first[] = {0,     1,      63,     64,      4095,
                                   65537, 199968, 262144, 16777215};

    (void)state;
    for (size_t i = 0; i < sizeof(first) / sizeof(*first); i++) {
        check(128, 64, false, first[i]);
        check(80, 20, false, first[i]);
        check(128, 64, true, first[i]);
        check(80, 20, true, first[i]);
        check(2, 1, false, first[i]);
        check(6, 0, false, first[i]);
    }
}

/* Channels that go together, by hand: a quarter turn takes the first of a pair
 * to the second's place. */
static void test_pairs(void **state)
{
    static const struct {
        size_t n_rot;
        bool neighbours;
        float want[8];
    } cases[] = {{4, false, {-5, -6, -7, -8, 1, 2, 3, 4}},
                 {2, false, {-3, -4, 1, 2, 5, 6, 7, 8}},
                 {4, true, {-2, 1, -4, 3, -6, 5, -8, 7}},
                 {1, true, {-2, 1, 3, 4, 5, 6, 7, 8}}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = shape_of(8, cases[i].n_rot, cases[i].neighbours);
        float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};

        for (size_t j = 0; j < s.n_rot; j++)
            s.inv_freq[j] = 1.57079637f;
        kv_rope(&s, x, 1, 1, 1);
        for (size_t j = 0; j < 8; j++)
            assert_within(x[j], cases[i].want[j], 1e-6);
    }
}

/* The table of lib/rope_table.h, and no turn beyond it. */
static void test_angles(void **state)
{
    static const size_t first[] = {0, 1, 4095, 199968, 16777215};
    const struct kv_shape s = shape_of(80, 20, false);
    struct kv_tiles_rope *r =
        kv_tiles_rope_new(80, kv_shape_pairs(&s), s.inv_freq);
    float want[2 * 20], x[80];

    (void)state;
    for (size_t i = 0; i < sizeof(first) / sizeof(*first); i++) {
        kv_rope_table(&s, 1, first[i], want);
        kv_tiles_rope_angles(r, first[i], x);
        for (size_t p = 0; p < 40; p++) {
            assert_within(x[2 * p], p < 20 ? want[p] : 1, 0);
            assert_within(x[2 * p + 1], p < 20 ? want[20 + p] : 0, 0);
        }
    }
    kv_tiles_rope_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_rope),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_angles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
