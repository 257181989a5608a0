/* Products on codes in plain C: equation 4, rounding, counted operations.
 * check_ops holds the other levels to it. */
#include "kernels/bitpack.h"
#include "kernels/hack/hack.h"
#include "kernels/level.h"
#include "tests/hack_setup.h"

/* The codes of column j, n of them, packed from byte j * stride on. */
static size_t pack_columns(const uint8_t *code, size_t n_columns, size_t n,
                           unsigned bits, uint8_t *packed)
{
    const size_t stride = kv_pack_bytes(n, bits);
    uint16_t wide[KV_HACK_MAX_PART];

    for (size_t j = 0; j < n_columns; j++) {
        for (size_t z = 0; z < n; z++)
            wide[z] = code[j * n + z];
        kv_pack(wide, n, bits, packed + j * stride);
    }
    return stride;
}

/* [m][z] by [n][z]', quantized in parts of p, against the product of the
 * dequantized matrices. */
static void check_product(size_t m, size_t n, size_t z, size_t p, unsigned bits)
{
    const size_t parts = (z + p - 1) / p, stride = KV_HACK_COLUMNS(n);
    float *a = values(m, 1, z, 1), *b = values(n, 1, z, 2),
          *u = values(1, 1, z, 3);
    uint8_t *ca = kv_alloc(m, p), *cb = kv_alloc(n, p);
    uint8_t *packed = kv_alloc(n, p),
            *code = kv_alloc(kv_hack_arranged_bytes(n, p), 1);
    float *min = kv_alloc(stride, 4), *scale = kv_alloc(stride, 4);
    int32_t *sum = kv_alloc(stride, 4);
    struct kv_hack_row *row = kv_alloc(m, sizeof(*row)), column;
    double *out = kv_alloc(m * n, 8), *exact = kv_alloc(m * n, 8);
    double *size = kv_alloc(m * n, 8);
    struct kv_hack_ops ops = {0};

    kv_hack_table()->uniform(9, 0, 1, z, u);
    for (size_t part = 0; part < parts; part++) {
        const size_t at = part * p, len = z - at < p ? z - at : p;

        for (size_t j = 0; j < n; j++) {
            kv_hack_table()->quantize(b + j * z + at, z, 1, len, bits, u + at,
                                      z, cb + j * len, len, &column);
            min[j] = column.range.min;
            scale[j] = column.range.scale;
            sum[j] = column.sum;
        }
        kv_hack_table()->arrange(packed, pack_columns(cb, n, len, bits, packed),
                                 bits, n, len, code);
        kv_hack_table()->quantize(a + at, z, m, len, 8, NULL, 0, ca, len, row);
        for (size_t i = 0; i < m; i++) {
            kv_hack_count_row(&ops, len);
            kv_hack_count_product(&ops, len, n, false);
        }

        const struct kv_hack_columns c = {code, n, len, bits, min, scale, sum};

        kv_hack_table()->multiply(row, m, &c, out, n);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++)
                for (size_t k = 0; k < len; k++) {
                    const double x =
                        row[i].range.min +
                        (double)row[i].range.scale * ca[i * len + k];
                    const double y =
                        min[j] + (double)scale[j] * cb[j * len + k];

                    exact[i * n + j] += x * y;
                    size[i * n + j] += fabs(x * y);
                }
    }
    for (size_t i = 0; i < m * n; i++)
        assert_true(fabs(out[i] - exact[i]) <= 1e-13 * size[i]);
    assert_int_equal(ops.products, 2 * m * z * n);
    assert_int_equal(ops.correction, kv_hack_formula(m, n, z, p, true));
    assert_int_equal(ops.correction, 9 * m * n * parts + m * z);
    assert_int_equal(ops.other, m * n * parts);
    free(a), free(b), free(u), free(ca), free(cb), free(packed), free(code);
    free(min), free(scale), free(sum), free(row), free(out), free(exact);
    free(size);
}

