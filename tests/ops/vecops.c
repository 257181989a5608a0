/* kernels/vecops: the same bits at every level (vecops.h). */
#include "kernels/vecops/vecops.h"
#include "kernels/vecops/impl.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HALVES = 0x10000, EACH = 6, WIDE = 16, ROWS = 6, TERMS = 5 };

struct row {
    size_t n;
    float *x, *y, *g; /* [n] */
    float *near_half; /* [n]: halves, middles between two halves, and values
                       * next to both */
    float *m, *work;  /* [WIDE / 2][n] */
    uint16_t *half;   /* [n] */
};

static float *normal(uint64_t key, size_t n, double scale)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * kv_random_normal(key, i));
    return x;
}

/* Every value occurs once for i < EACH * HALVES. */
static float near_half(size_t i)
{
    const size_t at = i * 40507 % (EACH * HALVES);
    const uint16_t h = (uint16_t)(at / EACH);
    const float x = kv_f16_to_f32(h);
    const float middle = (x + kv_f16_to_f32((uint16_t)(h + 1))) / 2;

    return kv_bits_f32(kv_f32_bits(at % 2 ? middle : x) +
                       (uint32_t)(at % EACH / 2) - 1);
}

static void *open_row(size_t i, struct check_size *size)
{
    static const size_t n[] = {0,  1,  2,   7,    8,   9,    31,           32,
                               33, 64, 100, 1030, 128, 4096, EACH * HALVES};
    struct row *r;

    if (i == COUNT(n))
        return NULL;
    snprintf(size->label, sizeof(size->label), "n%zu", n[i]);
    size->timed = n[i] == 128 || n[i] == 4096;
    r = kv_alloc(1, sizeof(*r));
    *r = (struct row){.n = n[i],
                      .x = normal(1, n[i], 8),
                      .y = normal(2, n[i], 1),
                      .g = normal(3, n[i], 1),
                      .m = normal(4, WIDE / 2 * n[i], 1),
                      .work = kv_alloc(WIDE / 2 * n[i], sizeof(float)),
                      .near_half = kv_alloc(n[i], sizeof(float)),
                      .half = kv_alloc(n[i], sizeof(uint16_t))};
    for (size_t j = 0; j < n[i]; j++) {
        r->near_half[j] = near_half(j);
        r->half[j] = (uint16_t)(j * 40507);
    }
    return r;
}

static void close_row(void *in)
{
    struct row *r = in;

    free(r->x), free(r->y), free(r->g), free(r->m), free(r->work);
    free(r->near_half), free(r->half), free(r);
}

/* For operations in place. */
static size_t copy(const struct row *r, void *out)
{
    memcpy(out, r->x, r->n * sizeof(float));
    return r->n * sizeof(float);
}

#define RUN(name, bytes, call) CHECK_RUN(name, struct row, bytes, call)
#define FLOATS (r->n * sizeof(float))

RUN(rms_norm, FLOATS, kv_rms_norm(r->x, r->y, r->n, 0.1f, out))
RUN(silu_mul, FLOATS, kv_silu_mul(r->x, r->y, r->n, out))
RUN(rms_norm_grad, FLOATS, kv_rms_norm_grad(r->x, r->y, r->g, r->n, 0.1f, out))
RUN(silu_mul_grad, 2 * FLOATS,
    kv_silu_mul_grad(r->x, r->y, r->g, r->n, out, (float *)out + r->n))
RUN(softmax_grad, FLOATS, kv_softmax_grad(r->x, r->g, r->n, out))
RUN(max, sizeof(float), *(float *)out = kv_row_max(r->x, r->n))
RUN(log_sum_exp, sizeof(double), *(double *)out = kv_log_sum_exp(r->x, r->n))
RUN(round_f16, FLOATS, kv_round_f16(r->near_half, r->n, out))
RUN(widen_f16, FLOATS, kv_dequantize_f16(r->half, r->n, out))
RUN(widen_bf16, FLOATS, kv_dequantize_bf16(r->half, r->n, out))
RUN(add, FLOATS, (copy(r, out), kv_row_add(out, r->y, r->n)))
RUN(scale, FLOATS, (copy(r, out), kv_row_scale(out, r->n, 0.3f)))
RUN(softmax, FLOATS, (copy(r, out), kv_softmax(out, r->n)))

