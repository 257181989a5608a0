/* Matrices of several tensors against goldens that numpy unpacked, at every
 * level. */
#include "kernels/level.h"
#include "kernels/weights/packed.h"
#include "lib/base/alloc.h"
#include "lib/base/hash.h"
#include "lib/base/rng.h"
#include "tests/packed_goldens.h"
#include "tests/test.h"

#include <math.h>

static void no_nan(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = isnan(x[i]) ? 0 : x[i];
}

static uint8_t *fill(size_t key, size_t bytes)
{
    uint8_t *b = kv_alloc(bytes + 1, 1);

    for (size_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)(kv_random(key, i) >> 56);
    return b;
}

static uint8_t *fill_scales(size_t key, size_t n, enum kv_type type)
{
    const size_t size = kv_type_bytes(type);
    const uint8_t top = type == KV_TYPE_F32 ? 0x7f : 0x7c;
    uint8_t *b = fill(key, n * size);

    for (size_t i = size - 1; i < n * size; i += size)
        if ((b[i] & top) == top)
            b[i] &= 0xbf;
    return b;
}

static uint8_t *fill_groups(size_t key, size_t columns, size_t n_groups)
{
    uint8_t *b = fill(key, columns);
    uint8_t *group = kv_alloc(columns, 4);

    for (size_t i = 0; i < columns; i++) {
        const int32_t g = (int32_t)(b[i] % n_groups);

        memcpy(group + 4 * i, &g, sizeof(g));
    }
    free(b);
    return group;
}

/* Golden i with arrays of its own. */
static struct kv_packed new_packed(size_t i)
{
    const struct golden *g = &goldens[i];
    struct kv_packed p = g->p;
    const bool scaled = p.packing == KV_PACKED_SCALED;
    const size_t across = (p.columns + p.block_columns - 1) / p.block_columns;
    const size_t down =
        scaled ? (p.rows + p.block_rows - 1) / p.block_rows : p.rows;

    p.code = fill(10 * i, p.rows * p.columns * (scaled ? 8 : p.bits) / 8);
    p.scale = fill_scales(10 * i + 1, across * down, p.scale_type);
    p.zero = scaled ? NULL : fill(10 * i + 2, across * p.rows * p.bits / 8);
    p.group = g->grouped ? fill_groups(10 * i + 3, p.columns, across) : NULL;
    return p;
}

static void free_packed(struct kv_packed *p)
{
    free((void *)(uintptr_t)p->code);
    free((void *)(uintptr_t)p->scale);
    free((void *)(uintptr_t)p->zero);
    free((void *)(uintptr_t)p->group);
}

/* Whole, then by rows. */
static void packed_at(size_t i, const struct kv_packed *p)
{
    const size_t n = p->rows * p->columns;
    float *x = kv_alloc(n + 1, sizeof(*x)), *row = kv_alloc(n, sizeof(*row));
    char hex[KV_HASH_CHARS];

    x[n] = 42;
    kv_packed_decode(p, 0, p->rows, x);
    assert_true(x[n] == 42);
    no_nan(x, n);
    kv_hash_bytes(x, n * sizeof(*x), hex);
    if (strcmp(hex, goldens[i].values))
        fail_msg("packed matrix %zu is not what numpy unpacks", i);
    for (size_t r = 0; r < p->rows; r++)
        kv_packed_decode(p, r, 1, row + r * p->columns);
    no_nan(row, n);
    assert_memory_equal(x, row, n * sizeof(*x));
    free(row);
    free(x);
}

static void every_packing_decodes_as_numpy_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++) {
        struct kv_packed p = new_packed(i);
        struct kv_err e;

        assert_int_equal(kv_packed_check(&p, &e), 0);
        packed_at(i, &p);
        free_packed(&p);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    const int32_t group[8] = {0, 1, 1, 0, 1, 2, 0, -1};
    struct kv_packed p = {.packing = KV_PACKED_GPTQ,
                          .rows = 8,
                          .columns = 8,
                          .block_columns = 8,
                          .bits = 4,
                          .n_groups = 2,
                          .group = group};
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "input 5 is of group 2, there are 2");
    p.n_groups = 3;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "input 7 is of group 4294967295");
    p.rows = 12;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "12 outputs and 8 inputs do not fill words of 8");
    p.bits = 3;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "codes of 3 bits: only 2, 4 and 8 are known");
    p.packing = KV_PACKED_AWQ;
    p.bits = 8;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "codes of 8 bits: only 4 are known");
    p.block_columns = 0;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "a scale of no values");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_packing_decodes_as_numpy_does),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    int failed = 0;

    for (enum kv_level l = KV_LEVEL_C; l <= kv_level_max(); l++) {
        kv_level_set(l, NULL);
        failed +=
            cmocka_run_group_tests_name(kv_level_name(l), tests, NULL, NULL);
    }
    return failed;
}
