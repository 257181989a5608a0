/* kvppl's tables: a row for each spec, and with --kl-curve rows of divergence
 * by position. */
#include "tools/kvppl.h"

#include <math.h>
#include <stdio.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      KV_BITS_COLUMNS,
                                      "kept",
                                      "ppl",
                                      "ppl_se",
                                      "nll",
                                      "dnll",
                                      "dnll_se",
                                      "kl_mean",
                                      "kl_se",
                                      "kl_median",
                                      "kl_p99",
                                      "kl_max",
                                      "kl_slope",
                                      "kl_slope_se",
                                      "same_top1",
                                      "agree",
                                      "agree_se",
                                      "dp_mean",
                                      "dp_rms",
                                      "tokens",
                                      "seconds",
                                      "attn_pairs",
                                      "attn_seconds",
                                      NULL};

static const char *const curve_columns[] = {
    KV_CONDITION_COLUMNS, "first_token",  "last_token", "kl_mean", "kl_se",
    "same_top1",          "same_top1_se", NULL};

int kvppl_open_tables(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e)
{
    struct kv_common whole = a->common;

    whole.columns = NULL; /* the other table's */
    return kvppl_open_table(r, a, columns, e) ||
                   (a->curve &&
                    kv_common_table(&r->curve, &whole, a->curve, curve_columns,
                                    r->spec, r->n_specs, e))
               ? -1
               : 0;
}

int kvppl_close_tables(struct kvppl_run *r, struct kv_err *e)
{
    struct kv_results *curve = r->curve;

    r->curve = NULL;
    if (curve && kv_results_close(curve, e)) {
        kvppl_discard_tables(r);
        return -1;
    }
    return kv_results_close(r->table, e);
}

void kvppl_discard_tables(struct kvppl_run *r)
{
    kv_results_discard(r->table);
    kv_results_discard(r->curve);
}

/* The tokens of own text that are not scored, as the exact prompt predicts
 * them. */
static size_t own_unscored(const struct kvppl_run *r,
                           const struct kvppl_args *a)
{
    size_t first, last;

    kv_protocol_scored(&r->protocol, r->text.ctx + a->own, &first, &last);
    return a->own - (last - first);
}

/* Leading tokens of the text that the spec's own greedy run would write too: it
 * has the text's tokens in its cache until its choice differs from the text. */
static void put_agree(struct kvppl_run *r, const struct kvppl_args *a,
                      const struct kv_kl_curve *c)
{
    if (!a->own || a->own_temperature > 0)
        return;
    kv_results_real(r->table, "agree",
                    (double)own_unscored(r, a) +
                        kv_window_mean_value(&c->agree));
    kv_results_real(r->table, "agree_se", kv_window_mean_se(&c->agree));
}

static void put_conditions(struct kvppl_run *r, struct kv_results *t,
                           const struct kv_spec *spec)
{
    kv_results_conditions(t, &r->conditions, spec,
                          kv_spec_calibrated(spec) ? r->calib : NULL, r->leak);
}

static int put_curve(struct kvppl_run *r, const struct kv_spec *spec,
                     const struct kv_kl_curve *c, struct kv_err *e)
{
    for (size_t i = 0; i < kv_kl_curve_buckets(c); i++) {
        size_t first, last;

        kv_kl_curve_ends(c, i, &first, &last);
        put_conditions(r, r->curve, spec);
        kv_results_size(r->curve, "first_token", first);
        kv_results_size(r->curve, "last_token", last);
        kv_results_real(r->curve, "kl_mean", kv_window_mean_value(&c->kl[i]));
        kv_results_real(r->curve, "kl_se", kv_window_mean_se(&c->kl[i]));
        kv_results_real(r->curve, "same_top1",
                        kv_window_mean_value(&c->same[i]));
        kv_results_real(r->curve, "same_top1_se",
                        kv_window_mean_se(&c->same[i]));
        if (kv_results_row(r->curve, e))
            return -1;
    }
    return 0;
}

/* Blank where no prompt was attended to as one. */
static void put_prefill(struct kv_results *t, const struct kv_prefill *cost)
{
    if (!(cost->all_pairs > 0))
        return;
    kv_results_real(t, "attn_pairs", cost->pairs / cost->all_pairs);
    kv_results_real(t, "attn_seconds", cost->seconds);
}

int kvppl_put_row(struct kvppl_run *r, const struct kvppl_args *a,
                  const struct kv_spec *spec, const struct kv_ppl_row *row,
                  struct kv_err *e)
{
    const struct kv_score_summary *s = &row->score;
    const struct kv_kl_curve *c = &row->curve;
    struct kv_results *t = r->table;
    const bool tokens = r->protocol.kind == KV_LLAMA_CPP;

    kv_common_note_stored(spec, &row->bits);
    put_conditions(r, t, spec);
    kv_results_bits(t, &row->bits);
    kv_results_real(t, "kept", row->bits.kept_values / row->bits.values);
    kv_results_real(t, "ppl", s->ppl);
    kv_results_real(t, "ppl_se", tokens ? s->ppl_se_tokens : s->ppl_se);
    kv_results_real(t, "nll", s->nll);
    kv_results_real(t, "dnll", s->dnll);
    kv_results_real(t, "dnll_se", s->dnll_se);
    kv_results_real(t, "kl_mean", s->kl_mean);
    kv_results_real(t, "kl_se", s->kl_se);
    kv_results_real(t, "kl_median", s->kl_median);
    kv_results_real(t, "kl_p99", s->kl_p99);
    kv_results_real(t, "kl_max", s->kl_max);
    kv_results_real(t, "kl_slope", 1e3 * kv_window_mean_value(&c->slope));
    kv_results_real(t, "kl_slope_se", 1e3 * kv_window_mean_se(&c->slope));
    kv_results_real(t, "same_top1", s->same_top1);
    put_agree(r, a, c);
    kv_results_real(t, "dp_mean", s->dp_mean);
    kv_results_real(t, "dp_rms", s->dp_rms);
    kv_results_real(t, "tokens", s->tokens);
    kv_results_real(t, "seconds", row->seconds);
    put_prefill(t, &row->prefill);
    return kv_results_row(t, e) || (r->curve && put_curve(r, spec, c, e)) ? -1
                                                                          : 0;
}

/* One window has no error over windows. */
void kvppl_say_row(const struct kvppl_run *r, const struct kv_spec *spec,
                   const struct kv_score_summary *s)
{
    const double se =
        r->protocol.kind == KV_LLAMA_CPP ? s->ppl_se_tokens : s->ppl_se;
    char error[32] = "";

    if (!isnan(se))
        snprintf(error, sizeof(error), " +/- %.4f", se);
    kv_note("%s: PPL = %.4f%s", spec->text, s->ppl, error);
}
