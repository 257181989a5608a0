/* kernels/vecops: every level against double; what is no number or beyond f32.
 * check_ops compares the levels' bits. */
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/levels.h"

#include <math.h>

enum { MAX_N = 1030 };

static const size_t sizes[] = {0, 1, 7, 8, 9, 31, 32, 33, 64, 100, MAX_N};
enum { N_SIZES = sizeof(sizes) / sizeof(*sizes) };

static float *random_row(uint64_t key, double scale)
{
    float *x = kv_alloc(MAX_N, sizeof(*x));

    for (size_t i = 0; i < MAX_N; i++)
        x[i] = (float)(scale * kv_random_normal(key, i));
    return x;
}

/* Within this many units in the last place of y, or within 1e-38. */
static void assert_ulps(float x, double y, double ulps)
{
    if (!(fabs((double)x - y) <= ulps * fabs(y) * 0x1p-23 + 1e-38))
        fail_msg("%.9g is not %.9g", (double)x, y);
}

static void at_sizes(void (*f)(const float *x, const float *y, size_t n,
                               float *out))
{
    float *x = random_row(1, 8), *y = random_row(2, 1);
    float *out = kv_alloc(MAX_N, sizeof(*out));

    for (size_t i = 0; i < N_SIZES; i++)
        f(x, y, sizes[i], out);
    free(x);
    free(y);
    free(out);
}

static void rms_norm(const float *x, const float *w, size_t n, float *out)
{
    double squares = 0;

    for (size_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    kv_rms_norm(x, w, n, 0.1f, out);
    for (size_t i = 0; i < n; i++)
        assert_ulps(out[i],
                    (double)x[i] * (double)w[i] /
                        sqrt(squares / (double)n + (double)0.1f),
                    2);
}

static void silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    memcpy(out, gate, n * sizeof(*out));
    kv_silu_mul(out, up, n, out); /* in place */
    for (size_t i = 0; i < n; i++)
        assert_ulps(
            out[i],
            (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i], 5);
}

/* The gradient that comes from later layers. */
static const float *some_grads(void)
{
    static float g[MAX_N];

    for (size_t i = 0; i < MAX_N; i++)
        g[i] = (float)kv_random_normal(3, i);
    return g;
}

/* Within units of the last place of `size`, what the sum is made of. */
static void assert_sum(float x, double y, double size)
{
    if (!(fabs((double)x - y) <= 8 * size * 0x1p-23 + 1e-38))
        fail_msg("%.9g is not %.9g (of %g)", (double)x, y, size);
}

static void rms_norm_grad(const float *x, const float *w, size_t n, float *out)
{
    const float *g = some_grads();
    double squares = 0, product = 0;

    for (size_t i = 0; i < n; i++) {
        squares += (double)x[i] * (double)x[i];
        product += (double)x[i] * (double)w[i] * (double)g[i];
    }
    memcpy(out, g, n * sizeof(*out));
    kv_rms_norm_grad(x, w, out, n, 0.1f, out); /* in place */
    for (size_t i = 0; i < n; i++) {
        const double mean = squares / (double)n + (double)0.1f;
        const double a = (double)w[i] * (double)g[i] / sqrt(mean);
        const double b =
            (double)x[i] * product / (double)n / (mean * sqrt(mean));

        assert_sum(out[i], a - b, fabs(a) + fabs(b));
    }
}

static void silu_mul_grad(const float *gate, const float *up, size_t n,
                          float *out)
{
    const float *g = some_grads();
    float *other = kv_alloc(n, sizeof(*other));

    memcpy(out, gate, n * sizeof(*out));
    memcpy(other, up, n * sizeof(*other));
    kv_silu_mul_grad(out, other, g, n, out, other); /* in place */
    for (size_t i = 0; i < n; i++) {
        const double x = (double)gate[i], s = 1 / (1 + exp(-x));
        const double by = (double)g[i] * (double)up[i] * s;

        assert_sum(out[i], by * (1 + x * (1 - s)), fabs(by) * (1 + fabs(x)));
        assert_ulps(other[i], (double)g[i] * x * s, 5);
    }
    free(other);
}

