/* Blocks of weights against goldens that were made without kvtools; each level
 * against plain C. */
#include "tests/levels.h"

#include "kernels/scaled/minifloat.h"
#include "kernels/weights/packed.h"
#include "kernels/weights/rows.h"
#include "lib/base/hash.h"
#include "tests/weights_setup.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static void every_type_decodes_as_gguf_does(void **state)
{
    (void)state;
    for (enum kv_stored t = KV_STORED_Q4_0; t <= KV_STORED_NVFP4; t++) {
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

/* Every code, by the formats of kernels/scaled, which have no NaN. */
static void small_floats_are_those_of_the_cache(void **state)
{
    static const struct {
        enum kv_stored type;
        const struct kv_minifloat *format;
        unsigned last; /* positive code of a finite value */
    } small[] = {{KV_STORED_F8_E4M3, &kv_e4m3, 0x7e},
                 {KV_STORED_F8_E5M2, &kv_e5m2, 0x7b}};

    (void)state;
    for (size_t i = 0; i < sizeof(small) / sizeof(*small); i++)
        for (unsigned code = 0; code < 256; code++) {
            const uint8_t byte = (uint8_t)code;
            const uint16_t wide = (uint16_t)code;
            float x, expected;

            kv_stored_decode(small[i].type, &byte, 1, &x);
            kv_minifloat_decode(small[i].format, &wide, 1, 1, &expected);
            if ((code & 0x7f) == 0x7c && small[i].type == KV_STORED_F8_E5M2)
                expected = code < 0x80 ? INFINITY : -INFINITY;
            else if ((code & 0x7f) > small[i].last)
                expected = NAN;
            if (isnan(expected))
                assert_true(isnan(x));
            else
                assert_memory_equal(&x, &expected, sizeof(x));
        }
}

/* A half that is no number shows in the values. */
static void what_is_no_number_shows(void **state)
{
    (void)state;
    for (enum kv_stored t = KV_STORED_Q4_0; t <= KV_STORED_NVFP4; t++)
        for (size_t h = 0; h < 2 && goldens[t].halves[h] >= 0; h++) {
            uint8_t *b = test_blocks(t, 1);
            float x[256];
            bool finite = true;

            b[goldens[t].halves[h] + 1] |= 0x7c;
            kv_stored_decode(t, b, kv_stored_values(t), x);
            for (size_t i = 0; i < kv_stored_values(t); i++)
                finite &= isfinite(x[i]);
            assert_false(finite);
            free(b);
        }
}

/* The definition of kv_stored_times(), over decoded values. */
static float row_times(const float *w, const float *x, size_t n)
{
    float sum[32] = {0};

    for (size_t i = 0; i < n; i++)
        sum[i % 32] = fmaf(w[i], x[i], sum[i % 32]);
    for (size_t half = 16; half; half /= 2)
        for (size_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return sum[0];
}

/* m rows of x, and rows of w at an address that is `odd` bytes off. */
static void times_of(enum kv_stored t, size_t rows, size_t n, size_t m,
                     size_t odd)
{
    const size_t values = kv_stored_values(t);
    const size_t bytes = rows * n / values * kv_stored_bytes(t);
    uint8_t *blocks = test_blocks(t, rows * n / values);
    uint8_t *w = kv_alloc(bytes + odd, 1);
    float *decoded = kv_alloc(rows * n, sizeof(*decoded));
    float *x = kv_alloc(m * n, sizeof(*x));
    float *y = kv_alloc(m * (rows + 1), sizeof(*y));

    for (size_t i = 0; i < m * n; i++)
        x[i] = (float)kv_random_normal(7, i);
    for (size_t i = 0; i < m * (rows + 1); i++)
        y[i] = 42;
    for (size_t i = 0; t == KV_STORED_F32 && i < rows * n; i++) {
        const float value = (float)kv_random_normal(3, i);

        memcpy(blocks + i * sizeof(value), &value, sizeof(value));
    }
    if (bytes)
        memcpy(w + odd, blocks, bytes);
    kv_stored_decode(t, w + odd, rows * n, decoded);
    kv_stored_times(t, w + odd, rows, n, x, m, y, rows + 1);
    for (size_t i = 0; i < m; i++) {
        for (size_t r = 0; r < rows; r++) {
            const float plain = row_times(decoded + r * n, x + i * n, n);

            if (memcmp(&y[i * (rows + 1) + r], &plain, sizeof(plain)))
                fail_msg("%s, row %zu of %zu of %zu, x %zu of %zu",
                         kv_stored_name(t), r, rows, n, i, m);
        }
        assert_true(y[i * (rows + 1) + rows] == 42);
    }
    free(y);
    free(x);
    free(decoded);
    free(w);
    free(blocks);
}

static void products_are_of_decoded_values(void **state)
{
    (void)state;
    for (enum kv_stored t = 0; t < KV_STORED_OTHER; t++)
        for (size_t rows = 0; rows < 10; rows++)
            for (size_t blocks = 0; blocks < 4; blocks++) {
                const size_t values = kv_stored_values(t);
                const size_t m = 1 + (rows + 3 * blocks) % 9;

                times_of(t, rows, values * blocks, 1, 0);
                times_of(t, rows, values * blocks, m, 1);
                if (values == 1)
                    times_of(t, rows, 29 + 31 * blocks, m, 0);
            }
}

/* Sizes below and beyond what is done at a time. */
static void several_x_are_multiplied_as_one_is(void **state)
{
    static const size_t n[] = {0,   1,   31,  32,   33,   96,
                               511, 512, 513, 1024, 1025, 1100};
    static const enum kv_stored blocks[] = {KV_STORED_Q8_0, KV_STORED_Q4_K};

    (void)state;
    for (size_t i = 0; i < sizeof(n) / sizeof(*n); i++)
        for (size_t rows = 0; rows <= 9; rows++)
            for (size_t m = 1; m <= 9; m++)
                times_of(KV_STORED_F32, rows, n[i], m, rows % 4);
    for (size_t m = 1; m <= 17; m++) {
        times_of(KV_STORED_F32, 35, 65, m, 0);
        for (size_t t = 0; t < 2; t++)
            times_of(blocks[t], 19, 1280, m, 1);
    }
}

/* Checks x, with m rows, times rows [first, first + n) against the product of
 * the values that are read. */
static void check_rows(const struct kv_stored_rows *rows, enum kv_type type,
                       size_t first, size_t n, size_t m)
{
    const enum kv_stored as =
        type == KV_TYPE_F32 ? KV_STORED_F32 : KV_STORED_BF16;
    const size_t row = rows->packed ? rows->packed->columns : rows->row;
    void *read = kv_alloc(n * row, kv_type_bytes(type));
    float *w = kv_alloc(n * row, sizeof(*w)),
          *x = kv_alloc(m * row, sizeof(*x));
    float *y = kv_alloc(m * (n + 1), sizeof(*y));

    kv_stored_read(rows, first * row, n * row, type, read);
    kv_stored_decode(as, read, n * row, w);
    for (size_t i = 0; i < m * row; i++)
        x[i] = (float)kv_random_normal(8, i);
    for (size_t i = 0; i < m; i++)
        y[i * (n + 1) + n] = 42;
    kv_stored_rows_times(rows, first, n, type, x, m, y, n + 1);
    for (size_t i = 0; i < m; i++) {
        for (size_t r = 0; r < n; r++)
            assert_true(y[i * (n + 1) + r] ==
                        row_times(w + r * row, x + i * row, row));
        assert_true(y[i * (n + 1) + n] == 42);
    }
    free(y);
    free(x);
    free(w);
    free(read);
}

static void rows_multiply_as_they_are_read(void **state)
{
    enum { ROWS = 48, ROW = 256 };
    static const struct kv_stored_rows ways[] = {
        {.row = ROW},
        {.row = ROW, .head = 4},
        {.row = ROW, .head = 8},
        {.row = ROW, .run = 3, .step = 5},
        {.row = ROW, .add = 1},
        {.row = 32, .turned = ROWS},
        {.row = ROW, .pool = 2, .pool_rows = 4},
        {.row = ROW, .head = 4, .pool = 2, .pool_rows = 4},
        {.row = 8, .turned = ROWS, .pool = 2, .pool_rows = 4},
    };
    uint8_t code[ROWS * ROW];
    const float scale[ROWS] = {1, 2, 3};
    const struct kv_packed scaled = {.packing = KV_PACKED_SCALED,
                                     .rows = ROWS,
                                     .columns = ROW,
                                     .block_rows = 1,
                                     .block_columns = ROW,
                                     .code_type = KV_STORED_F8_E4M3,
                                     .scale_type = KV_TYPE_F32,
                                     .code = code,
                                     .scale = scale};
    const struct kv_stored_rows packed = {.packed = &scaled};

    (void)state;
    for (enum kv_stored t = 0; t < KV_STORED_OTHER; t++) {
        uint8_t *b = test_blocks(t, ROWS * ROW / kv_stored_values(t));

        for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
            for (size_t m = 1; m <= 9; m += m < 3 ? 1 : 3) {
                struct kv_stored_rows rows = ways[i];

                rows.type = t;
                rows.data = b;
                if (rows.turned && kv_stored_values(t) > 1)
                    continue;
                for (size_t n = 0; n <= 19; n += n == 1 ? 18 : 1) {
                    check_rows(&rows, KV_TYPE_F32, n % 4, n, m);
                    check_rows(&rows, KV_TYPE_BF16, n % 4, n, m);
                }
            }
        free(b);
    }
    memset(code, 0x31, sizeof(code));
    for (size_t m = 1; m <= 2; m++)
        check_rows(&packed, KV_TYPE_F32, 1, 20, m);
}

/* Also for blocks: those of a stored row. */
static void transposed_rows_are_read(void **state)
{
    enum { COLUMNS = 3, TURNED = 256 };

    (void)state;
    for (enum kv_stored t = 0; t < KV_STORED_OTHER; t++) {
        uint8_t *b = test_blocks(t, COLUMNS * TURNED / kv_stored_values(t));
        const struct kv_stored_rows rows = {
            .data = b, .type = t, .row = COLUMNS, .turned = TURNED};
        float whole[COLUMNS][TURNED], x[TURNED][COLUMNS];

        kv_stored_decode(t, b, sizeof(whole) / sizeof(float), whole[0]);
        kv_stored_read(&rows, 0, 100 * COLUMNS + 1, KV_TYPE_F32, x[0]);
        kv_stored_read(&rows, 100 * COLUMNS + 1, 156 * COLUMNS - 1, KV_TYPE_F32,
                       x[0] + 100 * COLUMNS + 1);
        for (size_t i = 0; i < TURNED; i++)
            for (size_t j = 0; j < COLUMNS; j++)
                assert_memory_equal(&x[i][j], &whole[j][i], sizeof(float));
        free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes_as_gguf_does),
        cmocka_unit_test(any_blocks_anywhere),
        cmocka_unit_test(small_floats_are_those_of_the_cache),
        cmocka_unit_test(what_is_no_number_shows),
        cmocka_unit_test(products_are_of_decoded_values),
        cmocka_unit_test(several_x_are_multiplied_as_one_is),
        cmocka_unit_test(rows_multiply_as_they_are_read),
        cmocka_unit_test(transposed_rows_are_read),
    };
    int failed = 0;

    for (enum kv_level l = LOWEST; l <= kv_level_max(); l++) {
        kv_level_set(l, NULL);
        failed +=
            cmocka_run_group_tests_name(kv_level_name(l), tests, NULL, NULL);
    }
    return failed;
}
