#include "eval/allocate.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/mixed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the choice ---------------------------------------------------------- */

/* A partial choice for the first places: its sums, the index `from` of the
 * partial choice without the last place, and the last place's spec. */
struct sum {
    double bytes, cost;
    size_t from, spec;
};

/* Partial choices for the first i places.  None is worse than another in both
 * bytes and cost: bytes ascend, costs descend. */
struct front {
    struct sum *sum;
    size_t n;
};

static int by_bytes(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->spec < y->spec ? -1 : x->spec > y->spec;
}

/* Keeps the first sum, and the last (cheapest) sum in each interval of
 * bytes. */
static void thin(struct front *f, double budget)
{
    size_t n = 1;

    for (size_t i = 1; i < f->n; i++) {
        const bool last =
            i + 1 == f->n ||
            floor(f->sum[i].bytes / budget * KV_ALLOCATE_SUMS) !=
                floor(f->sum[i + 1].bytes / budget * KV_ALLOCATE_SUMS);

        if (last)
            f->sum[n++] = f->sum[i];
    }
    f->n = n;
}

/* Adds one place to every partial choice; rest: the least bytes of the places
 * after it. */
static struct front extend(const struct front *before,
                           const struct kv_offer *offer, size_t n_specs,
                           double rest, double budget)
{
    struct front f = {kv_alloc(before->n * n_specs, sizeof(*f.sum)), 0};
    size_t n = 0;

    for (size_t i = 0; i < before->n * n_specs; i++) {
        const struct sum *from = &before->sum[i / n_specs];
        const struct kv_offer *o = &offer[i % n_specs];

        if (from->bytes + o->bytes + rest <= budget)
            f.sum[n++] =
                (struct sum){from->bytes + o->bytes, from->cost + o->cost,
                             i / n_specs, i % n_specs};
    }
    qsort(f.sum, n, sizeof(*f.sum), by_bytes);
    for (size_t i = 0; i < n; i++)
        if (!f.n || f.sum[i].cost < f.sum[f.n - 1].cost)
            f.sum[f.n++] = f.sum[i];
    if (f.n > KV_ALLOCATE_SUMS)
        thin(&f, budget);
    return f;
}

static double min_bytes(const struct kv_offer *offer, size_t n_specs)
{
    double min = HUGE_VAL;

    for (size_t i = 0; i < n_specs; i++)
        min = fmin(min, offer[i].bytes);
    return min;
}

int kv_allocate(const struct kv_offer *offer, size_t n_places, size_t n_specs,
                double values, double bits, size_t *choice, struct kv_err *e)
{
    /* rounding of a product must not decide whether a choice fits */
    const double budget = bits * values / 8 * (1 + 1e-12);
    struct front *front = kv_alloc(n_places + 1, sizeof(*front));
    double rest = 0;
    size_t at;

    for (size_t i = 0; i < n_places; i++)
        rest += min_bytes(offer + i * n_specs, n_specs);
    if (rest > budget) {
        free(front);
        return kv_fail(e,
                       "%.9g bits per value cannot be met: the given specs "
                       "need at least %.4f",
                       bits, ceil(rest * 8 / values * 1e4) / 1e4);
    }
    front[0] = (struct front){kv_alloc(1, sizeof(*front[0].sum)), 1};
    for (size_t i = 0; i < n_places; i++) {
        rest -= min_bytes(offer + i * n_specs, n_specs);
        front[i + 1] =
            extend(&front[i], offer + i * n_specs, n_specs, rest, budget);
    }
    at = front[n_places].n - 1;
    for (size_t i = n_places; i; i--) {
        const struct sum *s = &front[i].sum[at];

        choice[i - 1] = s->spec;
        at = s->from;
    }
    for (size_t i = 0; i <= n_places; i++)
        free(front[i].sum);
    free(front);
    return 0;
}

/* ---- offers of the specs ------------------------------------------------- */

int kv_allocate_attention(const struct kv_measure_plan *p,
                          struct kv_offer *offer, double *values,
                          struct kv_err *e)
{
    static const enum kv_attn_case stored[] = {KV_ATTN_K, KV_ATTN_V};
    const struct kv_dump_info *info = kv_dump_info(p->dump);
    const size_t n_layers = info->last_layer - info->first_layer + 1;
    struct kv_measured *m = kv_alloc(p->n_specs * n_layers, sizeof(*m));
    const int rc = kv_measure(p, m, e);

    *values = 0;
    for (size_t i = 0; i < n_layers * p->n_specs && !rc; i++) {
        const size_t layer = i / p->n_specs, spec = i % p->n_specs;
        const struct kv_measured *one = &m[spec * n_layers + layer];

        for (size_t side = 0; side < KV_SIDES; side++) {
            const double error = kv_attn_error_out(&one->attn, stored[side]);

            offer[(layer * KV_SIDES + side) * p->n_specs + spec] =
                (struct kv_offer){one->bits[side].bytes, error * error};
            *values += spec ? 0 : one->bits[side].values;
        }
    }
    free(m);
    return rc;
}

int kv_allocate_kl(struct kv_ppl *p, const struct kv_shape *shape,
                   const struct kv_spec *spec, size_t n_specs,
                   const struct kv_calib *calib, struct kv_offer *offer,
                   double *values, struct kv_err *e)
{
    const size_t n_places = shape->n_layers * KV_SIDES;
    struct kv_spec base, mixed;
    struct kv_spec *place = kv_alloc(n_places, sizeof(*place));
    struct kv_ppl_row all, row;
    int rc = -1;

    if (kv_spec_parse(&base, "f32:r0s0", e) || kv_spec_fit(&base, shape, e) ||
        kv_ppl_run(p, &base, NULL, NULL, &all, e))
        goto out;
    for (size_t i = 0; i < n_places; i++)
        place[i] = base;
    for (size_t i = 0; i < n_places * n_specs; i++) {
        const size_t at = i / n_specs;
        char name[64];

        snprintf(name, sizeof(name), "layer %zu, %c", at / KV_SIDES,
                 kv_side_name((enum kv_side)(at % KV_SIDES)));
        place[at] = spec[i % n_specs];
        kv_mixed_make(&mixed, name, place, shape->n_layers);
        place[at] = base;
        if (kv_ppl_run(p, &mixed, calib, NULL, &row, e))
            goto out;
        /* subtracts the base run's bytes, which the other places store */
        offer[i] = (struct kv_offer){row.bits.bytes -
                                         all.bits.bytes / (double)n_places *
                                             (double)(n_places - 1),
                                     row.score.kl_mean};
        kv_detail("%s, %s: %.9g nats", name, spec[i % n_specs].text,
                  row.score.kl_mean);
    }
    *values = all.bits.values;
    rc = 0;
out:
    free(place);
    return rc;
}
