#include "kernels/tiles/rope.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/rope_table.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kv_shape shape_of(size_t head_dim, size_t n_rot)
{
    struct kv_shape s = {
        .n_heads = 1, .n_kv_heads = 1, .head_dim = head_dim, .n_rot = n_rot};

    for (size_t i = 0; i < n_rot; i++)
        s.inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)head_dim);
    return s;
}

/* Against lib/rope_table.h, values up to 1/2. */
static void check(size_t head_dim, size_t n_rot, size_t first)
{
    const struct kv_shape s = shape_of(head_dim, n_rot);
    const size_t n = KV_TILE_PART * head_dim;
    struct kv_tiles_rope *r = kv_tiles_rope_new(head_dim, n_rot, s.inv_freq);
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
        check(128, 64, first[i]);
        check(80, 20, first[i]);
        check(2, 1, first[i]);
        check(6, 0, first[i]);
    }
}

/* The table of lib/rope_table.h, and no turn beyond it. */
static void test_angles(void **state)
{
    static const size_t first[] = {0, 1, 4095, 199968, 16777215};
    const struct kv_shape s = shape_of(80, 20);
    struct kv_tiles_rope *r = kv_tiles_rope_new(80, 20, s.inv_freq);
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
        cmocka_unit_test(test_angles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
