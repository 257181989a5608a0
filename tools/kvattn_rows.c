/* The rows of kvattn: every spec on every path that supports it. */
#include "eval/attn_kept.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "tools/columns_about.h"
#include "tools/kvattn.h"
#include "tools/shape_option.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      KV_BITS_COLUMNS,
                                      "kept",
                                      "layer",
                                      "attn_rel_err",
                                      "path_rel_err",
                                      "lat_us_p50",
                                      "lat_us_p10",
                                      "lat_us_p90",
                                      "noisy",
                                      "bytes_moved",
                                      "device_bytes",
                                      "gb_s",
                                      "bw_share",
                                      "speedup",
                                      "path",
                                      "encode_us_p50",
                                      "inline_us_p50",
                                      "async_us_p50",
                                      "quantize_us_p50",
                                      "decode_us_p50",
                                      "append_us",
                                      "ops_products",
                                      "ops_correction",
                                      "ops_formula",
                                      "ops_formula_parts",
                                      "ops_other",
                                      NULL};

void kvattn_about_columns(void)
{
    kv_columns_about("kvattn", columns);
    kvattn_about_step();
}

/* Operations of a scheme's own attention; the paper has no formula for
 * axes=artifact. */
static void put_ops(struct kv_results *table, const struct kv_attend_ops *o)
{
    kv_results_size(table, "ops_products", o->products);
    kv_results_size(table, "ops_correction", o->correction);
    if (o->formula) {
        kv_results_size(table, "ops_formula", o->formula);
        kv_results_size(table, "ops_formula_parts", o->formula_parts);
    }
    kv_results_size(table, "ops_other", o->other);
}

static int put_row(struct kvattn_run *r, const struct kv_spec *spec,
                   const char *path, struct kv_attn_result *m,
                   const struct kv_append_times *append, struct kv_err *e)
{
    const struct kv_timing *t = &m->timing;
    const bool calibrated = kv_spec_calibrated(spec);
    struct kv_results *table = r->table;

    kv_results_conditions(table, &r->conditions, spec,
                          calibrated ? r->calib : NULL, r->leak);
    kv_bits_of_spec(&m->bits, spec, &r->inputs.shape, r->calib,
                    (int)r->inputs.layer, KV_ALL);
    kv_results_bits(table, &m->bits);
    kv_results_real(table, "kept", m->bits.kept_values / m->bits.values);
    if (r->dump)
        kv_results_size(table, "layer", r->inputs.layer);
    if (!calibrated || !r->random_calib)
        kv_results_real(table, "attn_rel_err", m->rel_err);
    kv_results_real(table, "path_rel_err", m->path_rel_err);
    kv_results_real(table, "lat_us_p50", t->p50 * 1e6);
    kv_results_real(table, "lat_us_p10", t->p10 * 1e6);
    kv_results_real(table, "lat_us_p90", t->p90 * 1e6);
    kv_results_size(table, "noisy", kv_timing_noisy(t));
    kv_results_size(table, "bytes_moved", m->bytes_moved);
    kv_results_size(table, "device_bytes", m->device_bytes);
    kv_results_real(table, "gb_s", (double)m->bytes_moved / t->p50 * 1e-9);
    kv_results_real(table, "bw_share",
                    (double)m->bytes_moved / t->p50 / r->bandwidth);
    kv_results_real(table, "speedup", m->speedup);
    kv_results_text(table, "path", path);
    kv_results_real(table, "encode_us_p50", append->encode * 1e6);
    kv_results_real(table, "inline_us_p50", append->in_line * 1e6);
    kv_results_real(table, "async_us_p50", append->aside * 1e6);
    kv_results_real(table, "quantize_us_p50", append->quantize * 1e6);
    kv_results_real(table, "decode_us_p50", append->decode * 1e6);
    kv_results_real(table, "append_us", m->append * 1e6);
    if (kv_spec_at(spec, r->inputs.layer, KV_K)->scheme->attend &&
        r->how.repeats == 1)
        put_ops(table, &m->ops);
    r->rows++;
    r->noisy += kv_timing_noisy(t);
    return kv_results_row(table, e);
}

