/* Products on codes: equation 4, rounding, counted operations, levels. */
#include "kernels/bitpack.h"
#include "kernels/hack/hack.h"
#include "kernels/level.h"
#include "tests/hack_setup.h"

/* The codes of column j, n of them, packed from byte j * stride on. */
static size_t pack_columns(const uint8_t *code, size_t n_columns, size_t n,
                           unsigned bits, size_t gap, uint8_t *packed)
{
    const size_t stride = kv_pack_bytes(n, bits) + gap;
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
        kv_hack_table()->arrange(packed,
                                 pack_columns(cb, n, len, bits, 0, packed),
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
    for (int level = KV_LEVEL_C; level <= (int)kv_level_max(); level++) {
        kv_level_set((enum kv_level)level, NULL);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            for (unsigned bits = 1; bits <= 8; bits++)
                check_product(shapes[i][0], shapes[i][1], shapes[i][2],
                              shapes[i][3], bits);
    }
}

/* ---- levels ---------------------------------------------------------------
 */

enum { CANARY = 16 };

/* A level's output of n bytes, with poison before and a canary behind. */
static uint8_t *poisoned(size_t n)
{
    uint8_t *p = kv_alloc(n + CANARY, 1);

    memset(p, 0xa5, n + CANARY);
    return p;
}

static void same(const char *what, size_t n, const uint8_t *want, uint8_t *got,
                 size_t bytes)
{
    for (size_t i = 0; i < bytes + CANARY; i++)
        if (want[i] != got[i])
            fail_msg("%s of %zu, %s: byte %zu of %zu", what, n,
                     kv_level_name(kv_level_get()), i, bytes);
    free(got);
}

/* f writes `bytes` bytes of results: the same at every level. */
static void same_at_levels(const char *what, size_t n, size_t bytes,
                           void (*f)(const void *arg, void *out),
                           const void *arg)
{
    uint8_t *want = poisoned(bytes);

    kv_level_set(KV_LEVEL_C, NULL);
    f(arg, want);
    for (size_t i = 0; i < CANARY; i++)
        assert_int_equal(want[bytes + i], 0xa5);
    for (int level = KV_LEVEL_AVX2; level <= (int)kv_level_max(); level++) {
        uint8_t *got = poisoned(bytes);

        kv_level_set((enum kv_level)level, NULL);
        f(arg, got);
        same(what, n, want, got, bytes);
    }
    free(want);
}

/* A row of n floats and the results of the loops along it. */
struct vector {
    const float *x, *u;
    size_t n;
    unsigned bits;
};

enum { N_PLAIN = 5 };

/* N_PLAIN times the row, from another place on and with other draws. */
static void quantize(const void *arg, void *out)
{
    const struct vector *v = arg;
    const size_t n = v->n - (v->n > N_PLAIN ? N_PLAIN : 0);
    struct kv_hack_row row[N_PLAIN];
    uint8_t *to = out;

    kv_hack_table()->quantize(v->x, n < v->n, N_PLAIN, n, v->bits, v->u,
                              n < v->n, to, v->n, row);
    for (size_t i = 0; i < N_PLAIN; i++) {
        assert_ptr_equal(row[i].code, to + i * v->n);
        assert_int_equal(row[i].n, n);
        memcpy(to + N_PLAIN * v->n + i * 12, &row[i].range, 8);
        memcpy(to + N_PLAIN * v->n + i * 12 + 8, &row[i].sum, 4);
    }
}

static void scale(const void *arg, void *out)
{
    const struct vector *v = arg;

    kv_hack_table()->scale(v->u, v->n + 1, N_PLAIN, v->n, v->x, out, v->n);
}

static void uniform(const void *arg, void *out)
{
    const struct vector *v = arg;

    kv_hack_table()->uniform(77, UINT64_MAX - 5, v->bits << 16, v->n, out);
}

static void narrow(const void *arg, void *out)
{
    const struct vector *v = arg;
    double x[KV_HACK_MAX_PART];

    for (size_t i = 0; i < v->n; i++)
        x[i] = (double)v->x[i] * 1.7;
    kv_hack_table()->narrow(x, v->n, 0.3, out);
}

static void plain_dots(const void *arg, void *out)
{
    const struct vector *v = arg;

    kv_hack_table()->dots(v->x, v->u, v->n + 1, N_PLAIN, v->n, out);
}

static void plain_add(const void *arg, void *out)
{
    const struct vector *v = arg;

    for (size_t i = 0; i < v->n; i++)
        ((double *)out)[i] = v->x[i];
    kv_hack_table()->add(v->x, v->u, v->n + 1, N_PLAIN, v->n, out);
}

static void rows_at_levels(void **state)
{
    static const size_t sizes[] = {1,  2,  3,  7,  8,  9,  15, 16,  17,
                                   31, 32, 33, 63, 64, 65, 80, 127, 1024};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const size_t n = sizes[i];
        float *x = values(1, 1, n + N_PLAIN, 4);
        float *m = values(N_PLAIN, 1, n + 1, 5);
        float u[KV_HACK_MAX_PART];
        struct vector v = {.x = x, .n = n};

        kv_hack_table()->uniform(5, 0, 1, n, u);
        for (v.bits = 1; v.bits <= 8; v.bits++) {
            v.u = u;
            same_at_levels("stochastic", n, N_PLAIN * (n + 12), quantize, &v);
            v.u = NULL;
            same_at_levels("nearest", n, N_PLAIN * (n + 12), quantize, &v);
            same_at_levels("uniform", n, n * 4, uniform, &v);
        }
        v.u = m;
        same_at_levels("narrow", n, n * 4, narrow, &v);
        same_at_levels("scale", n, N_PLAIN * n * 4, scale, &v);
        same_at_levels("dots", n, N_PLAIN * 8, plain_dots, &v);
        same_at_levels("add", n, n * 8, plain_add, &v);
        for (size_t j = 0; j < n; j++) /* flat, and both zeros */
            x[j] = j % 2 ? -0.0f : 0;
        v.u = u;
        same_at_levels("zeros", n, N_PLAIN * (n + 12), quantize, &v);
        free(m), free(x);
    }
    same_at_levels("uniform", 0, 0, uniform, &(struct vector){.bits = 1});
    for (size_t i = 0; i < 64; i++) {
        float u[64];

        kv_hack_table()->uniform(3, 9, 5, 64, u);
        assert_true(u[i] == kv_random_unit(3, 9 + 5 * i));
    }
}

