#include "lib/schemes/klt_short.h"
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/klt_pred.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIDDLE = 128, MOST = 127, MORE_BITS = 3, TRIES = 24 };

bool kv_klt_is_short(const struct kv_spec *s)
{
    return kv_spec_is(s, KV_K, "tables", "short");
}

/* The bits of a number in a coefficient's row of the inverse transform. */
static unsigned row_bits(const struct kv_klt_coef *coef)
{
    const struct kv_klt_kind *kind = &kv_klt_kinds[coef->kind - 1];

    return (kind->bits + kind->values - 1) / kind->values + MORE_BITS;
}

static size_t inverse_bytes(const struct kv_klt_coef *coef, size_t n,
                            size_t part)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += kv_pack_bytes(part, row_bits(&coef[i]));
    return bytes;
}

/* ---- from transforms to codes -------------------------------------------- */

static float largest(const float *x, size_t n, size_t stride)
{
    float max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i * stride]));
    return max;
}

/* The step of the column whose first value is at x, in [n] rows of `row`
 * values. */
static float column_step(const float *x, size_t n, size_t row)
{
    return largest(x, n, row) / MOST;
}

/* The code of x, with MIDDLE for 0. */
static float byte_of(float x, float step)
{
    return step > 0 ? rintf(x / step) + MIDDLE : MIDDLE;
}

void kv_klt_round_columns(float *x, size_t n, size_t row, float *step)
{
    for (size_t j = 0; j < row; j++) {
        step[j] = column_step(x + j, n, row);
        for (size_t i = 0; i < n; i++)
            x[i * row + j] =
                (byte_of(x[i * row + j], step[j]) - MIDDLE) * step[j];
    }
}

/* The code of `bits` bits whose value (code - middle) step is nearest to x. */
static uint16_t code_of(float x, unsigned bits, float step)
{
    const float middle = ((1u << bits) - 1) / 2.0f;

    return (uint16_t)rintf(fminf(fmaxf(x / step + middle, 0), 2 * middle));
}

/* Computes the codes of x [n]; tries several steps and returns the one with the
 * least squared error. */
static float code_row(const float *x, size_t n, unsigned bits, uint16_t *code)
{
    const float middle = ((1u << bits) - 1) / 2.0f;
    const float max = largest(x, n, 1) / middle;
    double least = (double)INFINITY;
    float best = max;

    for (int i = 0; i < TRIES && max > 0; i++) {
        const float step = max * (1 - (float)i / (2 * TRIES));
        double error = 0;

        for (size_t j = 0; j < n; j++) {
            const float at = (float)code_of(x[j], bits, step) - middle;

            error += pow((double)(at * step - x[j]), 2);
        }
        if (error < least) {
            least = error;
            best = step;
        }
    }
    for (size_t j = 0; j < n; j++)
        code[j] = max > 0 ? code_of(x[j], bits, best) : 0;
    return best;
}

/* ---- the tables of a layer and side -------------------------------------- */

static float *add(const struct kv_codec *c, struct kv_calib_set *to,
                  const char *name, enum kv_table_type type, size_t n_dims,
                  const size_t *dims)
{
    struct kv_table *t =
        kv_calib_add(to, name, c->side, (int)c->layer, KV_ALL, n_dims, dims);

    t->type = type;
    return t->data;
}

static const float *find(const struct kv_codec *c,
                         const struct kv_calib_set *set, const char *name)
{
    return kv_calib_table(set, name, c->side, c->layer, 0)->data;
}

static void put_forward(const struct kv_codec *c,
                        const struct kv_calib_set *set,
                        const struct kv_klt_unit *u, size_t part,
                        struct kv_calib_set *to)
{
    const float *forward = find(c, set, "forward");
    const float *unit = find(c, set, "unit");
    const size_t dims[] = {u->n_coded, part};
    float *code = add(c, to, "forward", KV_TABLE_U8, 2, dims);
    float *step = add(c, to, "forward_step", KV_TABLE_F32, 1, dims);