static void equation_4(void **state)
{
    static const size_t shapes[][4] = {
        {1, 1, 1, 16},    {1, 7, 16, 16},     {3, 5, 20, 16},
        {1, 130, 64, 64}, {2, 129, 128, 64},  {1, 9, 128, 32},
        {4, 3, 200, 64},  {2, 257, 128, 128}, {1, 2, 1024, 1024},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (unsigned bits = 1; bits <= 8; bits++)
            check_product(shapes[i][0], shapes[i][1], shapes[i][2],
                          shapes[i][3], bits);
}

/* ---- rounding ------------------------------------------------------------
 */

/* The mean over many draws is the value; whole numbers never move. */
static void rounding(void **state)
{
    enum { N = 21, DRAWS = 20000 };
    const struct kv_hack_range r = {-1, 0.25f};
    float x[N], u[N];
    double mean[N] = {0};
    uint8_t code[N];

    (void)state;
    for (size_t i = 0; i < N; i++)
        x[i] = -1 + 0.25f * (float)i * 0.15f;
    for (size_t k = 0; k < DRAWS; k++) {
        kv_hack_table()->uniform(11, k * N, 1, N, u);
        kv_hack_table()->round(x, N, r, 2, u, code);
        for (size_t i = 0; i < N; i++) {
            assert_true(fabs(code[i] - i * 0.15) < 1 + 1e-6);
            mean[i] += code[i];
        }
    }
    for (size_t i = 0; i < N; i++) /* 5 standard errors */
        assert_true(fabs(mean[i] / DRAWS - i * 0.15) <= 5 * 0.5 / sqrt(DRAWS));

    const float halves[] = {0.5f, 1.5f, 2.5f, -7, 99, 2.4999f};
    const uint8_t even[] = {0, 2, 2, 0, 3, 2};
    const struct kv_hack_range unit = {0, 1}, flat = {5, 0};

    kv_hack_table()->round(halves, 6, unit, 2, NULL, code);
    assert_memory_equal(code, even, sizeof(even));
    kv_hack_table()->round(halves, 6, flat, 2, NULL, code);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(code[i], 0);
    for (size_t i = 0; i < 4; i++) /* whole numbers, largest draw */
        x[i] = (float)i, u[i] = 1 - 0x1p-24f;
    kv_hack_table()->round(x, 4, unit, 2, u, code);
    for (int i = 0; i < 4; i++)
        assert_int_equal(code[i], i);
}

/* Random numbers depend only on the counter. */
static void draws(void **state)
{
    float u[64];

    (void)state;
    kv_hack_table()->uniform(3, 9, 5, 64, u);
    for (size_t i = 0; i < 64; i++)
        assert_true(u[i] == kv_random_unit(3, 9 + 5 * i));
}

/* The random numbers of weights are uniform and uncorrelated with the 32 before
 * each. */
static void weight_draws(void **state)
{
    enum { N = 1000 };
    float u[N];
    double sum = 0, square = 0, near[33] = {0};

    (void)state;
    for (uint64_t key = 0; key < 200; key++) {
        kv_hack_table()->weight_uniform(key, key << 20, N, u);
        for (size_t i = 0; i < N; i++) {
            assert_true(u[i] > 0 && u[i] < 1);
            sum += u[i] - 0.5;
            square += (u[i] - 0.5) * (u[i] - 0.5);
            for (size_t j = 1; j <= 32 && j <= i; j++)
                near[j] += (u[i] - 0.5) * (u[i - j] - 0.5);
        }
    }
    assert_true(fabs(sum / (200 * N)) < 0.003);
    assert_true(fabs(square / (200 * N) * 12 - 1) < 0.01);
    for (size_t j = 1; j <= 32; j++) /* its deviation is .0022 */
        assert_true(fabs(near[j] / (200 * N) * 12) < 0.01);
}

/* Words of four bytes, column by column. */
static void transposes(void **state)
{
    enum { ROWS = 17, MAX = 23, WIDE = KV_HACK_COLUMNS(ROWS) };
    uint8_t bytes[ROWS * MAX];
    uint32_t word[(MAX + 3) / 4 * WIDE];

    (void)state;
    for (size_t n = 1; n <= MAX; n++) {
        for (size_t i = 0; i < ROWS * n; i++)
            bytes[i] = (uint8_t)kv_random(9, i);
        kv_hack_table()->transpose(bytes, n, ROWS, n, word);
        for (size_t i = 0; i < ROWS * n; i++)
            assert_int_equal(word[i % n / 4 * WIDE + i / n] >> i % n % 4 * 8 &
                                 255,
                             bytes[i]);
    }
}

static void formulas(void **state)
{
    (void)state;
    assert_int_equal(kv_hack_formula(2, 3, 5, 5, false), 9 * 6 + 10 + 15);
    assert_int_equal(kv_hack_formula(2, 3, 5, 2, true), 9 * 6 * 3 + 10);
    assert_int_equal(kv_hack_formula(2, 3, 0, 5, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equation_4), cmocka_unit_test(rounding),
        cmocka_unit_test(draws),      cmocka_unit_test(weight_draws),
        cmocka_unit_test(transposes), cmocka_unit_test(formulas),
    };

    kv_level_set(KV_LEVEL_C, NULL); /* the definition */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
