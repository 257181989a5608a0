/* kernels/tiles: maxima, codes, products with one factor and RoPE have the same
 * bits at every level; sums of products are f32's, in an order of the level;
 * exp is within 2e-7 + 8e-8 (shift - x) (impl.h). */
#include "kernels/tiles/impl.h"
#include "kernels/tiles/rope.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PART = KV_TILE_PART, KINDS = 3, N_FREQ = 3 };

struct tile {
    size_t d, rows;
    float *q, *p, *x;           /* [d][rows], [rows][n of tokens], [rows][n] */
    uint16_t *k[KINDS];         /* [64 padded] for each kind */
    struct kv_tiles_rope *rope; /* NULL: d is odd */
};

static const struct {
    size_t d, rows;
} sizes[] = {{1, 1},   {20, 3},  {40, 8},  {64, 1},  {64, 5},
             {80, 9},  {90, 2},  {128, 1}, {128, 2}, {128, 3},
             {128, 4}, {128, 7}, {128, 8}, {320, 6}, {128, 16}};

static void *open_tile(size_t i, struct check_size *size)
{
    const size_t d = sizes[i < COUNT(sizes) ? i : 0].d;
    const size_t rows = sizes[i < COUNT(sizes) ? i : 0].rows;
    const size_t n = 2 * PART * kv_padded(d);
    float freq[KV_ROPE_MAX];
    struct tile *t;

    if (i == COUNT(sizes))
        return NULL;
    snprintf(size->label, sizeof(size->label), "d%zu rows%zu", d, rows);
    size->timed = d == 128 && rows == 4;
    t = kv_alloc(1, sizeof(*t));
    *t = (struct tile){.d = d,
                       .rows = rows,
                       .q = kv_alloc(d, rows * sizeof(float)),
                       .p = kv_alloc(2 * PART, rows * sizeof(float)),
                       .x = kv_alloc(rows, kv_padded(d) * sizeof(float))};
    for (size_t j = 0; j < d * rows; j++)
        t->q[j] = (float)kv_random_normal(1, j);
    for (size_t j = 0; j < 2 * PART * rows; j++)
        t->p[j] = kv_random_unit(2, j);
    for (size_t j = 0; j < rows * kv_padded(d); j++) {
        const size_t r = j / kv_padded(d); /* halfway, none, too small */
        const float u = (float)kv_random_normal(3, j);

        t->x[j] = r % 4 == 1   ? rintf(10 * u) / 2
                  : r % 8 == 2 ? 0
                  : r % 4 == 3 ? ldexpf(u, -100)
                               : 40 * u;
    }
    for (size_t kind = 0; kind < KINDS; kind++)
        t->k[kind] = kv_lines(n, kind ? 2 : 4);
    for (size_t j = 0; j < n; j++) {
        const float u = (float)kv_random_normal(4, j);

        ((float *)(void *)t->k[KV_FLOAT_32])[j] = u;
        t->k[KV_FLOAT_16][j] = kv_f32_to_f16(u);
        t->k[KV_FLOAT_BF16][j] = (uint16_t)(kv_f32_bits(u) >> 16);
    }
    const struct kv_rope_pairs halves = {d / 2, 1, d / 2};

    for (size_t j = 0; j < d / 2; j++)
        freq[j] = powf(10000, -2 * (float)j / (float)d);
    t->rope = d % 2 ? NULL : kv_tiles_rope_new(d, halves, freq);
    return t;
}

static void close_tile(void *in)
{
    struct tile *t = in;

    for (size_t kind = 0; kind < KINDS; kind++)
        free(t->k[kind]);
    kv_tiles_rope_free(t->rope);
    free(t->q), free(t->p), free(t->x), free(t);
}

/* Whether what follows is fetched changes nothing. */
static bool ahead(const struct tile *t, size_t i)
{
    return (t->rows + i) % 2;
}