    for (size_t j = 0; j < u->n_coded; j++) {
        const size_t at = u->coef[j].index;
        const float *column = forward + at / part * part * part + at % part;
        const float of = column_step(column, part, part);

        step[j] = of * unit[at];
        for (size_t i = 0; i < part; i++)
            code[j * part + i] = byte_of(column[i * part], of);
    }
}

static void put_inverse(const struct kv_codec *c,
                        const struct kv_calib_set *set,
                        const struct kv_klt_unit *u, size_t part,
                        struct kv_calib_set *to)
{
    const float *inverse = find(c, set, "inverse");
    const float *unit = find(c, set, "unit");
    const size_t bytes = inverse_bytes(u->coef, u->n_coded, part);
    float *out = add(c, to, "inverse", KV_TABLE_U8, 1, &bytes);
    float *step = add(c, to, "inverse_step", KV_TABLE_F32, 1, &u->n_coded);
    uint16_t *code = kv_alloc(part, sizeof(*code));
    uint8_t *packed = kv_alloc(part, sizeof(uint16_t));

    for (size_t j = 0; j < u->n_coded; j++) {
        const size_t at = u->coef[j].index;
        const unsigned bits = row_bits(&u->coef[j]);

        step[j] = code_row(inverse + at * part, part, bits, code) / unit[at];
        kv_pack(code, part, bits, packed);
        for (size_t i = 0; i < kv_pack_bytes(part, bits); i++)
            *out++ = packed[i];
    }
    free(packed);
    free(code);
}

/* The predictor's values are rounded already. */
static void put_predictor(const struct kv_codec *c,
                          const struct kv_calib_set *set, size_t row,
                          struct kv_calib_set *to)
{
    const struct kv_table *t =
        kv_calib_table(set, "predictor", c->side, c->layer, 0);
    float *code, *step;

    if (!t)
        return;
    code = add(c, to, "predictor", KV_TABLE_U8, 2, t->dims);
    step = add(c, to, "predictor_step", KV_TABLE_F32, 2,
               (const size_t[]){t->dims[0] / row, row});
    for (size_t i = 0; i < t->dims[0] * row; i++) {
        const size_t at = i / row / row * row + i % row;

        if (i / row % row == 0)
            step[at] = column_step(t->data + i, row, row);
        code[i] = byte_of(t->data[i], step[at]);
    }
}

/* ---- a set --------------------------------------------------------------- */

/* Removes the tables that the short ones replace; the others keep their
 * order. */
static void drop_long(struct kv_calib_set *set)
{
    static const char *const names[] = {"unit", "forward", "inverse",
                                        "predictor"};
    size_t n = 0;

    for (size_t i = 0; i < set->n_tables; i++) {
        bool drop = false;

        for (size_t j = 0; j < sizeof(names) / sizeof(*names); j++)
            drop |= !strcmp(set->table[i].name, names[j]);
        if (drop)
            free(set->table[i].data);
        else
            set->table[n++] = set->table[i];
    }
    set->n_tables = n;
}

static int shorten_place(const struct kv_codec *c, struct kv_calib_set *set,
                         struct kv_calib_set *to, struct kv_err *e)
{
    const size_t part = kv_klt_part(&c->spec, &c->shape);
    struct kv_klt_numbers numbers;
    struct kv_klt_unit u = {0};
    const int rc = kv_klt_numbers_load(&numbers, c, set, e);

    if (!rc)
        u = kv_klt_share(c, set, numbers.mse);
    if (!rc && u.n_coded) {
        put_forward(c, set, &u, part, to);
        put_inverse(c, set, &u, part, to);
    }
    if (!rc)
        put_predictor(c, set, kv_codec_row(c), to);
    free(u.coef);
    kv_klt_numbers_clear(&numbers);
    return rc;
}

int kv_klt_shorten(const struct kv_spec *s, const struct kv_shape *shape,
                   struct kv_calib_set *set, struct kv_err *e)
{
    struct kv_calib_set to = {.n_tables = 0};
    int rc = 0;

