/* KVarN (arXiv 2606.03458): a tile, n tokens of a head, is rotated by the
 * Hadamard transform and divided by the standard deviations of its rows and
 * columns (Sinkhorn's rounds); then each row is quantized asymmetrically.  No
 * calibration.  As in KIVI, rows are channels in a tile of keys and tokens in a
 * tile of values.
 *
 * A round divides by the standard deviation (n - 1) of each column, then of
 * each row; logarithms of the divisors stay in [-0.3, 10], as in the published
 * code.  The round with the least imbalance is used, the last one on ties.  The
 * imbalance is the largest deviation of columns over the least, plus this ratio
 * for rows.
 *
 * A block is, head by head,
 *
 *   | codes: rows x columns x b bits, row by row, padded to a whole byte |
 *   | scales, f16, a row | minima, f16, a row | divisors, f16, a column |
 *
 * where scale and minimum include the row's divisor.  A value is
 * (minimum + scale code) divisor, with the column's divisor, rotated back.
 *
 * The published code has 4 bits for keys and 2 or 4 for values, tiles of 128
 * or 64 tokens, and keeps the first tile and the newest, unfinished one in
 * fp16: s is 128, and a block that is not full is fp16 in every scheme. */
#include "kernels/bitpack.h"
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kvarn {
    size_t n_rows, n_cols, n_rounds;
    unsigned bits;
    size_t code_bytes, head_bytes; /* bytes of a head's codes; of a whole
                                    * head */
};

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code (keys 4, values 2)"},
    {"n", NULL, 128, 2, 4096, false, "tokens of a tile"},
    {"i", NULL, 16, 0, 256, false, "rounds that even out deviations"},
    {0},
};

static double kvarn_fallback(const struct kv_spec *s, enum kv_side side,
                             const struct kv_param *p)
{
    (void)s;
    return side == KV_K && !strcmp(p->name, "b") ? 4 : p->fallback;
}

static size_t kvarn_hadamard(const struct kv_spec *s,
                             const struct kv_shape *shape)
{
    (void)s;
    return shape->head_dim;
}

/* ---- deviations ---------------------------------------------------------- */

/* A tile, [n_rows][n_cols], and its divisors. */
struct tile {
    size_t n_rows, n_cols;
    const float *x;             /* rotated */
    float *y;                   /* x, divided */
    float *row, *col;           /* logarithms of the divisors */
    float *row_dev, *col_dev;   /* deviations of y */
    float *best_row, *best_col; /* divisors */
};

/* The standard deviation of n values, `step` apart; 0 for one value. */
static float deviation(const float *x, size_t n, size_t step)
{
    double sum = 0, squares = 0, mean;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i * step];
    mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += ((double)x[i * step] - mean) * ((double)x[i * step] - mean);
    return n > 1 ? (float)sqrt(squares / (double)(n - 1)) : 0;
}

static void measure_rows(struct tile *t)
{
    for (size_t i = 0; i < t->n_rows; i++)
        t->row_dev[i] = deviation(t->y + i * t->n_cols, t->n_cols, 1);
}

static void measure_cols(struct tile *t)
{
    for (size_t j = 0; j < t->n_cols; j++)
        t->col_dev[j] = deviation(t->y + j, t->n_rows, t->n_cols);
}

static void divide(struct tile *t)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const float row = expf(t->row[i]);

        for (size_t j = 0; j < t->n_cols; j++)
            t->y[i * t->n_cols + j] =
                t->x[i * t->n_cols + j] / expf(t->col[j]) / row;
    }
}

/* Multiplies the divisors [n], held as logarithms, by the deviations. */
static void take_on(float *log_of, const float *dev, size_t n)
{
    for (size_t i = 0; i < n; i++)
        log_of[i] = fminf(
            fmaxf(log_of[i] + logf(fminf(fmaxf(dev[i], 1e-3f), 1e3f)), -0.3f),
            10.0f);
}

static float spread(const float *dev, size_t n)
{
    float least = dev[0], most = dev[0];

    for (size_t i = 1; i < n; i++) {
        least = fminf(least, dev[i]);
        most = fmaxf(most, dev[i]);
    }
    return most / fmaxf(least, 1e-8f);
}

