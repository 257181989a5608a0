/* Reverse water-filling with a fixed list of kinds of transitions. */
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/klt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const struct kv_klt_kind kv_klt_kinds[KV_KLT_KINDS] = {
    {1, 4}, {1, 2}, {2, 4}, {3, 4}, {1, 1}, {2, 2}, {3, 2}, {2, 1},
    {4, 2}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1}};

void kv_klt_table_name(size_t kind, char name[32])
{
    snprintf(name, 32, "trellis_%ub%u", kv_klt_kinds[kind].bits,
             kv_klt_kinds[kind].values);
}

static int by_variance(const void *a, const void *b)
{
    const struct kv_klt_coef *x = a, *y = b;

    return x->variance != y->variance ? (x->variance < y->variance ? 1 : -1)
                                      : x->index - y->index;
}

struct kv_klt_unit kv_klt_unit(const struct kv_calib_set *set, size_t layer,
                               enum kv_side side, size_t row)
{
    const struct kv_table *t = kv_calib_table(set, "sigma", side, layer, 0);
    struct kv_klt_unit u = {.coef = kv_alloc(row, sizeof(*u.coef))};

    if (t && t->dims[0] == row)
        for (u.n = 0; u.n < row; u.n++)
            u.coef[u.n] =
                (struct kv_klt_coef){.variance = t->data[u.n] * t->data[u.n],
                                     .index = (uint16_t)u.n};
    qsort(u.coef, u.n, sizeof(*u.coef), by_variance);
    return u;
}

static double rate(size_t kind)
{
    return (double)kv_klt_kinds[kind].bits / kv_klt_kinds[kind].values;
}

size_t kv_klt_single(size_t kind)
{
    if (kv_klt_kinds[kind].values == 1)
        return kind;
    return kind && rate(kind - 1) == rate(kind) &&
                   kv_klt_kinds[kind - 1].values == 1
               ? kind - 1
               : KV_KLT_KINDS;
}

/* Whether the next kind is in use and has the same rate. */
static bool left_to_next(size_t kind, const double *mse)
{
    return kind + 1 < KV_KLT_KINDS && rate(kind + 1) == rate(kind) &&
           isfinite(mse[kind + 1]);
}

/* Sets the coefficient's kind with the least cost.  price: lambda times a
 * kind's rate, infinite for a kind that is not taken; kind 0: not coded. */
static void take_best(struct kv_klt_coef *coef, const double *price,
                      const double *mse)
{
    const double variance = (double)coef->variance;
    double min = variance;

    coef->kind = 0;
    for (size_t k = 0; k < KV_KLT_KINDS; k++) {
        const double cost = variance * mse[k] + price[k];

        if (cost < min) {
            min = cost;
            coef->kind = (uint8_t)(k + 1);
        }
    }
}

/* The next lower kind that is in use, or 0. */
static size_t klt_lower(size_t kind, const double *mse)
{
    while (--kind)
        if (isfinite(mse[kind - 1]))
            break;
    return kind;
}

/* A transition of several values needs a whole group of coefficients: the
 * remainder of a run takes the next lower kind.  Variances descend, and so do
 * kinds. */
void kv_klt_assign(struct kv_klt_unit *u, double lambda, const double *mse)
{
    double price[KV_KLT_KINDS];
    size_t bits = 0;

    for (size_t k = 0; k < KV_KLT_KINDS; k++)
        price[k] = left_to_next(k, mse) ? INFINITY : lambda * rate(k);
    for (size_t i = 0; i < u->n; i++)
        take_best(&u->coef[i], price, mse);
    u->n_coded = 0;
    for (size_t i = 0; i < u->n && u->coef[i].kind;) {
        const size_t kind = u->coef[i].kind;
        const size_t each = kv_klt_kinds[kind - 1].values;
        size_t end = i;

        while (end < u->n && u->coef[end].kind == kind)
            end++;

        const size_t groups = (end - i) / each;

        bits += groups * kv_klt_kinds[kind - 1].bits;
        i += groups * each;
        u->n_coded = i;
        for (size_t j = i; j < end; j++)
            u->coef[j].kind = (uint8_t)klt_lower(kind, mse);
    }
    for (size_t i = u->n_coded; i < u->n; i++)
        u->coef[i].kind = 0;
    u->bytes = bits ? (bits + 7) / 8 : 1;
}

static size_t bytes_at(struct kv_klt_unit *unit, size_t n_units, double lambda,
                       const double *mse)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n_units; i++) {
        kv_klt_assign(&unit[i], lambda, mse);
        bytes += unit[i].bytes;
    }
    return bytes;
}

double kv_klt_allocate(struct kv_klt_unit *unit, size_t n_units, size_t budget,
                       const double *mse)
{
    double low = -300, high = 1; /* log2 of lambda; high codes nothing */

    for (size_t i = 0; i < n_units; i++)
        for (size_t j = 0; j < unit[i].n; j++)
            high = fmax(high, 8 + log2((double)unit[i].coef[j].variance));
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;

        if (bytes_at(unit, n_units, exp2(middle), mse) <= budget)
            high = middle;
        else
            low = middle;
    }
    bytes_at(unit, n_units, exp2(high), mse);
    return exp2(high);
}

struct kv_klt_unit kv_klt_share(const struct kv_codec *c,
                                const struct kv_calib_set *set,
                                const double *mse)
{
    const bool sides = kv_spec_is(&c->spec, c->side, "share", "all");
    const bool layers = !kv_spec_is(&c->spec, c->side, "share", "layer");
    struct kv_klt_unit *unit = kv_alloc(2 * c->shape.n_layers, sizeof(*unit));
    double budget = 0;
    size_t n = 0, own = 0;

    for (size_t l = 0; l < c->shape.n_layers; l++)
        for (int i = 0; i < kv_shape_sides(&c->shape); i++) {
            const enum kv_side side = (enum kv_side)i;

            if ((l != c->layer && !layers) || (side != c->side && !sides))
                continue;
            own = l == c->layer && side == c->side ? n : own;
            unit[n] = kv_klt_unit(set, l, side, kv_codec_row(c));
            budget += (double)unit[n].n * kv_spec_get(&c->spec, side, "b") / 8;
            n++;
        }
    kv_klt_allocate(unit, n, (size_t)floor(budget), mse);
    for (size_t i = 0; i < n; i++)
        if (i != own)
            free(unit[i].coef);

    const struct kv_klt_unit mine = unit[own];

    free(unit);
    return mine;
}
