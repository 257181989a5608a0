/* kernels/hack: the same bits at every level.  The order of arranged codes is a
 * version's own, so their sums and products are compared (hack.h). */
#include "kernels/hack/hack.h"
#include "kernels/bitpack.h"
#include "kernels/level.h"
#include "lib/base/alloc.h"
#include "tests/ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, MAX = KV_HACK_MAX_PART };

struct product {
    size_t rows, columns, n;
    unsigned bits;
    float *x, *m, *u; /* [n + ROWS], [ROWS][n + 1], [n + ROWS] in [0, 1) */
    double *wide;     /* [n] */
    uint8_t *packed;  /* [columns][stride] */
    size_t stride;
    uint8_t *a;     /* [rows][n] */
    uint32_t *word; /* words of packed, transposed */
    struct kv_hack_row row[ROWS + 1];
    float *range; /* [columns, filled up] */
    int32_t *sum;
    uint8_t *code[4]; /* of kv_level_version(), arranged when asked for */
};

static void fill_columns(struct product *p, bool largest)
{
    uint16_t code[MAX];

    for (size_t j = 0; j < p->columns; j++) {
        for (size_t z = 0; z < p->n; z++)
            code[z] = (uint16_t)((largest ? 255 : kv_random(6, j * p->n + z)) &
                                 ((1u << p->bits) - 1));
        kv_pack(code, p->n, p->bits, p->packed + j * p->stride);
        p->range[j] = p->x[j % p->n];
        for (size_t z = 0; z < p->n; z++)
            p->sum[j] += code[z];
    }
    for (size_t i = 0; i < p->rows; i++) {
        uint8_t *a = p->a + i * p->n;

        p->row[i] = (struct kv_hack_row){a, p->n, {0.1f, 0.3f}, 0};
        for (size_t z = 0; z < p->n; z++) {
            a[z] =
                largest ? 255 * (i % 2) : (uint8_t)kv_random(7, i * p->n + z);
            p->row[i].sum += a[z];
        }
    }
}

/* Columns are packed with a gap after each; every eleventh input is all
 * zeros. */
static void *open_product(size_t i, struct check_size *size)
{
    static const size_t ns[] = {1,  2,  3,  4,  7,  8,  9,  15,  16,  17,
                                31, 32, 33, 63, 64, 65, 80, 127, 128, MAX};
    static const size_t columns[] = {0,  1,  7,  8,  9,  15, 16,
                                     17, 33, 63, 64, 80, 129};
    const size_t n = ns[i / 8 % COUNT(ns)];
    struct product *p;

    if (i == 8 * COUNT(ns))
        return NULL;
    p = kv_alloc(1, sizeof(*p));
    *p = (struct product){.rows = i % 7,
                          .columns = columns[i % COUNT(columns)],
                          .n = n,
                          .bits = 1 + i % 8};
    size->timed = n == 128 && (p->bits == 2 || p->bits == 4);
    if (size->timed) {
        p->rows = 4;
        p->columns = 64;
    }
    snprintf(size->label, sizeof(size->label), "n%zu b%u rows%zu columns%zu", n,
             p->bits, p->rows, p->columns);
    p->stride = kv_pack_bytes(n, p->bits) + i % 3;
    p->x = kv_alloc(n + ROWS, sizeof(float));
    p->u = kv_alloc(n + ROWS, sizeof(float));
    p->m = kv_alloc(ROWS, (n + 1) * sizeof(float));
    p->wide = kv_alloc(n, sizeof(double));
    p->packed = kv_alloc(p->columns, p->stride);
    p->a = kv_alloc(p->rows, n);
    p->word = kv_alloc(KV_HACK_COLUMNS(p->columns), p->stride + 4);
    p->range = kv_alloc(KV_HACK_COLUMNS(p->columns), sizeof(float));
    p->sum = kv_alloc(KV_HACK_COLUMNS(p->columns), sizeof(int32_t));
    for (size_t j = 0; j < n + ROWS; j++) {
        p->x[j] =
            i % 11 == 10 ? (j % 2 ? -0.0f : 0) : (float)kv_random_normal(4, j);
        p->u[j] = kv_random_unit(5, j);
    }
    for (size_t j = 0; j < ROWS * (n + 1); j++)
        p->m[j] = (float)kv_random_normal(8, j);
    for (size_t j = 0; j < n; j++)
        p->wide[j] = (double)p->x[j] * 1.7;
    fill_columns(p, n == MAX);
    return p;
}

static void close_product(void *in)
{
    struct product *p = in;

    for (size_t v = 0; v < COUNT(p->code); v++)
        free(p->code[v]);
    free(p->x), free(p->u), free(p->m), free(p->wide), free(p->packed);
    free(p->a), free(p->word), free(p->range), free(p->sum), free(p);
}

static void round_with(const struct product *p, const float *u, uint8_t *out)
{
    const struct kv_hack_range r = kv_hack_table_c.range(p->x, p->n, p->bits);
    const int32_t sum = kv_hack_table()->round(p->x, p->n, r, p->bits, u, out);

    memcpy(out + p->n, &sum, sizeof(sum));
}

