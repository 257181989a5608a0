/* kvppl's tables: a row for each spec, and with --kl-curve rows of divergence
 * by position. */
#include "lib/base/alloc.h"
#include "tools/columns_about.h"
#include "tools/kvppl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      "places",
                                      KV_BITS_COLUMNS,
                                      "kept",
                                      "ppl",
                                      "ppl_se",
                                      "nll",
                                      "dnll",
                                      "dnll_se",
                                      "bits_per_byte",
                                      "word_ppl",
                                      "kl_mean",
                                      "kl_se",
                                      "kl_median",
                                      "kl_p99",
                                      "kl_max",
                                      "kl_p999",
                                      "kl_p95",
                                      "kl_p90",
                                      "kl_p10",
                                      "kl_p5",
                                      "kl_p1",
                                      "kl_jitter",
                                      "kl_slope",
                                      "kl_slope_se",
                                      "kl_windows",
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
    KV_CONDITION_COLUMNS, "places",       "first_token",
    "last_token",         "kl_mean",      "kl_se",
    "same_top1",          "same_top1_se", NULL};

void kvppl_about_columns(void)
{
    kv_columns_about("kvppl", columns);
    kv_columns_about("kvppl --kl-curve", curve_columns);
}

/* Returns the specs of all settings; *n: their number. */
static struct kv_spec *all_specs(const struct kvppl_study *s, size_t *n)
{
    struct kv_spec *all = NULL;

    *n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct kvppl_run *r = &s->run[i];

        all = kv_realloc(all, *n + r->n_all, sizeof(*all));
        memcpy(all + *n, r->spec, r->n_all * sizeof(*all));
        *n += r->n_all;
    }
    return all;
}

int kvppl_open_tables(struct kvppl_study *s, const struct kvppl_args *a,
                      struct kv_err *e)
{
    struct kv_common whole = a->common;
    struct kv_spec *specs;
    size_t n;
    int rc;

    whole.columns = NULL; /* --columns are for the other table */
    specs = all_specs(s, &n);
    rc = kvppl_records_open(s, a, e) ||
         kvppl_open_table(s, a, columns, specs, n, e) ||
         (a->curve && kv_common_table(&s->curve, &whole, a->curve,
                                      curve_columns, specs, n, e));
    free(specs);
    return rc ? -1 : 0;
}

int kvppl_close_tables(struct kvppl_study *s, struct kv_err *e)
{
    struct kv_results *curve = s->curve, *table;

    s->curve = NULL;
    if ((curve && kv_results_close(curve, e)) || kvppl_records_close(s, e))
        return -1;
    table = s->table;
    s->table = NULL;
    return table ? kv_results_close(table, e) : 0;
}

void kvppl_discard_tables(struct kvppl_study *s)
{
    kv_results_discard(s->table);
    kv_results_discard(s->curve);
    kv_h5_close(s->records);
}

/* The number of own tokens that are not scored, because the prompt at full
 * precision predicts them. */
static size_t own_unscored(const struct kvppl_run *r,
                           const struct kvppl_args *a)
{
    size_t first, last;

    kv_protocol_scored(&r->protocol, r->text.ctx + a->own, &first, &last);
    return a->own - (last - first);
}

/* Writes the number of leading tokens that the spec's own greedy run would
 * write too: up to its first different choice, its cache has exactly these
 * tokens. */
static void put_agree(struct kvppl_run *r, const struct kvppl_args *a,
                      const struct kv_kl_curve *c)
{
    if (!a->own || a->own_temperature > 0)
        return;
    kv_results_real(r->study->table, "agree",
                    (double)own_unscored(r, a) +
                        kv_window_mean_value(&c->agree));
    kv_results_real(r->study->table, "agree_se", kv_window_mean_se(&c->agree));
}

void kvppl_put_conditions(const struct kvppl_run *r, struct kv_results *t,
                          const struct kv_spec *spec)
{
    kv_results_conditions(t, &r->conditions, spec,
                          kv_spec_calibrated(spec) ? r->calib : NULL, r->leak);
    kv_results_text(t, "places", r->places);
}

static int put_curve(struct kvppl_run *r, const struct kv_spec *spec,
                     const struct kv_kl_curve *c, struct kv_err *e)
{
    for (size_t i = 0; i < kv_kl_curve_buckets(c); i++) {
        size_t first, last;

        kv_kl_curve_ends(c, i, &first, &last);
        kvppl_put_conditions(r, r->study->curve, spec);
        kv_results_size(r->study->curve, "first_token", first);
        kv_results_size(r->study->curve, "last_token", last);
        kv_results_real(r->study->curve, "kl_mean",
                        kv_window_mean_value(&c->kl[i]));
        kv_results_real(r->study->curve, "kl_se", kv_window_mean_se(&c->kl[i]));
        kv_results_real(r->study->curve, "same_top1",
                        kv_window_mean_value(&c->same[i]));
        kv_results_real(r->study->curve, "same_top1_se",
                        kv_window_mean_se(&c->same[i]));
        if (kv_results_row(r->study->curve, e))
            return -1;
    }
    return 0;
}