static size_t exp_row(const void *in, void *out)
{
    const struct row *r = in;
    const size_t bytes = copy(r, out);
    const double sum = kv_row_exp(out, r->n, 0.5f);

    memcpy((char *)out + bytes, &sum, sizeof(sum));
    return bytes + sizeof(sum);
}

/* Two rows more than are processed together. */
static size_t times(const void *in, void *out)
{
    const struct row *r = in;

    if (r->n < ROWS * TERMS || r->n > 4096)
        return CHECK_NONE;
    memcpy(out, r->m, ROWS * r->n * sizeof(float));
    kv_vecops_times(r->y, TERMS, ROWS, r->m, TERMS, r->n, r->n, out, r->n);
    return ROWS * r->n * sizeof(float);
}

/* Parts of as many values as the largest power of two that divides n. */
static size_t hadamard(const void *in, void *out)
{
    const struct row *r = in;
    const size_t bytes = copy(r, out), m = r->n & (~r->n + 1);

    for (size_t i = 0; i < r->n; i += m)
        kv_row_hadamard((float *)out + i, m, 0.3f);
    return bytes;
}

/* Columns with the largest possible number of rows, a power of two; some rows
 * are wanted. */
static size_t rows_hadamard(const void *in, void *out)
{
    const struct row *r = in;
    size_t m = r->n / 2;

    if (!m || r->n > 4096)
        return CHECK_NONE;
    while (m & (m - 1))
        m &= m - 1;
    for (size_t all = 0; all < 2; all++) {
        const size_t wanted = all ? m : (m + 1) / 2;

        memcpy(r->work, r->m, m * WIDE * sizeof(float));
        memcpy(
            (float *)out + all * (m + 1) / 2 * WIDE,
            kv_vecops_hadamard(r->work, m, WIDE, all ? 0 : m / 4, wanted, 0.3f),
            wanted * WIDE * sizeof(float));
    }
    return ((m + 1) / 2 + m) * WIDE * sizeof(float);
}

/* Checks the row as it is, and with each of the first 40 values made NaN or
 * infinite. */
static size_t is_finite(const void *in, void *out)
{
    const struct row *r = in;
    const size_t n = r->n < 40 ? r->n : 40;

    memcpy(r->work, r->x, r->n * sizeof(float));
    *(uint8_t *)out = kv_row_is_finite(r->work, r->n);
    for (size_t i = 0; i < n; i++) {
        r->work[i] = kv_bits_f32(i % 2 ? 0x7fc00000 : 0xff800000);
        ((uint8_t *)out)[1 + i] = kv_row_is_finite(r->work, r->n);
        r->work[i] = r->x[i];
    }
    return 1 + n;
}

#define OP(member, run)                                 \
    {                                                   \
#member, RUNS(struct kv_vecops, member), 0, run \
    }
static const struct check_op ops[] = {
    OP(rms_norm, rms_norm),
    OP(silu_mul, silu_mul),
    OP(rms_norm_grad, rms_norm_grad),
    OP(silu_mul_grad, silu_mul_grad),
    OP(softmax_grad, softmax_grad),
    OP(add, add),
    OP(scale, scale),
    OP(max, max),
    OP(exp, exp_row),
    OP(softmax, softmax),
    OP(log_sum_exp, log_sum_exp),
    OP(times, times),
    OP(round_f16, round_f16),
    OP(hadamard, hadamard),
    OP(rows_hadamard, rows_hadamard),
    OP(is_finite, is_finite),
    OP(widen_f16, widen_f16),
    OP(widen_bf16, widen_bf16),
};

const struct check_family check_vecops = {
    "vecops", MEMBERS(struct kv_vecops), ops, COUNT(ops), false, open_row,
    close_row};