/* Columns of codes, packed with a gap behind each. */
struct product {
    size_t rows, columns, n;
    unsigned bits;
    bool folded;
    const uint8_t *packed;
    size_t stride;
    const struct kv_hack_row *row;
    const float *x; /* ranges */
};

static void multiply(const void *arg, void *out)
{
    const struct product *p = arg;
    const size_t stride = KV_HACK_COLUMNS(p->columns);
    uint8_t *code = kv_alloc(kv_hack_arranged_bytes(p->columns, p->n), 1);
    int32_t *sum = kv_alloc(stride, sizeof(*sum));
    float *min = kv_alloc(stride, sizeof(*min));
    struct kv_hack_columns c = {.code = code,
                                .n_columns = p->columns,
                                .n = p->n,
                                .bits = p->bits,
                                .sum = sum};
    double *o = out;

    for (size_t i = 0; i < p->rows * (p->columns + 1); i++)
        o[i] = 0.1;
    memcpy(min, p->x, p->columns * sizeof(*min));
    memset(code, 0xff, kv_hack_arranged_bytes(p->columns, p->n));
    kv_hack_table()->arrange(p->packed, p->stride, p->bits, p->columns, p->n,
                             code);
    kv_hack_table()->sums(code, p->columns, p->n, sum);
    if (!p->folded) {
        c.min = min;
        c.scale = min;
    }
    kv_hack_table()->multiply(p->row, p->rows, &c, out, p->columns + 1);

    /* the columns behind the first 16 alone */
    if (p->columns > 16) {
        c.code += kv_hack_arranged_bytes(16, p->n);
        c.sum += 16;
        c.min = NULL;
        c.scale = NULL;
        c.n_columns -= 16;
        kv_hack_table()->multiply(p->row, p->rows, &c, o + 16, p->columns + 1);
    }
    free(min), free(sum), free(code);
}