    for (size_t i = 0; i < KV_SIDES * shape->n_layers && !rc; i++) {
        const struct kv_codec c = {.spec = *s,
                                   .shape = kv_shape_layer(shape, i / KV_SIDES),
                                   .layer = i / KV_SIDES,
                                   .side = (enum kv_side)(i % KV_SIDES)};

        if (kv_calib_table(set, "forward", c.side, c.layer, 0))
            rc = shorten_place(&c, set, &to, e);
    }
    drop_long(set);
    kv_calib_move(&to, set);
    return rc;
}

/* ---- from codes to transforms -------------------------------------------- */

static void take_forward(const struct kv_table *code, const float *step,
                         const struct kv_klt_coding *g, size_t row,
                         float *forward)
{
    const size_t part = code->dims[1];

    for (size_t j = 0; j < g->n_coded; j++) {
        const size_t at = g->place[j], first = at / part * part;

        for (size_t i = 0; i < part; i++)
            forward[(first + i) * row + at] =
                (code->data[j * part + i] - MIDDLE) * step[j];
    }
}

static void take_inverse(const float *bytes, const float *step,
                         const struct kv_klt_coding *g, size_t row, size_t part,
                         float *inverse)
{
    uint16_t *code = kv_alloc(part, sizeof(*code));
    uint8_t *packed = kv_alloc(part, sizeof(uint16_t));

    for (size_t j = 0; j < g->n_coded; j++) {
        const size_t at = g->place[j], first = at / part * part;
        const unsigned bits = row_bits(&g->coef[j]);
        const float middle = ((1u << bits) - 1) / 2.0f;

        for (size_t i = 0; i < kv_pack_bytes(part, bits); i++)
            packed[i] = (uint8_t)*bytes++;
        kv_unpack(packed, part, bits, code);
        for (size_t i = 0; i < part; i++)
            inverse[at * row + first + i] = ((float)code[i] - middle) * step[j];
    }
    free(packed);
    free(code);
}

static const struct kv_table *want_bytes(const struct kv_codec *c,
                                         const struct kv_calib_set *set,
                                         const char *name, size_t n_dims,
                                         const size_t *dims, struct kv_err *e)
{
    const struct kv_table *t = kv_calib_want(c, set, name, 0, n_dims, dims, e);

    if (t && t->type != KV_TABLE_U8) {
        kv_fail(e,
                "the calibration's table '%s' for layer %zu, %c is not of "
                "bytes: kvcalib makes it anew",
                name, c->layer, kv_side_name(c->side));
        return NULL;
    }
    return t;
}

int kv_klt_short_load(const struct kv_codec *c, const struct kv_calib_set *set,
                      const struct kv_klt_coding *g, size_t part,
                      float *forward, float *inverse, struct kv_err *e)
{
    const size_t dims[] = {g->n_coded, part};
    const size_t bytes = inverse_bytes(g->coef, g->n_coded, part);
    const size_t row = kv_codec_row(c);
    const struct kv_table *there, *back, *there_step, *back_step;

    if (!g->n_coded)
        return 0;
    if (!(there = want_bytes(c, set, "forward", 2, dims, e)) ||
        !(there_step = kv_calib_want(c, set, "forward_step", 0, 1, dims, e)) ||
        !(back = want_bytes(c, set, "inverse", 1, &bytes, e)) ||
        !(back_step = kv_calib_want(c, set, "inverse_step", 0, 1, dims, e)))
        return -1;
    if (forward)
        take_forward(there, there_step->data, g, row, forward);
    take_inverse(back->data, back_step->data, g, row, part, inverse);
    return 0;
}

int kv_klt_short_predictor(const struct kv_codec *c,
                           const struct kv_calib_set *set, size_t n_sources,
                           float *matrix, struct kv_err *e)
{
    const size_t row = kv_codec_row(c);
    const size_t dims[] = {n_sources * row, row}, steps[] = {n_sources, row};
    const struct kv_table *code, *step;

    if (!(code = want_bytes(c, set, "predictor", 2, dims, e)) ||
        !(step = kv_calib_want(c, set, "predictor_step", 0, 2, steps, e)))
        return -1;
    for (size_t i = 0; i < n_sources * row * row; i++)
        matrix[i] = (code->data[i] - MIDDLE) *
                    step->data[i / row / row * row + i % row];
    return 0;
}