static void softmax_grad(const float *x, const float *y, size_t n, float *out)
{
    float *p = kv_alloc(n, sizeof(*p));
    double sum = 0, size = 0;

    memcpy(p, x, n * sizeof(*p));
    memcpy(out, y, n * sizeof(*out));
    kv_softmax(p, n);
    for (size_t i = 0; i < n; i++) {
        sum += (double)p[i] * (double)y[i];
        size += fabs((double)p[i] * (double)y[i]);
    }
    kv_softmax_grad(p, out, n, out); /* in place */
    for (size_t i = 0; i < n; i++)
        assert_sum(out[i], (double)p[i] * ((double)y[i] - sum),
                   (double)p[i] * (fabs((double)y[i]) + size));
    free(p);
}

static void softmax(const float *x, const float *unused, size_t n, float *out)
{
    double sum = 0, max = -INFINITY;

    (void)unused;
    for (size_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    memcpy(out, x, n * sizeof(*out));
    kv_softmax(out, n);
    /* the difference to the maximum is rounded: up to 64 * 2^-24 */
    for (size_t i = 0; i < n; i++)
        assert_ulps(out[i], exp((double)x[i] - max) / sum, 40);
    if (n)
        assert_within(kv_log_sum_exp(x, n), max + log(sum), 1e-6);
}

static void exp_row(const float *x, const float *unused, size_t n, float *out)
{
    double sum = 0;

    (void)unused;
    memcpy(out, x, n * sizeof(*out));

    const double got = kv_row_exp(out, n, 0);

    for (size_t i = 0; i < n; i++) {
        assert_ulps(out[i], exp((double)x[i]), 2);
        sum += (double)out[i];
    }
    assert_true(fabs(got - sum) <= 1e-12 * sum);
}

static void largest(const float *x, const float *y, size_t n, float *out)
{
    float max = -INFINITY;
    size_t at = 0;

    (void)y;
    memset(out, 0, n * sizeof(*out));
    for (size_t i = 0; i < n; i++)
        if (x[i] > max) {
            max = x[i];
            at = i;
        }
    assert_true(kv_row_max(x, n) == max);
    assert_int_equal(kv_row_argmax(x, n), at);
}

/* Six rows, two more than the four processed together, of every width.
 */
static void times(const float *x, const float *y, size_t n, float *out)
{
    enum { ROWS = 6, TERMS = 5, STRIDE = MAX_N / ROWS };
    const size_t max = n < STRIDE ? n : STRIDE;
    const size_t rows = n < STRIDE ? 1 : ROWS;

    for (size_t d = 0; d <= max; d++) {
        memcpy(out, y, n * sizeof(*out));
        kv_vecops_times(y, 3, rows, x, TERMS, STRIDE, d, out, STRIDE);
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < STRIDE && j < n; j++) {
                float sum = y[r * STRIDE + j];

                for (size_t i = 0; i < TERMS && j < d; i++)
                    sum = fmaf(y[r * 3 + i], x[i * STRIDE + j], sum);
                assert_true(out[r * STRIDE + j] == sum);
            }
    }
}

/* Rows of 16, as many as a power of two that fit: column by column the same,
 * whichever are wanted. */