/* The paths that ran on a spec so far: a path that the spec lacks falls back to
 * another, which gets no second row. */
struct ran {
    const char *name[KV_ATTN_PATHS + 1];
    size_t n;
    const struct kv_attn_kept *kept; /* the kept tokens of a policy, else
                                      * NULL */
};

static bool is_new(struct ran *ran, const char *name)
{
    for (size_t i = 0; i < ran->n; i++)
        if (!strcmp(ran->name[i], name))
            return false;
    ran->name[ran->n++] = name;
    return true;
}

static void leave_out(struct kvattn_run *r, const struct kv_err *e)
{
    kv_warn("%s: left out", e->msg);
    r->left_out++;
}

/* Times the step and writes its row; returns 1 if a GPU failed.  If encoding
 * has no times, the row still has attention's. */
static int run_step(struct kvattn_run *r, const struct kv_spec *spec,
                    const struct ran *ran, struct kv_attn_step *step,
                    struct kv_err *e)
{
    struct kv_append_times append;
    struct kv_attn_result m;
    struct kv_err why = {""};
    int rc = kv_attn_step_run(step, r->base, &m, e);
    bool blank;

    if (kv_interrupted(e)) /* runs on a GPU do not check for Ctrl-C */
        return -1;
    if (rc)
        return rc;
    if (ran->kept) {
        m.rel_err = ran->kept->rel_err;
        m.bits = ran->kept->bits;
    }
    if (ran->n == 1)
        kv_common_note_stored(spec, &m.bits);
    blank = kv_attn_step_append(step, &append, &why);
    if (kv_interrupted(e) ||
        put_row(r, spec, kv_attn_step_path(step), &m, &append, e))
        return -1;
    if (blank) {
        kv_warn("%s: %s: times of encoding left out", spec->text, why.msg);
        r->left_out++;
    }
    return 0;
}

static int run_path(struct kvattn_run *r, const struct kv_spec *spec,
                    enum kv_attn_path path, struct ran *ran, struct kv_err *e)
{
    struct kv_attn_step *step;
    int rc = 0;

    if (kv_interrupted(e))
        return -1;
    rc = kv_attn_step_new(&step, &r->how,
                          ran->kept ? &ran->kept->inputs : &r->inputs, spec,
                          path, e);
    if (rc > 0 && r->base) { /* other specs may still run */
        leave_out(r, e);
        return 0;
    }
    if (rc)
        return -1;
    if (!r->base)
        r->base = step;
    if (is_new(ran, kv_attn_step_path(step))) {
        rc = run_step(r, spec, ran, step, e);
        if (rc > 0 && step != r->base) {
            leave_out(r, e);
            rc = 0;
        }
    }
    if (step != r->base)
        kv_attn_step_free(step);
    return rc ? -1 : 0;
}

static bool is_f16(const struct kvattn_run *r, const struct kv_spec *spec)
{
    for (int side = 0; side < KV_SIDES; side++)
        if (strcmp(kv_spec_at(spec, r->inputs.layer, (enum kv_side)side)
                       ->scheme->name,
                   "f16") != 0)
            return false;
    return true;
}

/* Whether the path has a row for this spec: unfused only for f16, dequant only
 * for others. */
static bool is_of(enum kv_attn_path path, bool f16)
{
    return path == KV_ATTN_UNFUSED   ? f16
           : path == KV_ATTN_DEQUANT ? !f16
                                     : true;
}

/* The base line is fused: on a GPU never the generic kernel if the family has
 * its own. */
static enum kv_attn_path base_path(const struct kvattn_run *r)
{
    return r->how.gpu ? KV_ATTN_EXACT : r->path[0];
}

/* The most runs that a spec takes, for the progress bar. */
static size_t runs_of_spec(const struct kvattn_run *r)
{
    return r->n_paths * (r->how.warmup + r->how.reps);
}

