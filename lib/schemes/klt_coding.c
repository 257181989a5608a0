#include "lib/schemes/klt_coding.h"
#include "kernels/levels/lloyd_max.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"

#include <math.h>
#include <stdlib.h>

/* ---- numbers ------------------------------------------------------------- */

static float *table_of(const struct kv_klt_numbers *n, bool trellis,
                       size_t kind)
{
    return n->table + (trellis * KV_KLT_KINDS + kind) * KV_TRELLIS_MAX_VALUES *
                          KV_TRELLIS_STATES;
}

/* Fills the table with Lloyd-Max levels at whole bits: the value of a state
 * depends only on the transition's own bits.  Returns the mean squared
 * error. */
static double fill_levels(const struct kv_klt_kind *kind, float *table)
{
    double level[KV_LLOYD_MAX_LEVELS], threshold[KV_LLOYD_MAX_LEVELS], mse;

    if (kind->values > 1)
        return (double)INFINITY;
    mse = kv_lloyd_max(kind->bits, level, threshold);
    for (size_t s = 0; s < KV_TRELLIS_STATES; s++)
        table[s] = (float)level[s % ((size_t)1 << kind->bits)];
    return mse;
}

int kv_klt_numbers_load(struct kv_klt_numbers *n, const struct kv_codec *c,
                        const struct kv_calib_set *set, struct kv_err *e)
{
    const bool scalar = kv_spec_is(&c->spec, c->side, "code", "scalar");

    n->table = kv_lines((size_t)2 * KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES,
                        KV_TRELLIS_STATES * sizeof(float));
    for (size_t i = 0; i < KV_KLT_KINDS; i++) {
        const struct kv_klt_kind kind = kv_klt_kinds[i];
        const size_t dims[] = {kind.values, kv_trellis_kept(kind.bits)};
        const struct kv_table *t;
        char name[32];

        if (scalar) {
            n->mse[i] = fill_levels(&kind, table_of(n, false, i));
            continue;
        }
        kv_klt_table_name(i, name);
        if (!(t = kv_calib_want(c, set, name, 0, 2, dims, e)))
            return -1;
        kv_trellis_unfold(kind.bits, kind.values, t->data,
                          table_of(n, true, i));
        n->mse[i] = t->error;
    }
    return 0;
}

void kv_klt_numbers_clear(struct kv_klt_numbers *n)
{
    free(n->table);
}

const struct kv_trellis_map *kv_klt_map(size_t at)
{
    const size_t table = at / (KV_TRELLIS_MAX_VALUES * KV_TRELLIS_STATES);
    const struct kv_klt_kind *kind = &kv_klt_kinds[table % KV_KLT_KINDS];

    return table < KV_KLT_KINDS ? kv_trellis_last_bits(kind->bits)
                                : kv_trellis_map(kind->bits, kind->values);
}

/* ---- coefficients -------------------------------------------------------- */

/* Stores the unit's coefficients in the bitstream's order. */
static void keep_coefs(struct kv_klt_coding *g, const struct kv_klt_unit *u,
                       const double *mse)
{
    g->coef = u->coef;
    g->n_coded = u->n_coded;
    g->bytes = u->bytes;
    g->sigma = kv_alloc(u->n_coded, sizeof(*g->sigma));
    g->place = kv_alloc(u->n_coded, sizeof(*g->place));
    for (size_t i = 0; i < u->n_coded; i++) {
        const unsigned index = u->coef[i].index;

        g->sigma[i] = sqrtf(u->coef[i].variance);
        g->place[i] = index;
        if (index >= g->n_used)
            g->n_used = index + 1;
    }
    for (size_t i = 0; i < u->n; i++) {
        const double variance = (double)u->coef[i].variance;

        g->coded += i < g->n_coded ? variance : 0;
        g->error +=
            i < g->n_coded ? variance * mse[u->coef[i].kind - 1] : variance;
    }
}

static void add_transition(struct kv_klt_coding *g,
                           const struct kv_klt_numbers *n, bool trellis,
                           size_t kind)
{
    const struct kv_klt_kind *of = &kv_klt_kinds[kind];
    struct kv_trellis_transition *to = &g->transition[g->n_transitions++];
    float *const table = table_of(n, trellis, kind);

    if (to > g->transition && to[-1].table == table) {
        *to = to[-1];
        return;
    }
    if (!trellis)
        fill_levels(of, table);
    *to = kv_trellis_transition(of->bits, of->values, table, trellis);
}

/* Makes the transitions.  A trellis needs a full state: while the bits before a
 * transition do not fill one, levels have less error, if the kind has
 * levels. */
static void make_transitions(struct kv_klt_coding *g,
                             const struct kv_klt_numbers *n, bool scalar)
{
    size_t bits = 0;

    g->transition = kv_alloc(g->n_coded, sizeof(*g->transition));
    for (size_t i = 0; i < g->n_coded;) {
        const size_t kind = g->coef[i].kind - 1u;
        const struct kv_klt_kind *of = &kv_klt_kinds[kind];
        const size_t levels = kv_klt_single(kind);

        if (scalar || (bits < KV_TRELLIS_BITS && levels < KV_KLT_KINDS))
            for (unsigned v = 0; v < of->values; v++)
                add_transition(g, n, false, levels);
        else
            add_transition(g, n, true, kind);
        bits += of->bits;
        i += of->values;
    }
    g->whole = kv_alloc(g->n_coded, sizeof(*g->whole));
    kv_trellis_count(g->transition, g->n_transitions, g->sigma, g->whole);
}

static void list_coefs(struct kv_klt_coding *g, const struct kv_klt_numbers *n)
{
    unsigned end = 0;

    g->listed = kv_alloc(g->n_coded, sizeof(*g->listed));
    for (size_t t = 0, i = 0; t < g->n_transitions; t++) {
        const float *table = g->transition[t].table;

        end += g->transition[t].bits;
        for (unsigned v = 0; v < g->transition[t].values; v++, i++)
            g->listed[i] = (struct kv_gpu_coefficient){
                .end = end,
                .table = (unsigned)(table - n->table) + v * KV_TRELLIS_STATES,
                .index = g->coef[i].index,
                .place = (unsigned)i,
                .scale = g->sigma[i]};
    }
}

static void list_runs(struct kv_klt_coding *g, const struct kv_klt_numbers *n)
{
    g->runs = kv_alloc(g->n_transitions, sizeof(*g->runs));
    for (size_t i = 0; i < g->n_transitions; i++) {
        const struct kv_trellis_transition *t = &g->transition[i];

        if (!i || t->table != t[-1].table)
            g->runs[g->n_runs++] = (struct kv_gpu_transitions){
                .bits = t->bits,
                .values = t->values,
                .table = (unsigned)(t->table - n->table)};
        g->runs[g->n_runs - 1].n++;
        g->n_bits += t->bits;
    }
}

void kv_klt_coding_init(struct kv_klt_coding *g, const struct kv_codec *c,
                        const struct kv_calib_set *set,
                        const struct kv_klt_numbers *n)
{
    const struct kv_klt_unit mine = kv_klt_share(c, set, n->mse);

    *g = (struct kv_klt_coding){.n_coded = 0};
    keep_coefs(g, &mine, n->mse);
    make_transitions(g, n, kv_spec_is(&c->spec, c->side, "code", "scalar"));
    list_coefs(g, n);
    list_runs(g, n);
}

void kv_klt_coding_clear(struct kv_klt_coding *g)
{
    free(g->coef);
    free(g->sigma);
    free(g->place);
    free(g->transition);
    free(g->whole);
    free(g->listed);
    free(g->runs);
}