static void columns_hadamard(const float *x, const float *y, size_t n,
                             float *out)
{
    enum { WIDE = 16 };
    float column[MAX_N / WIDE], *copy = kv_alloc(n, sizeof(*copy));
    size_t m = n / WIDE;

    (void)y;
    memset(out, 0, n * sizeof(*out));
    while (m & (m - 1))
        m &= m - 1;
    for (size_t from = 0; from < m; from += m / 4 + 1)
        for (size_t to = from + 1; to <= m; to += m / 8 + 1) {
            const float *got;

            memcpy(copy, x, n * sizeof(*x));
            got = kv_vecops_hadamard(copy, m, WIDE, from, to - from, 0.3f);
            memcpy(out + from * WIDE, got, (to - from) * WIDE * sizeof(*got));
            for (size_t c = 0; c < WIDE; c++) {
                for (size_t r = 0; r < m; r++)
                    column[r] = x[r * WIDE + c];
                kv_row_hadamard(column, m, 0.3f);
                for (size_t r = from; r < to; r++)
                    assert_true(out[r * WIDE + c] == column[r]);
            }
        }
    free(copy);
}

static void added(const float *x, const float *y, size_t n, float *out)
{
    memcpy(out, x, n * sizeof(*x));
    kv_row_add(out, y, n);
    for (size_t i = 0; i < n; i++)
        assert_true(out[i] == x[i] + y[i]);
}

static void scaled(const float *x, const float *y, size_t n, float *out)
{
    (void)y;
    memcpy(out, x, n * sizeof(*x));
    kv_row_scale(out, n, 0.3f);
    for (size_t i = 0; i < n; i++)
        assert_true(out[i] == x[i] * 0.3f);
}

/* The way back of every activation, by its way forward. */
static void test_activation_grads(void **state)
{
    (void)state;
    for (enum kv_act act = KV_ACT_SILU; act <= KV_ACT_RELU2; act++)
        for (int i = -40; i <= 40; i++) {
            const float x = (float)i / 8 + 0.01f, up = 1.5f, g = -0.75f;
            const float ends[] = {x + 4e-3f, x - 4e-3f};
            float y[2], at, gate_grad = x, up_grad = up;

            kv_activate(act, ends, 2, y);
            kv_activate(act, &x, 1, &at);
            kv_activate_mul_grad(act, &gate_grad, &up_grad, &g, 1, &gate_grad,
                                 &up_grad); /* in place */
            assert_within(gate_grad,
                          g * up * (y[0] - y[1]) / (ends[0] - ends[1]), 1e-3);
            assert_within(up_grad, g * at, 1e-6 * fmax(1, fabs((double)at)));
        }
}

static void test_sizes(void **state)
{
    (void)state;
    at_sizes(added);
    at_sizes(scaled);
    at_sizes(rms_norm);
    at_sizes(silu_mul);
    at_sizes(rms_norm_grad);
    at_sizes(silu_mul_grad);
    at_sizes(softmax_grad);
    at_sizes(softmax);
    at_sizes(exp_row);
    at_sizes(largest);
    at_sizes(times);
    at_sizes(columns_hadamard);
}

/* exp over its whole range, and what is beyond. */
static void test_exp(void **state)
{
    float x[8];

    (void)state;
    for (float v = -87.3f; v < 88.3f; v += 0.0371f) {
        for (size_t i = 0; i < 8; i++)
            x[i] = v + 0.004f * (float)i;
        kv_row_exp(x, 8, 0);
        for (size_t i = 0; i < 8; i++)
            assert_ulps(x[i], exp((double)(v + 0.004f * (float)i)), 2);
    }

    const float from[] = {0,        -0.0f, -88,   -INFINITY, 89,
                          INFINITY, NAN,   1e30f, -1e30f};
    const float to[] = {1, 1, 0, 0, INFINITY, INFINITY, NAN, INFINITY, 0};

    for (size_t i = 0; i < sizeof(from) / sizeof(*from); i++) {
        x[0] = from[i];

        const double sum = kv_row_exp(x, 1, 0);

        assert_true(isnan(to[i]) ? isnan(x[0]) && isnan(sum)
                                 : x[0] == to[i] && sum == (double)to[i]);
    }
}