static int run_spec(struct kvattn_run *r, const struct kv_spec *spec,
                    struct kv_err *e)
{
    const size_t end = r->progress.done + runs_of_spec(r);
    const bool f16 = is_f16(r, spec), base = !r->base;
    const bool policy = spec->policy.policy;
    struct kv_attn_kept kept = {.rel_err = NAN};
    struct ran ran = {.kept = policy ? &kept : NULL};
    int rc = policy ? kv_attn_kept_new(&kept, &r->inputs, spec, r->calib,
                                       r->how.seed, e)
             : base ? run_path(r, spec, base_path(r), &ran, e)
                    : 0;

    for (size_t i = 0; i < r->n_paths && !rc; i++)
        if (is_of(r->path[i], f16) && !(base && r->path[i] == base_path(r)))
            rc = run_path(r, spec, r->path[i], &ran, e);
    kv_attn_kept_clear(&kept);
    /* counts paths without a run, and runs on a GPU, which report no steps */
    kv_progress_step(&r->progress, end - r->progress.done);
    return rc;
}

static int open_table(struct kvattn_run *r, const struct kvattn_args *a,
                      const struct kv_spec *specs, size_t n, struct kv_err *e)
{
    return kv_common_table(&r->table, &a->common, a->common.output, columns,
                           specs, n, e);
}

int kvattn_add_specs(const struct kvattn_args *a, const struct kv_shape *shape,
                     struct kv_spec **all, size_t *n_all, struct kv_err *e)
{
    const struct kv_sweep sweep = {
        .base = "f16", .specs = &a->specs, .shape = shape, .shard = {1, 1}};
    const int verbosity = kv_verbosity();
    struct kv_spec *list;
    size_t n, n_list;
    int rc;

    kv_verbosity_set(0); /* no notes here: each shape's own run repeats them */
    rc = kv_sweep_list(&sweep, &list, &n, &n_list, e);
    kv_verbosity_set(verbosity);
    if (rc)
        return -1;
    *all = kv_realloc(*all, *n_all + n, sizeof(**all));
    memcpy(*all + *n_all, list, n * sizeof(*list));
    *n_all += n;
    free(list);
    return 0;
}

/* The table for all shapes, whose specs may differ in their parameters. */
int kvattn_open_table(struct kvattn_run *r, const struct kvattn_args *a,
                      struct kv_err *e)
{
    struct kv_attn_inputs in = {0};
    struct kv_spec *all = NULL;
    size_t n = 0, batch;
    int rc = 0;

    if (a->shapes.n < 2)
        return open_table(r, a, r->spec, r->n_specs, e);
    for (size_t i = 0; i < a->shapes.n && !rc; i++)
        rc = kv_shape_option(a->shapes.item[i], &in, &batch, e) ||
             kvattn_add_specs(a, &in.shape, &all, &n, e);
    rc = rc || open_table(r, a, all, n, e);
    free(all);
    return rc ? -1 : 0;
}

int kvattn_run_all(struct kvattn_run *r, const struct kvattn_args *a,
                   struct kv_err *e)
{
    int rc = 0;

    r->how.calib = r->calib;
    r->how.warm = a->warm;
    r->how.bench = r->bench;
    r->how.warmup = a->warmup;
    r->how.reps = a->reps;
    r->how.seed = a->common.seed;
    r->how.progress = &r->progress;
    kv_progress_init(&r->progress, "attending", r->n_specs * runs_of_spec(r));
    for (size_t i = 0; i < r->n_specs && !rc; i++)
        rc = run_spec(r, &r->spec[i], e);
    kv_progress_clear(&r->progress);
    if (rc)
        return -1;

    if (r->noisy)
        kv_note("noisy: %zu of %zu rows, whose slow runs (lat_us_p90) took "
                "more than twice as long as the fast ones (lat_us_p10)",
                r->noisy, r->rows);
    return 0;
}
