/* kernels/gemm: against double, on awkward sizes and strides; the same bits
 * whoever calls. */
#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>
#include <omp.h>

/* Unused memory at the end of each row. */
enum { PAD = 3 };

enum form { PLAIN, B_TRANS, A_TRANS, VIEWS };

struct product {
    size_t m, n, k, lda, ldb, ldc;
    enum form form;
    float alpha, beta;
    float *a, *b, *c;
};

static float *random_floats(size_t n, uint64_t key)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
    return x;
}

static struct product product_new(size_t m, size_t n, size_t k, enum form form)
{
    struct product p = {.m = m,
                        .n = n,
                        .k = k,
                        .lda = (form == A_TRANS ? m : k) + PAD,
                        .ldb = (form == B_TRANS ? k : n) + PAD,
                        .ldc = n + PAD,
                        .form = form,
                        .alpha = 1,
                        .beta = 0};

    p.a = random_floats((form == A_TRANS ? k : m) * p.lda, 1);
    p.b = random_floats((form == B_TRANS ? n : k) * p.ldb, 2);
    p.c = random_floats(m * p.ldc, 3);
    return p;
}

static void product_free(struct product *p)
{
    free(p->a);
    free(p->b);
    free(p->c);
}

static void run(const struct product *p, float *c)
{
    if (p->form == A_TRANS)
        kv_gemm_a_trans(p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb,
                        p->beta, c, p->ldc);
    else
        kv_gemm(p->form == B_TRANS, p->m, p->n, p->k, p->alpha, p->a, p->lda,
                p->b, p->ldb, p->beta, c, p->ldc);
}

/* The usual bound of a sum of k products: k units of the sum of their
 * absolute values. */
static void check(const struct product *p)
{
    float *c = kv_alloc(p->m * p->ldc, sizeof(*c));

    memcpy(c, p->c, p->m * p->ldc * sizeof(*c));
    for (size_t i = 0; p->beta == 0 && i < p->m; i++)
        for (size_t j = 0; j < p->n; j++)
            c[i * p->ldc + j] = NAN; /* beta 0 does not read c */
    run(p, c);
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < p->n; j++) {
            const double before = (double)p->c[i * p->ldc + j];
            double sum = 0, size = 0;

            for (size_t z = 0; z < p->k; z++) {
                const double x =
                    (double)p->a[p->form == A_TRANS ? z * p->lda + i
                                                    : i * p->lda + z] *
                    (double)p->b[p->form == B_TRANS ? j * p->ldb + z
                                                    : z * p->ldb + j];

                sum += x;
                size += fabs(x);
            }
            sum = (double)p->alpha * sum + (double)p->beta * before;
            size = (double)p->alpha * size + fabs((double)p->beta * before);
            assert_within(c[i * p->ldc + j], sum,
                          size * (double)(p->k + 2) * 0x1p-24);
        }
        assert_memory_equal(c + i * p->ldc + p->n, p->c + i * p->ldc + p->n,
                            PAD * sizeof(*c));
    }
    free(c);
}

static void test_sizes(void **state)
{
    const size_t sizes[] = {0, 1, 2, 15, 16, 17, 64, 129};
    const size_t n_sizes = sizeof(sizes) / sizeof(*sizes);

    (void)state;
    for (size_t i = 0; i < VIEWS * n_sizes * n_sizes * n_sizes; i++) {
        struct product p = product_new(
            sizes[i / VIEWS % n_sizes], sizes[i / VIEWS / n_sizes % n_sizes],
            sizes[i / VIEWS / n_sizes / n_sizes], (enum form)(i % VIEWS));

        check(&p);
        p.alpha = 0.5f;
        p.beta = 1;
        check(&p);
        p.beta = -2;
        check(&p);
        product_free(&p);
    }
}

/* A size whose sums oneDNN splits when it is given several threads. */
static void test_same_bits(void **state)
{
    struct product p = product_new(256, 2048, 1024, B_TRANS);
    const size_t bytes = p.m * p.n * sizeof(float);
    float *one = kv_alloc(bytes, 1), *many = kv_alloc(bytes, 4);
    const int threads = omp_get_max_threads();

    (void)state;
    p.lda = p.ldb = p.k;
    p.ldc = p.n;
    omp_set_num_threads(1);
    run(&p, one);
    omp_set_num_threads(4);
    run(&p, many);
    assert_int_equal(omp_get_max_threads(), 4);
    assert_memory_equal(one, many, bytes);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < 4; i++)
        run(&p, many + i * p.m * p.n);
    for (size_t i = 0; i < 4; i++)
        assert_memory_equal(one, many + i * p.m * p.n, bytes);
    omp_set_num_threads(threads);
    free(one);
    free(many);
    product_free(&p);
}

/* Products of bf16 are exact in f32: only sums round.  The same bits for any
 * number of threads. */
static void test_bf16(void **state)
{
    static const size_t sizes[][3] = {{1, 5, 3}, {17, 33, 70}, {128, 96, 257}};

    (void)state;
    if (!kv_gemm_has_bf16())
        skip();
    for (size_t t = 0; t < sizeof(sizes) / sizeof(*sizes); t++) {
        const size_t m = sizes[t][0], n = sizes[t][1], k = sizes[t][2];
        float *a = random_floats(m * k, 1), *b = random_floats(n * k, 2);
        float *c = random_floats(m * n, 3), *again = random_floats(m * n, 3);
        float *before = random_floats(m * n, 3);
        uint16_t *half = kv_alloc(n * k, sizeof(*half));

        for (size_t i = 0; i < n * k; i++)
            half[i] = kv_f32_to_bf16(b[i]);
        kv_gemm_bf16(m, n, k, a, half, true, c, n);
#pragma omp parallel for num_threads(2)
        for (int i = 0; i < 2; i++)
            if (i)
                kv_gemm_bf16(m, n, k, a, half, true, again, n);
        assert_memory_equal(c, again, m * n * sizeof(*c));
        for (size_t i = 0; i < m * n; i++) {
            double want = (double)before[i];

            for (size_t j = 0; j < k; j++)
                want +=
                    (double)kv_bf16_to_f32(kv_f32_to_bf16(a[i / n * k + j])) *
                    (double)kv_bf16_to_f32(half[i % n * k + j]);
            assert_within(c[i], want, 1e-5 * sqrt((double)k));
        }
        free(half);
        free(before);
        free(again);
        free(c);
        free(b);
        free(a);
    }
}

static void test_library(void **state)
{
    (void)state;
    assert_true(strlen(kv_gemm_library()) > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_library),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