static void test_special_values(void **state)
{
    float x[] = {1, NAN, 3, -INFINITY, 3};
    float masked[] = {-INFINITY, 0, -INFINITY, 0};
    float ends[4] = {-200, 200}, ones[] = {1, 1};
    float none[] = {-INFINITY, -INFINITY};

    (void)state;
    assert_true(kv_row_max(x, 5) == 3);
    assert_int_equal(kv_row_argmax(x, 5), 2);
    assert_true(isnan(kv_log_sum_exp(x, 5)));
    assert_true(isnan(kv_log_sum_exp(x + 1, 1)));
    assert_true(kv_log_sum_exp(x, 0) == -INFINITY);
    assert_true(kv_log_sum_exp(none, 2) == -INFINITY);
    kv_softmax(masked, 4);
    assert_true(masked[0] == 0 && masked[1] == 0.5f && masked[3] == 0.5f);
    kv_softmax(none, 2);
    assert_true(isnan(none[0]) && isnan(none[1]));
    kv_silu_mul(ends, ones, 2, ends);
    assert_true(ends[0] == 0 && ends[1] == 200);
    ends[0] = -200;
    kv_silu_mul_grad(ends, ones, ones, 2, ends, ends + 2);
    assert_true(ends[0] == 0 && ends[1] == 1);
    assert_true(ends[2] == 0 && ends[3] == 200);
    kv_row_add(x, x, 1);
    assert_true(x[0] == 2);
}

/* All 65536, from an odd address. */
static void test_widen(void **state)
{
    enum { N = 0x10000 };
    uint8_t *from = kv_alloc(2 * N + 1, 1);
    float *f16 = kv_alloc(N, sizeof(*f16)), *bf16 = kv_alloc(N, sizeof(*bf16));

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        const uint16_t h = (uint16_t)i;

        memcpy(from + 1 + 2 * i, &h, 2);
    }
    kv_dequantize_f16(from + 1, N, f16);
    kv_dequantize_bf16(from + 1, N, bf16);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(kv_f32_bits(f16[i]),
                         kv_f32_bits(kv_f16_to_f32((uint16_t)i)));
        assert_int_equal(kv_f32_bits(bf16[i]), i << 16);
    }
    free(from);
    free(f16);
    free(bf16);
}

/* Every half, its neighbouring floats, the floats around the middle to the next
 * half, and floats of all sizes. */
static void test_round(void **state)
{
    enum { HALVES = 0x10000, EACH = 6, N = EACH * HALVES + 0x10007 };
    float *x = kv_alloc(N, sizeof(*x)), *out = kv_alloc(N, sizeof(*out));

    (void)state;
    for (uint32_t i = 0; i < HALVES; i++) {
        const uint32_t u = kv_f32_bits(kv_f16_to_f32((uint16_t)i));
        const uint32_t middle = kv_f32_bits(
            (kv_f16_to_f32((uint16_t)i) + kv_f16_to_f32((uint16_t)(i + 1))) /
            2);

        for (uint32_t j = 0; j < 3; j++) {
            x[EACH * i + j] = kv_bits_f32(u + j - 1);
            x[EACH * i + 3 + j] = kv_bits_f32(middle + j - 1);
        }
    }
    for (uint32_t i = EACH * HALVES; i < N; i++)
        x[i] = kv_bits_f32(i * 65539);
    kv_round_f16(x, N, out);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(kv_f32_bits(out[i]),
                         kv_f32_bits(kv_f16_to_f32(kv_f16_clamp(x[i]))));
    for (size_t n = 0; n < 40; n++)
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < n; j++)
                out[j] = 1;
            assert_true(kv_row_is_finite(out, n));
            out[i] = i % 2 ? NAN : -INFINITY;
            assert_false(kv_row_is_finite(out, n));
        }
    assert_true(kv_row_is_finite(x, 0));
    free(x);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_activation_grads),
        cmocka_unit_test(test_exp),   cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_widen), cmocka_unit_test(test_round),
    };

    int failed = 0;

    for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
        kv_level_set((enum kv_level)l, NULL);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
