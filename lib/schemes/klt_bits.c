/* Reverse water-filling with a fixed list of kinds of transitions. */
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

/* Whether the next kind is in use and of the same rate. */
static bool left_to_next(size_t kind, const double *mse)
{
    return kind + 1 < KV_KLT_KINDS && rate(kind + 1) == rate(kind) &&
           isfinite(mse[kind + 1]);
}

/* price: of a kind's rate.  kind 0: nothing is coded. */
static void take_best(struct kv_klt_coef *coef, const double *price,
                      const double *mse)
{
    const double variance = (double)coef->variance;
    double min = variance;

    coef->kind = 0;
    for (size_t k = 0; k < KV_KLT_KINDS; k++) {
        const double cost = variance * mse[k] + price[k];

        if (cost < min && !left_to_next(k, mse)) {
            min = cost;
            coef->kind = (uint8_t)(k + 1);
        }
    }
}

/* The next lower kind that is in use, or 0. */
static size_t lower(size_t kind, const double *mse)
{
    while (--kind)
        if (isfinite(mse[kind - 1]))
            break;
    return kind;
}

/* Transitions of several values take whole groups: the rest of a run
 * falls to the next lower kind.  Variances fall, so kinds do. */
static void assign(struct kv_klt_unit *u, double lambda, const double *mse)
{
    double price[KV_KLT_KINDS];
    size_t bits = 0;

    for (size_t k = 0; k < KV_KLT_KINDS; k++)
        price[k] = lambda * rate(k);
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
            u->coef[j].kind = (uint8_t)lower(kind, mse);
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
        assign(&unit[i], lambda, mse);
        bytes += unit[i].bytes;
    }
    return bytes;
}

void kv_klt_allocate(struct kv_klt_unit *unit, size_t n_units, size_t budget,
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
}
