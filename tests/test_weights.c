/* Blocks of weights against goldens that were made without kvtools; each level
 * against plain C. */
#include "tests/test.h"

#include "kernels/level.h"
#include "lib/base/hash.h"
#include "tests/weights_setup.h"

#include <string.h>

static void every_type_decodes_as_gguf_does(void **state)
{
    (void)state;
    for (enum kv_stored t = KV_STORED_Q4_0; t < KV_STORED_OTHER; t++) {
        const size_t n = GOLDEN_BLOCKS * kv_stored_values(t);
        uint8_t *b = test_blocks(t, GOLDEN_BLOCKS);
        float *x = kv_alloc(n, sizeof(*x));
        struct kv_hash *h = kv_hash_new();
        char hex[KV_HASH_CHARS];

        assert_non_null(goldens[t].values);
        kv_stored_decode(t, b, n, x);
        kv_hash_add(h, x, n * sizeof(*x));
        kv_hash_end(h, hex);
        if (strcmp(hex, goldens[t].values))
            fail_msg("%s: %s, expected %s", kv_stored_name(t), hex,
                     goldens[t].values);
        free(x);
        free(b);
    }
}

/* At odd addresses, in all lengths, without a byte too many. */
static void any_blocks_anywhere(void **state)
{
    (void)state;
    for (enum kv_stored t = 0; t < KV_STORED_OTHER; t++) {
        const size_t values = kv_stored_values(t), bytes = kv_stored_bytes(t);
        uint8_t *b = test_blocks(t, 9);
        float whole[9 * 256], x[9 * 256 + 1];

        kv_stored_decode(t, b, 9 * values, whole);
        for (size_t n = 0; n <= 9; n++) {
            uint8_t *odd = kv_alloc(n * bytes + 1, 1);

            memcpy(odd + 1, b, n * bytes);
            x[n * values] = 42;
            kv_stored_decode(t, odd + 1, n * values, x);
            assert_memory_equal(x, whole, n * values * sizeof(*x));
            assert_true(x[n * values] == 42);
            free(odd);
        }
        free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes_as_gguf_does),
        cmocka_unit_test(any_blocks_anywhere),
    };
    int failed = 0;

    for (enum kv_level l = KV_LEVEL_C; l <= kv_level_max(); l++) {
        kv_level_set(l, NULL);
        failed +=
            cmocka_run_group_tests_name(kv_level_name(l), tests, NULL, NULL);
    }
    return failed;
}