/* Measures y's imbalance, and keeps the divisors if they are the best so
 * far. */
static void keep_best(struct tile *t, float *best)
{
    float now;

    measure_rows(t);
    measure_cols(t);
    now = spread(t->row_dev, t->n_rows) + spread(t->col_dev, t->n_cols);
    if (now > *best)
        return;
    *best = now;
    for (size_t i = 0; i < t->n_rows; i++)
        t->best_row[i] = expf(t->row[i]);
    for (size_t j = 0; j < t->n_cols; j++)
        t->best_col[j] = expf(t->col[j]);
}

/* Runs the rounds; sets the divisors best_row and best_col, and y. */
static void even_out(struct tile *t, size_t n_rounds)
{
    float best = INFINITY;

    memset(t->row, 0, t->n_rows * sizeof(*t->row));
    memset(t->col, 0, t->n_cols * sizeof(*t->col));
    divide(t);
    keep_best(t, &best);
    for (size_t round = 0; round < n_rounds; round++) {
        take_on(t->col, t->col_dev, t->n_cols);
        divide(t);
        measure_rows(t);
        take_on(t->row, t->row_dev, t->n_rows);
        divide(t);
        keep_best(t, &best);
    }
    for (size_t i = 0; i < t->n_rows; i++)
        for (size_t j = 0; j < t->n_cols; j++)
            t->y[i * t->n_cols + j] =
                t->x[i * t->n_cols + j] / t->best_col[j] / t->best_row[i];
}

/* ---- codes --------------------------------------------------------------- */

/* Encodes a row y [n] of a tile; row: the row's divisor. */
static void encode_row(const float *y, size_t n, unsigned bits, float row,
                       uint8_t *scale_at, uint8_t *low_at, uint16_t *code)
{
    const float top = (float)((1u << bits) - 1);
    float low = y[0], high = y[0], scale;

    for (size_t j = 1; j < n; j++) {
        low = fminf(low, y[j]);
        high = fmaxf(high, y[j]);
    }
    scale = fmaxf((high - low) / top, 1e-10f);
    for (size_t j = 0; j < n; j++)
        code[j] = (uint16_t)fminf(fmaxf(rintf((y[j] - low) / scale), 0), top);
    kv_f16_put(scale_at, row * scale);
    kv_f16_put(low_at, row * low + 0.0f); /* no -0 */
}

/* The index of a tile's value in x [n tokens][n_kv_heads][head_dim]. */
static size_t kvarn_place(const struct kv_codec *c, size_t head, size_t row,
                          size_t col)
{
    const size_t token = c->side == KV_K ? col : row;
    const size_t channel = c->side == KV_K ? row : col;

    return (token * c->shape.n_kv_heads + head) * c->shape.head_dim + channel;
}

static void encode_head(const struct kv_codec *c, struct tile *t, uint8_t *to,
                        uint16_t *code)
{
    const struct kvarn *k = c->state;
    uint8_t *scales = to + k->code_bytes, *lows = scales + 2 * k->n_rows;
    uint8_t *divisors = lows + 2 * k->n_rows;

    even_out(t, k->n_rounds);
    for (size_t i = 0; i < k->n_rows; i++)
        encode_row(t->y + i * k->n_cols, k->n_cols, k->bits, t->best_row[i],
                   scales + 2 * i, lows + 2 * i, code + i * k->n_cols);
    for (size_t j = 0; j < k->n_cols; j++)
        kv_f16_put(divisors + 2 * j, t->best_col[j]);
    kv_pack(code, k->n_rows * k->n_cols, k->bits, to);
}