/* For one part and for two, of every kind. */
static size_t dot(const void *in, void *out)
{
    const struct tile *t = in;
    float *to = out;

    if (t->rows > KV_TILE_ROWS)
        return CHECK_NONE;
    for (enum kv_float kind = 0; kind <= KV_FLOAT_BF16; kind++)
        for (size_t parts = 1; parts <= 2; parts++) {
            kv_tile_loops()->dot(kind, ahead(t, kind + parts), t->k[kind],
                                 parts, t->d, t->q, t->rows, to, parts * PART);
            to += t->rows * parts * PART;
        }
    return (size_t)((char *)to - (char *)out);
}

static size_t add(const void *in, void *out)
{
    const struct tile *t = in;
    const size_t n = t->rows * kv_padded(t->d);
    float *to = out;

    if (t->rows > KV_TILE_ROWS)
        return CHECK_NONE;
    memset(out, 0, KINDS * n * sizeof(float));
    for (enum kv_float kind = 0; kind <= KV_FLOAT_BF16; kind++)
        kv_tile_loops()->add(kind, ahead(t, kind), t->k[kind], 2 * PART - 1,
                             kv_padded(t->d), t->p, 2 * PART, t->rows,
                             to + kind * n);
    return KINDS * n * sizeof(float);
}

#define RUN(name, bytes, call) CHECK_RUN(name, struct tile, bytes, call)
#define ROW kv_padded(r->d)

RUN(max, r->rows * sizeof(float),
    kv_tile_loops()->max(r->x, ROW, r->rows, ROW, out))
RUN(mul, r->rows *ROW * sizeof(float),
    kv_tile_loops()->mul(r->x, ROW, r->rows, ROW, r->x, out))

/* For values at most 2 below the shift. */
static size_t exp_rows(const void *in, void *out)
{
    const struct tile *t = in;
    const size_t n = 2 * PART * t->rows;
    float shift[128];
    float *to = out;

    memcpy(to, t->p, n * sizeof(*to));
    for (size_t r = 0; r < t->rows; r++)
        shift[r] = 1 + (float)(r % 16) / 16;
    kv_tile_loops()->exp(to, 2 * PART, t->rows, 2 * PART, shift, to + n);
    return (n + t->rows) * sizeof(*to);
}

static size_t round8(const void *in, void *out)
{
    const struct tile *t = in;
    const size_t row = kv_padded(t->d);
    float *scale = out;

    kv_tile_loops()->round8(t->x, row, t->rows, row,
                            (int8_t *)(scale + t->rows), row, scale);
    return t->rows * (sizeof(*scale) + row);
}

static const size_t first[N_FREQ] = {0, 4095, 16777215};

static size_t rope_first(const void *in, void *out)
{
    const struct tile *t = in;
    float *to = out;

    for (size_t i = 0; t->rope && i < N_FREQ; i++, to += t->d)
        kv_tiles_rope_first(t->rope, first[i], to, to + t->d / 2);
    return t->rope ? N_FREQ * t->d * sizeof(*to) : CHECK_NONE;
}

static size_t rope_rotate(const void *in, void *out)
{
    const struct tile *t = in;
    const size_t bytes = t->d * PART * sizeof(float);

    if (!t->rope)
        return CHECK_NONE;
    memcpy(out, t->k[KV_FLOAT_32], bytes);
    kv_tiles_rope_rotate(t->rope, 123456, out);
    return bytes;
}

#define OP(member, tolerance, run)                                  \
    {                                                               \
#member, RUNS(struct kv_tile_loops, member), tolerance, run \
    }
static const struct check_op ops[] = {
    OP(dot, 1e-6, dot),
    OP(add, 1e-6, add),
    OP(exp, 8e-7, exp_rows),
    OP(max, 0, max),
    OP(round8, 0, round8),
    OP(mul, 0, mul),
    OP(rope_first, 0, rope_first),
    OP(rope_rotate, 0, rope_rotate),
};

const struct check_family check_tiles = {
    "tiles",   MEMBERS(struct kv_tile_loops), ops, COUNT(ops), false, open_tile,
    close_tile};
