/* kernels/cuda/gemv.cu: products of up to 8 rows against sums in double. */
#include "kernels/cuda/gemm.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/gpu_attend_setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float BEYOND = 7; /* where nothing may be written */

/* n random numbers of this type on the device; value [n]: as floats. */
static void *numbers(enum kv_type type, size_t n, uint64_t seed, float *value)
{
    const size_t bytes = type == KV_TYPE_F32 ? 4 : 2;
    uint8_t *host = kv_alloc(n, bytes);
    struct kv_err e = {""};
    void *p;

    for (size_t i = 0; i < n; i++) {
        const float x = (float)kv_random_normal(seed, i);
        const uint16_t half =
            type == KV_TYPE_F16 ? kv_f16_clamp(x) : kv_f32_to_bf16(x);

        value[i] = type == KV_TYPE_F32   ? x
                   : type == KV_TYPE_F16 ? kv_f16_to_f32(half)
                                         : kv_bf16_to_f32(half);
        memcpy(host + i * bytes,
               type == KV_TYPE_F32 ? (void *)&x : (void *)&half, bytes);
    }
    if (kv_device_alloc(&p, n * bytes, &e) ||
        kv_device_upload(p, host, n * bytes, &e))
        fail_msg("%s", e.msg);
    free(host);
    return p;
}

/* Products of 1 to 8 rows of the same a: rows have the same bits in each. */
static void check(enum kv_type type, size_t n, size_t k, bool add)
{
    enum { ROWS = KV_GPU_FEW_ROWS };
    const size_t c_row = n + 3, size = ROWS * c_row;
    const size_t a_row = k + 16, b_row = k + 8;
    float *a = kv_alloc(ROWS * a_row, sizeof(*a));
    float *b = kv_alloc(n * b_row, sizeof(*b));
    float *before = kv_alloc(size, sizeof(*before));
    float *c = kv_alloc(size, sizeof(*c)), *first = kv_alloc(size, sizeof(*c));
    struct kv_gpu_product p = {.type = type,
                               .c_type = KV_TYPE_F32,
                               .n = n,
                               .k = k,
                               .a_row = a_row,
                               .b_row = b_row,
                               .c_row = c_row,
                               .add = add};
    struct kv_err e = {""};
    void *pa = numbers(type, ROWS * a_row, 1, a);
    void *pb = numbers(type, n * b_row, 2, b);
    void *pc;

    p.a = pa;
    p.b = pb;
    for (size_t i = 0; i < size; i++)
        before[i] = i % c_row < n ? (float)kv_random_normal(3, i) : BEYOND;
    if (kv_device_alloc(&pc, size * sizeof(*c), &e))
        fail_msg("%s", e.msg);
    p.c = pc;
    for (p.m = ROWS; p.m; p.m--) {
        if (!kv_gpu_few_rows(&p) ||
            kv_device_upload(pc, before, size * sizeof(*c), &e) ||
            kv_gpu_multiply_few(&p, &e) ||
            kv_device_download(c, pc, size * sizeof(*c), &e))
            fail_msg("%zu x %zu x %zu: %s", p.m, n, k, e.msg);
        for (size_t i = 0; i < size; i++) {
            const size_t r = i / c_row, o = i % c_row;
            double sum = add ? (double)before[i] : 0, of = fabs(sum);

            if (r >= p.m || o >= n) {
                assert_true(c[i] == before[i]);
                continue;
            }
            for (size_t j = 0; j < k; j++) {
                const double y =
                    (double)a[r * a_row + j] * (double)b[o * b_row + j];

                sum += y;
                of += fabs(y);
            }
            if (!(fabs((double)c[i] - sum) <= 1e-6 * of))
                fail_msg("type %d, %zu x %zu x %zu, row %zu, output %zu: %g, "
                         "expected %g",
                         (int)type, p.m, n, k, r, o, (double)c[i], sum);
        }
        if (p.m == ROWS)
            memcpy(first, c, size * sizeof(*c));
        for (size_t r = 0; r < p.m; r++)
            assert_memory_equal(c + r * c_row, first + r * c_row,
                                n * sizeof(*c));
    }
    kv_device_free(pa);
    kv_device_free(pb);
    kv_device_free(pc);
    free(first);
    free(c);
    free(before);
    free(b);
    free(a);
}

static void test_products(void **state)
{
    static const enum kv_type types[] = {KV_TYPE_F16, KV_TYPE_BF16,
                                         KV_TYPE_F32};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        check(types[i], 1, 8, false);
        check(types[i], 33, 264, true);
        check(types[i], 70, 2064, false);
        check(types[i], 5, 5000, true);
    }
}

static void test_taken(void **state)
{
    const struct kv_gpu_product good = {.type = KV_TYPE_F16,
                                        .c_type = KV_TYPE_F32,
                                        .m = 1,
                                        .n = 1,
                                        .k = 8,
                                        .a_row = 8,
                                        .b_row = 8,
                                        .c_row = 1};
    struct kv_gpu_product p;

    (void)state;
    assert_true(kv_gpu_few_rows(&good));
#define REFUSED(change) \
    p = good;           \
    p.change;           \
    assert_false(kv_gpu_few_rows(&p));
    REFUSED(m = 9)
    REFUSED(m = 0)
    REFUSED(n = 0)
    REFUSED(k = 4)
    REFUSED(a_row = 9)
    REFUSED(b_row = 12)
    REFUSED(batch = 2)
    REFUSED(transposed = 1)
    REFUSED(c_type = KV_TYPE_F16)
    REFUSED(a = (const void *)(uintptr_t)8)
#undef REFUSED
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_products),
                                              cmocka_unit_test(test_taken)};

    return RUN_ON_DEVICE(tests);
}