static void kvarn_encode(const struct kv_codec *c, struct kv_where w,
                         const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct kvarn *k = c->state;
    const size_t n = k->n_rows * k->n_cols, values = kv_codec_block_values(c);
    float *rotated = kv_alloc(values, sizeof(*rotated));
    float *of = kv_alloc(2 * n, sizeof(*of));
    float *each = kv_alloc(3 * (k->n_rows + k->n_cols), sizeof(*each));
    uint16_t *code = kv_alloc(n, sizeof(*code));
    struct tile t = {.n_rows = k->n_rows,
                     .n_cols = k->n_cols,
                     .x = of,
                     .y = of + n,
                     .row = each,
                     .row_dev = each + k->n_rows,
                     .best_row = each + 2 * k->n_rows};

    (void)w;
    t.col = each + 3 * k->n_rows;
    t.col_dev = t.col + k->n_cols;
    t.best_col = t.col_dev + k->n_cols;
    for (size_t b = 0; b < n_blocks; b++, x += values) {
        memcpy(rotated, x, values * sizeof(*rotated));
        kv_hadamard(rotated, c->block * c->shape.n_kv_heads, c->shape.head_dim);
        for (size_t h = 0; h < c->shape.n_kv_heads; h++) {
            for (size_t i = 0; i < n; i++)
                of[i] =
                    rotated[kvarn_place(c, h, i / k->n_cols, i % k->n_cols)];
            encode_head(c, &t, bytes, code);
            bytes += k->head_bytes;
        }
    }
    free(code);
    free(each);
    free(of);
    free(rotated);
}

static void decode_head(const struct kv_codec *c, const uint8_t *from,
                        size_t head, uint16_t *code, float *x)
{
    const struct kvarn *k = c->state;
    const uint8_t *scales = from + k->code_bytes;
    const uint8_t *lows = scales + 2 * k->n_rows;
    const uint8_t *divisors = lows + 2 * k->n_rows;

    kv_unpack(from, k->n_rows * k->n_cols, k->bits, code);
    for (size_t i = 0; i < k->n_rows; i++) {
        const float scale = kv_f16_get(scales + 2 * i);
        const float low = kv_f16_get(lows + 2 * i);

        for (size_t j = 0; j < k->n_cols; j++)
            x[kvarn_place(c, head, i, j)] =
                (low + scale * (float)code[i * k->n_cols + j]) *
                kv_f16_get(divisors + 2 * j);
    }
}

static void kvarn_decode(const struct kv_codec *c, const uint8_t *bytes,
                         size_t n_blocks, float *x)
{
    const struct kvarn *k = c->state;
    uint16_t *code = kv_alloc(k->n_rows * k->n_cols, sizeof(*code));

    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c)) {
        for (size_t h = 0; h < c->shape.n_kv_heads; h++) {
            decode_head(c, bytes, h, code, x);
            bytes += k->head_bytes;
        }
        kv_hadamard(x, c->block * c->shape.n_kv_heads, c->shape.head_dim);
    }
    free(code);
}

/* ---- the scheme ---------------------------------------------------------- */

static double kvarn_nominal(const struct kv_spec *s, enum kv_side side,
                            const struct kv_shape *shape)
{
    const double n = kv_spec_get(s, side, "n"), d = (double)shape->head_dim;
    const double rows = side == KV_K ? d : n, cols = side == KV_K ? n : d;

    return kv_spec_get(s, side, "b") + 16 * (2 * rows + cols) / (n * d);
}

static int open_kvarn(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    const size_t d = c->shape.head_dim;
    struct kvarn *k = kv_alloc(1, sizeof(*k));

    (void)calib;
    (void)e;
    c->state = k;
    c->block = kv_spec_size(&c->spec, c->side, "n");
    k->n_rows = c->side == KV_K ? d : c->block;
    k->n_cols = c->side == KV_K ? c->block : d;
    k->n_rounds = kv_spec_size(&c->spec, c->side, "i");
    k->bits = (unsigned)kv_spec_size(&c->spec, c->side, "b");
    k->code_bytes = kv_pack_bytes(k->n_rows * k->n_cols, k->bits);
    k->head_bytes = k->code_bytes + 2 * (2 * k->n_rows + k->n_cols);
    c->block_bytes = c->shape.n_kv_heads * k->head_bytes;
    return 0;
}

const struct kv_scheme kv_scheme_kvarn = {
    .name = "kvarn",
    .brief = "KVarN: rotated tiles, deviations evened out, min/max integers",
    .params = params,
    .sinks = 128,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .coarse = true, /* a constant head becomes one spike when rotated */
    .fallback = kvarn_fallback,
    .nominal = kvarn_nominal,
    .hadamard = kvarn_hadamard,
    .open = open_kvarn,
    .encode = kvarn_encode,
    .decode = kvarn_decode,
};