/* Writes each window's mean KL, separated by spaces; blank without KL.  Their
 * mean is kl_mean. */
static void put_windows(struct kvppl_run *r, const struct kv_ppl_row *row)
{
    enum { CHARS = 16 }; /* the longest number, and the space behind it */
    const size_t n_windows = r->text.n;
    char *text, *at;

    if (!row->kl)
        return;
    text = at = kv_alloc(n_windows, CHARS);
    for (size_t w = 0; w < n_windows; w++)
        at += snprintf(at, CHARS, "%s%.6g", w ? " " : "", row->kl[w]);
    kv_results_text(r->study->table, "kl_windows", text);
    free(text);
}

/* The cell is blank if no prompt attended as a whole. */
static void put_prefill(struct kv_results *t, const struct kv_prefill *cost)
{
    if (!(cost->all_pairs > 0))
        return;
    kv_results_real(t, "attn_pairs", cost->pairs / cost->all_pairs);
    kv_results_real(t, "attn_seconds", cost->seconds);
}

/* Blank if the tokens cannot be decoded. */
static void put_extent(struct kv_results *t, const struct kvppl_extent *x,
                       const struct kv_score_summary *s)
{
    const double nats = s->nll * s->tokens;

    if (x->bytes > 0)
        kv_results_real(t, "bits_per_byte", nats / log(2) / x->bytes);
    if (x->words > 0)
        kv_results_real(t, "word_ppl", exp(nats / x->words));
}

int kvppl_put_row(struct kvppl_run *r, const struct kvppl_args *a,
                  const struct kv_spec *spec, const struct kv_ppl_row *row,
                  struct kv_err *e)
{
    const struct kv_score_summary *s = &row->score;
    const struct kv_kl_curve *c = &row->curve;
    struct kv_results *t = r->study->table;
    const bool tokens = r->protocol.kind == KV_LLAMA_CPP;

    kv_common_note_stored(spec, &row->bits);
    kvppl_put_conditions(r, t, spec);
    kv_results_bits(t, &row->bits);
    kv_results_real(t, "kept", row->bits.kept_values / row->bits.values);
    kv_results_real(t, "ppl", s->ppl);
    kv_results_real(t, "ppl_se", tokens ? s->ppl_se_tokens : s->ppl_se);
    kv_results_real(t, "nll", s->nll);
    kv_results_real(t, "dnll", s->dnll);
    kv_results_real(t, "dnll_se", s->dnll_se);
    put_extent(t, &r->extent, s);
    kv_results_real(t, "kl_mean", s->kl_mean);
    kv_results_real(t, "kl_se", s->kl_se);
    kv_results_real(t, "kl_median", s->kl_median);
    kv_results_real(t, "kl_p99", s->kl_p99);
    kv_results_real(t, "kl_max", s->kl_max);
    kv_results_real(t, "kl_p999", s->kl_p999);
    kv_results_real(t, "kl_p95", s->kl_p95);
    kv_results_real(t, "kl_p90", s->kl_p90);
    kv_results_real(t, "kl_p10", s->kl_p10);
    kv_results_real(t, "kl_p5", s->kl_p5);
    kv_results_real(t, "kl_p1", s->kl_p1);
    kv_results_real(t, "kl_slope", 1e3 * kv_window_mean_value(&c->slope));
    kv_results_real(t, "kl_slope_se", 1e3 * kv_window_mean_se(&c->slope));
    put_windows(r, row);
    kv_results_real(t, "same_top1", s->same_top1);
    if (a->jitter && !isnan(s->kl_mean))
        kv_results_real(t, "kl_jitter", kvppl_kl_jitter(row, a->jitter));
    put_agree(r, a, c);
    kv_results_real(t, "dp_mean", s->dp_mean);
    kv_results_real(t, "dp_rms", s->dp_rms);
    kv_results_real(t, "tokens", s->tokens);
    kv_results_real(t, "seconds", row->seconds);
    put_prefill(t, &row->prefill);
    return kv_results_row(t, e) ||
                   (r->study->curve && put_curve(r, spec, c, e)) ||
                   kvppl_records_row(r, a, spec, row, e)
               ? -1
               : 0;
}

void kvppl_say_floor(const struct kv_score_summary *s)
{
    char kl[64] = "";

    if (!isnan(s->kl_mean))
        snprintf(kl, sizeof(kl), ", KL %.2g", s->kl_mean);
    kv_note("--gemm auto: products in bf16; an f16 cache differs from f32 by "
            "dnll %.2g%s: less is their rounding",
            s->dnll, kl);
}

/* Describes a row; a single window has no error over windows. */
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