static void check_levels(size_t rows, size_t columns, size_t n, unsigned bits,
                         bool largest)
{
    const size_t gap = bits % 3;
    const size_t stride = kv_pack_bytes(n, bits) + gap;
    uint8_t *code = kv_alloc(columns, n), *a = kv_alloc(rows, n);
    uint8_t *packed = kv_alloc(columns, stride);
    struct kv_hack_row *row = kv_alloc(rows, sizeof(*row));
    float *x = values(1, 1, columns, 8);

    for (size_t i = 0; i < columns * n; i++)
        code[i] =
            (uint8_t)((largest ? 255 : kv_random(6, i)) & ((1u << bits) - 1));
    for (size_t i = 0; i < rows; i++) {
        row[i] = (struct kv_hack_row){a + i * n, n, {0.1f, 0.3f}, 0};
        for (size_t z = 0; z < n; z++) {
            a[i * n + z] = largest ? 255 * (i % 2) : (uint8_t)kv_random(7, z);
            row[i].sum += a[i * n + z];
        }
    }
    pack_columns(code, columns, n, bits, gap, packed);
    for (int folded = 0; folded < 2; folded++)
        same_at_levels("products", columns, rows * (columns + 1) * 8, multiply,
                       &(struct product){rows, columns, n, bits, folded, packed,
                                         stride, row, x});
    free(x), free(row), free(packed), free(a), free(code);
}

static void products_at_levels(void **state)
{
    static const size_t columns[] = {0,  1,  7,  8,  9,  15, 16, 17,
                                     31, 33, 63, 64, 65, 80, 129};
    static const size_t lengths[] = {1,  3,  4,  5,  15, 16,
                                     17, 32, 63, 64, 80, 128};

    (void)state;
    for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++)
        for (size_t j = 0; j < sizeof(lengths) / sizeof(*lengths); j++)
            for (unsigned bits = 1; bits <= 8; bits++)
                check_levels(1 + (i + j) % 6, columns[i], lengths[j], bits,
                             false);
    for (unsigned bits = 1; bits <= 8; bits++)
        check_levels(5, 17, KV_HACK_MAX_PART, bits, true);
    check_levels(0, 17, 16, 2, false);
}

struct transposed {
    const uint8_t *bytes;
    size_t rows, n, stride;
};

static void transpose(const void *arg, void *out)
{
    const struct transposed *t = arg;
    const size_t row = KV_HACK_COLUMNS(t->rows);
    uint32_t *word = kv_alloc((t->n + 3) / 4, row * sizeof(*word));

    kv_hack_table()->transpose(t->bytes, t->stride, t->rows, t->n, word);
    for (size_t i = 0; i < (t->n + 3) / 4; i++)
        memcpy((uint32_t *)out + i * t->rows, word + i * row,
               t->rows * sizeof(*word));
    free(word);
}

static void turns_at_levels(void **state)
{
    enum { MAX = 67 };
    static const size_t rows[] = {0, 1, 15, 16, 17, 33, 64};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        for (size_t n = 1; n < MAX; n += n < 18 ? 1 : 7) {
            const size_t stride = n + i % 3;
            /* to the last byte: reads past it are found */
            uint8_t *bytes =
                kv_alloc(rows[i] ? (rows[i] - 1) * stride + n : 0, 1);
            uint32_t word[MAX / 4 * 64 + 64];
            const struct transposed t = {bytes, rows[i], n, stride};

            for (size_t j = 0; rows[i] && j < (rows[i] - 1) * stride + n; j++)
                bytes[j] = (uint8_t)kv_random(9, j);
            same_at_levels("turn", n, (n + 3) / 4 * rows[i] * 4, transpose, &t);
            transpose(&t, word);
            for (size_t j = 0; j < rows[i]; j++)
                for (size_t k = 0; k < n; k++)
                    assert_int_equal(word[k / 4 * rows[i] + j] >> k % 4 * 8 &
                                         255,
                                     bytes[j * stride + k]);
            free(bytes);
        }
}

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

static void formulas(void **state)
{
    (void)state;
    assert_int_equal(kv_hack_formula_decode(128, 1000, false),
                     10 * (128 + 1000) + 2 * 128 * 1000);
    assert_int_equal(kv_hack_formula(2, 3, 5, 5, false), 9 * 6 + 10 + 15);
    assert_int_equal(kv_hack_formula(2, 3, 5, 2, true), 9 * 6 * 3 + 10);
    assert_int_equal(kv_hack_formula(2, 3, 0, 5, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equation_4),         cmocka_unit_test(rows_at_levels),
        cmocka_unit_test(products_at_levels), cmocka_unit_test(turns_at_levels),
        cmocka_unit_test(rounding),           cmocka_unit_test(formulas),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