/* Makes ROWS overlapping rows with other random values. */
static size_t quantize(const void *in, void *out)
{
    const struct product *p = in;
    struct kv_hack_row row[ROWS];
    uint8_t *to = out;

    kv_hack_table()->quantize(p->x, 1, ROWS, p->n, p->bits, p->u, 1, to, p->n,
                              row);
    to += ROWS * p->n;
    for (size_t i = 0; i < ROWS; i++, to += 12) {
        memcpy(to, &row[i].range, 8);
        memcpy(to + 8, &row[i].sum, 4);
    }
    return (size_t)(to - (uint8_t *)out);
}

static void arrange_into(const struct product *p, uint8_t *code)
{
    memset(code, 0xff, kv_hack_arranged_bytes(p->columns, p->n));
    kv_hack_table()->arrange(p->packed, p->stride, p->bits, p->columns, p->n,
                             code);
}

static const uint8_t *arranged(const struct product *p)
{
    uint8_t **code =
        &((struct product *)(uintptr_t)p)->code[kv_level_version()];

    if (!*code) {
        *code = kv_lines(kv_hack_arranged_bytes(p->columns, p->n) + 1, 1);
        arrange_into(p, *code);
    }
    return *code;
}

/* And the sums of it. */
static size_t arrange(const void *in, void *out)
{
    const struct product *p = in;

    arrange_into(p, (uint8_t *)(uintptr_t)arranged(p));
    kv_hack_table()->sums(arranged(p), p->columns, p->n, out);
    return p->columns * sizeof(int32_t);
}

static void multiply_by(const struct product *p, const float *range,
                        double *out)
{
    const size_t n = p->rows * (p->columns + 1);
    struct kv_hack_columns c = {.code = arranged(p),
                                .n_columns = p->columns,
                                .n = p->n,
                                .bits = p->bits,
                                .min = range,
                                .scale = range,
                                .sum = p->sum};

    for (size_t i = 0; i < n; i++)
        out[i] = 0.1;
    kv_hack_table()->multiply(p->row, p->rows, &c, out, p->columns + 1);
    if (range || p->columns <= 16)
        return;
    c.code += kv_hack_arranged_bytes(16, p->n); /* columns after the first 16 */
    c.sum += 16;
    c.n_columns -= 16;
    kv_hack_table()->multiply(p->row, p->rows, &c, out + 16, p->columns + 1);
}

/* Packed columns, as rows of bytes. */
static size_t transpose(const void *in, void *out)
{
    const struct product *p = in;
    const size_t bytes = kv_pack_bytes(p->n, p->bits), words = (bytes + 3) / 4;

    kv_hack_table()->transpose(p->packed, p->stride, p->columns, bytes,
                               p->word);
    for (size_t i = 0; i < words; i++)
        memcpy((uint32_t *)out + i * p->columns,
               p->word + i * KV_HACK_COLUMNS(p->columns),
               p->columns * sizeof(*p->word));
    return words * p->columns * sizeof(*p->word);
}

#define RUN(name, bytes, call) CHECK_RUN(name, struct product, bytes, call)

RUN(range, sizeof(struct kv_hack_range),
    *(struct kv_hack_range *)out = kv_hack_table()->range(r->x, r->n, r->bits))
RUN(round_nearest, r->n + 4, round_with(r, NULL, out))
RUN(round_stochastic, r->n + 4, round_with(r, r->u, out))
RUN(uniform, r->n * 4,
    kv_hack_table()->uniform(77, UINT64_MAX - 5, (uint64_t)r->bits << 16, r->n,
                             out))
RUN(weight_uniform, r->n * 4,
    kv_hack_table()->weight_uniform(78, UINT64_MAX - 5, r->n, out))
RUN(sums, r->columns * 4,
    kv_hack_table()->sums(arranged(r), r->columns, r->n, out))
RUN(multiply, r->rows *(r->columns + 1) * 8, multiply_by(r, r->range, out))
RUN(multiply_folded, r->rows *(r->columns + 1) * 8, multiply_by(r, NULL, out))
RUN(dots, ROWS * 8,
    kv_hack_table()->dots(r->x, r->m, r->n + 1, ROWS, r->n, out))
RUN(add, r->n * 8,
    (memcpy(out, r->wide, r->n * 8),
     kv_hack_table()->add(r->x, r->m, r->n + 1, ROWS, r->n, out)))
RUN(scale, ROWS * r->n * 4,
    kv_hack_table()->scale(r->m, r->n + 1, ROWS, r->n, r->x, out, r->n))
RUN(narrow, r->n * 4, kv_hack_table()->narrow(r->wide, r->n, 0.3, out))

#define OP(name, member, run)                            \
    {                                                    \
        name, RUNS(struct kv_hack_table, member), 0, run \
    }
static const struct check_op ops[] = {
    OP("range", range, range),
    OP("round nearest", round, round_nearest),
    OP("round stochastic", round, round_stochastic),
    OP("uniform", uniform, uniform),
    OP("weight uniform", weight_uniform, weight_uniform),
    OP("quantize", quantize, quantize),
    OP("arrange", arrange, arrange),
    OP("sums", sums, sums),
    OP("multiply", multiply, multiply),
    OP("multiply folded", multiply, multiply_folded),
    OP("transpose", transpose, transpose),
    OP("dots", dots, dots),
    OP("add", add, add),
    OP("scale", scale, scale),
    OP("narrow", narrow, narrow),
};

const struct check_family check_hack = {
    "hack",       MEMBERS(struct kv_hack_table),
    ops,          COUNT(ops),
    false,        open_product,
    close_product};
