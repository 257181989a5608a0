/* kvcalib --allocate: writes the layer file with the least error that a budget
 * of bits allows. */
#include "eval/allocate.h"
#include "eval/calib_check.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/windows.h"
#include "tools/columns_about.h"
#include "tools/kvcalib.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {
    KV_CONDITION_COLUMNS, "bits", "side", "layer", "cost", "chosen", NULL};

void kvcalib_about_allocate(void)
{
    kv_columns_about("kvcalib --allocate --table", columns);
}

/* A run of --allocate.  Errors are measured on a dump, or with -m on a text
 * that the model reads. */
struct run {
    double budget;
    struct kv_dump *dump;
    struct kv_model *model;
    struct kv_tokenizer *tokenizer;
    struct kv_windows text;
    struct kv_protocol protocol;
    struct kv_shape shape;
    struct kv_calib *calib;
    double leak;
    struct kv_spec *asked, *spec; /* [n_specs]: as given, as run */
    size_t n_specs, n_places;
    struct kv_offer *offer;   /* [n_places][n_specs] */
    double values;            /* values of all places */
    size_t *choice;           /* [n_places] */
    struct kv_out out;        /* the layer file */
    struct kv_results *table; /* may be NULL */
    struct kv_conditions conditions;
};

/* ---- the specs ----------------------------------------------------------- */

static int check_spec(const struct kv_spec *s, struct kv_err *e)
{
    if (s->mixed)
        return kv_fail(e,
                       "--allocate chooses for each layer and side, and takes "
                       "no spec that does: %s",
                       s->text);
    if (s->policy.policy)
        return kv_fail(e,
                       "--allocate: every token is kept here: a policy stands "
                       "before mixed,file=LAYERS: %s",
                       s->text);
    if (kv_spec_spans(s))
        return kv_fail(e,
                       "--allocate chooses for each layer: %s takes all layers "
                       "together",
                       s->text);
    if (kv_spec_together(s) || kv_spec_layered(s, 0))
        return kv_fail(e,
                       "--allocate chooses for keys and values each by itself: "
                       "%s takes those of a layer together",
                       s->text);
    return 0;
}

static int list_specs(struct run *r, const struct kvcalib_args *a,
                      struct kv_err *e)
{
    if (kv_spec_expand(a->specs.item, a->specs.n, &r->asked, &r->n_specs, e))
        return -1;
    r->spec = kv_alloc(r->n_specs, sizeof(*r->spec));
    for (size_t i = 0; i < r->n_specs; i++) {
        if (check_spec(&r->asked[i], e) ||
            kv_spec_fit(&r->asked[i], &r->shape, e))
            return -1;
        r->spec[i] = r->asked[i];
        kv_protocol_spec(&r->protocol, &r->spec[i]);
        if (kv_spec_fit(&r->spec[i], &r->shape, e))
            return -1;
    }
    kv_common_hadamard(r->spec, r->n_specs, &r->shape);
    r->n_places = r->shape.n_layers * KV_SIDES;
    r->offer = kv_alloc(r->n_places * r->n_specs, sizeof(*r->offer));
    r->choice = kv_alloc(r->n_places, sizeof(*r->choice));
    return 0;
}

/* ---- cost of each spec at each place ------------------------------------- */

static int check_latent(const struct kv_shape *s, const char *path,
                        struct kv_err *e)
{
    return s->latent ? kv_fail(e,
                               "%s is of latent attention, whose V has no spec "
                               "of its own: --allocate is not implemented for "
                               "it",
                               path)
                     : 0;
}

static int check_dump(const struct kv_dump_info *info, const char *path,
                      struct kv_err *e)
{
    if (check_latent(&info->shape, path, e))
        return -1;
    if (!info->have[KV_T_Q])
        return kv_fail(e,
                       "%s has no queries, which --allocate needs: make it "
                       "with kvdump --what q,k,v",
                       path);
    if (info->first_layer || info->last_layer + 1 < info->shape.n_layers)
        return kv_fail(e,
                       "%s holds layers %zu to %zu of %zu: --allocate needs "
                       "all of them",
                       path, info->first_layer, info->last_layer,
                       info->shape.n_layers);
    return 0;
}

static int open_dump(struct run *r, const struct kvcalib_args *a,
                     struct kv_err *e)
{
    const struct kv_dump_info *info;

    if (kv_dump_open(&r->dump, a->dump, e))
        return -1;
    info = kv_dump_info(r->dump);
    r->shape = info->shape;
    r->conditions.model = info->model;
    r->conditions.model_hash = info->model_hash;
    r->conditions.weights = info->weights;
    r->conditions.text = info->text;
    r->conditions.text_hash = info->text_hash;
    r->conditions.reading = info->reading;
    r->conditions.ctx = info->ctx;
    r->conditions.windows = info->n_windows;
    return check_dump(info, a->dump, e);
}

/* Fails before the first measurement if a spec lacks its tables. */
static int try_specs(const struct run *r, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_specs; i++) {
        struct kv_codecs *cs;

        if (kv_codecs_new(&cs, &r->spec[i], &r->shape, 0, r->shape.n_layers,
                          r->calib, e))
            return -1;
        kv_codecs_free(cs);
    }
    return 0;
}

static int measure_dump(struct run *r, const struct kvcalib_args *a,
                        struct kv_err *e)
{
    struct kv_measure_plan plan = {.dump = r->dump,
                                   .spec = r->spec,
                                   .n_specs = r->n_specs,
                                   .seed = a->common.seed,
                                   .memory = a->common.memory,
                                   .n_queries = a->queries};

    if (kv_calibration_for_dump(&r->calib, &r->leak, a->calib, r->dump,
                                a->allow_leakage, e))
        return -1;
    plan.calib = r->calib;
    kv_common_queries(a->queries, KVCALIB_QUERIES, r->conditions.ctx);
    if (try_specs(r, e))
        return -1;
    return kv_allocate_attention(&plan, r->offer, &r->values, e);
}

static int open_text(struct run *r, const struct kvcalib_args *a,
                     struct kv_err *e)
{
    const struct kv_model_info *info;
    size_t ctx;

    if (kv_model_open(&r->model, a->model, e) ||
        kv_tokenizer_open(&r->tokenizer, a->model, e))
        return -1;
    info = kv_model_info(r->model);
    if (check_latent(&info->shape, a->model, e))
        return -1;
    ctx = kv_model_context(r->model, a->ctx);
    if (ctx < 2)
        return kv_fail(e, "-c %zu: expected at least 2 tokens", ctx);
    if (kv_windows_read(&r->text, r->tokenizer, a->text,
                        &(struct kv_windows_wanted){.ctx = ctx,
                                                    .n = a->windows,
                                                    .special = a->parse_special,
                                                    .bos = a->bos},
                        info->n_vocab, e))
        return -1;
    kv_windows_note_bos(&r->text);
    r->shape = info->shape;
    r->conditions.model = info->name;
    r->conditions.model_hash = info->hash;
    r->conditions.weights = info->weights;
    r->conditions.gemm = kv_model_gemm(r->model);
    r->conditions.text = r->text.text;
    r->conditions.text_hash = r->text.text_hash;
    r->conditions.reading = r->text.reading;
    r->conditions.ctx = ctx;
    r->conditions.windows = r->text.n;
    return 0;
}

static int text_calibration(struct run *r, const struct kvcalib_args *a,
                            struct kv_err *e)
{
    struct kv_sketch sketch = {0};
    int rc;

    if (!a->calib)
        return 0;
    kv_sketch_add_windows(&sketch, r->text.tokens, r->text.n * r->text.ctx,
                          r->text.ctx, r->text.reading.bos);
    kv_sketch_sort(&sketch);
    rc = kv_calibration_load(
        &r->calib, &r->leak, a->calib,
        &(struct kv_evaluated){r->conditions.model_hash, &r->shape, &sketch},
        a->allow_leakage, e);
    kv_sketch_clear(&sketch);
    return rc;
}

static int measure_text(struct run *r, const struct kvcalib_args *a,
                        struct kv_err *e)
{
    const struct kv_ppl_plan plan = {.model = r->model,
                                     .tokens = r->text.tokens,
                                     .n_windows = r->text.n,
                                     .n = r->text.ctx,
                                     .protocol = r->protocol,
                                     .memory = a->common.memory,
                                     .seed = a->common.seed,
                                     .kl = true};
    struct kv_ppl *ppl;
    int rc;

    if (text_calibration(r, a, e) || try_specs(r, e) ||
        kv_ppl_new(&ppl, &plan, e))
        return -1;
    rc = kv_allocate_kl(ppl, &r->shape, r->spec, r->n_specs, r->calib, r->offer,
                        &r->values, e);
    kv_ppl_free(ppl);
    return rc;
}

/* ---- output -------------------------------------------------------------- */

static const char *what_costs(const struct run *r)
{
    return r->model ? "divergence from the f32 cache, nats per token, with "
                      "this place alone stored"
                    : "squared error of the attention output over its square, "
                      "with this place alone stored";
}

/* Bits per value of a place, if all places have equally many values; NaN if a
 * sliding layer holds fewer. */
static double place_bits(const struct run *r, const struct kv_offer *o)
{
    for (size_t i = 0; i < r->shape.n_layers; i++)
        if (kv_shape_slides(&r->shape, i))
            return NAN;
    return o->bytes * 8 * (double)r->n_places / r->values;
}

/* Sums bytes and cost over the places.  spec: the spec at all places; n_specs:
 * the chosen specs. */
static struct kv_offer total(const struct run *r, size_t spec)
{
    struct kv_offer sum = {0};

    for (size_t i = 0; i < r->n_places; i++) {
        const size_t at = spec < r->n_specs ? spec : r->choice[i];

        sum.bytes += r->offer[i * r->n_specs + at].bytes;
        sum.cost += r->offer[i * r->n_specs + at].cost;
    }
    return sum;
}

/* The spec that costs least within the budget if all places have it; n_specs:
 * no spec fits. */
static size_t best_uniform(const struct run *r)
{
    size_t best = r->n_specs;

    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_offer sum = total(r, i);

        if (sum.bytes * 8 / r->values <= r->budget * (1 + 1e-12) &&
            (best == r->n_specs || sum.cost < total(r, best).cost))
            best = i;
    }
    return best;
}

/* Writes a name from a file; control characters, such as line feeds, become
 * "?". */
static void put_name(FILE *f, const char *name)
{
    for (; *name; name++)
        putc(iscntrl((unsigned char)*name) ? '?' : *name, f);
}

static void put_head(FILE *f, const struct run *r)
{
    const struct kv_conditions *c = &r->conditions;
    const struct kv_offer sum = total(r, r->n_specs);
    const size_t best = best_uniform(r);

    fprintf(f, "# Made by kvcalib %s --allocate %.9g, for -s mixed,file=...\n",
            kv_version(), r->budget);
    fputs("# model ", f);
    put_name(f, c->model);
    fprintf(f, " (%s), text ", c->model_hash);
    put_name(f, c->text);
    fprintf(f, " (%s), %zu windows of %zu%s\n", c->text_hash, c->windows,
            c->ctx, c->reading.bos == KV_BOS_WINDOWS ? ", a BOS at each" : "");
    fprintf(f, "# protocol %s, calibration %s, seed %llu\n", c->protocol,
            r->calib ? r->calib->hash : "none", (unsigned long long)c->seed);
    fprintf(f, "# cost: %s;\n#   costs of places are added\n", what_costs(r));
    fprintf(f, "# %.6g bits per value, cost %.6g\n", sum.bytes * 8 / r->values,
            sum.cost);
    if (best < r->n_specs)
        fprintf(f, "# at best with one spec: %s, %.6g bits, cost %.6g\n",
                r->asked[best].text, total(r, best).bytes * 8 / r->values,
                total(r, best).cost);
}

static int write_file(struct run *r, struct kv_err *e)
{
    put_head(r->out.file, r);
    for (size_t i = 0; i < r->n_places; i++) {
        const struct kv_offer *o = &r->offer[i * r->n_specs + r->choice[i]];

        const double bits = place_bits(r, o);

        fprintf(r->out.file, "%zu %c %s #", i / KV_SIDES,
                kv_side_name((enum kv_side)(i % KV_SIDES)),
                r->asked[r->choice[i]].text);
        if (!isnan(bits))
            fprintf(r->out.file, " %.6g bits,", bits);
        fprintf(r->out.file, " cost %.6g\n", o->cost);
    }
    return kv_out_commit(&r->out, e);
}

/* Prints a row for every spec at every place. */
static int print_table(struct run *r, struct kv_err *e)
{
    struct kv_results *t = r->table;

    for (size_t i = 0; i < r->n_places * r->n_specs; i++) {
        const size_t place = i / r->n_specs, spec = i % r->n_specs;

        kv_results_conditions(
            t, &r->conditions, &r->spec[spec],
            kv_spec_calibrated(&r->spec[spec]) ? r->calib : NULL, r->leak);
        kv_results_real(t, "bits", place_bits(r, &r->offer[i]));
        kv_results_text(t, "side", place % KV_SIDES == KV_K ? "K" : "V");
        kv_results_size(t, "layer", place / KV_SIDES);
        kv_results_real(t, "cost", r->offer[i].cost);
        kv_results_size(t, "chosen", r->choice[place] == spec);
        if (kv_results_row(t, e))
            return -1;
    }
    r->table = NULL;
    return kv_results_close(t, e);
}

/* ---- the job ------------------------------------------------------------- */

static int parse_budget(const char *text, double *bits, struct kv_err *e)
{
    const size_t n = strlen(text);

    *bits = strtod(text, NULL);
    if (!n || n > 20 || strspn(text, "0123456789.") < n ||
        strchr(text, '.') != strrchr(text, '.') || !(*bits > 0))
        return kv_fail(e, "--allocate %s: expected bits per value, as in 2.5",
                       text);
    return 0;
}

/* Checks that the options name a dump, or a model and its text. */
static int check_inputs(const struct kvcalib_args *a, struct kv_err *e)
{
    if (a->iters)
        return kv_fail(e, "--iters does not go with --allocate, which trains "
                          "nothing");
    if (!a->model != !a->text)
        return kv_fail(e, "--allocate on a text wants both -m DIR and -f FILE");
    if (!a->dump == !a->model)
        return kv_fail(e, "--allocate wants either a dump, or -m DIR and -f "
                          "FILE");
    if (a->dump && (a->ctx || a->windows))
        return kv_fail(e, "-c and -n go with -m: a dump is taken whole");
    if (a->dump && (a->parse_special || a->bos))
        return kv_fail(e, "%s goes with -m: a dump is tokens",
                       a->bos ? "--bos" : "--parse-special");
    if (!a->queries)
        return kv_fail(e, "--queries 0 leaves no error to allocate by");
    return 0;
}

static int run(struct run *r, const struct kvcalib_args *a, struct kv_err *e)
{
    struct kv_offer sum;

    if (parse_budget(a->allocate, &r->budget, e) || check_inputs(a, e) ||
        kv_protocol_parse(&r->protocol, "all", false, e) ||
        (a->model ? open_text(r, a, e) : open_dump(r, a, e)) ||
        list_specs(r, a, e) ||
        kv_out_open(&r->out, a->common.output, true, e) ||
        (a->table && kv_common_table(&r->table, &a->common, NULL, columns,
                                     r->spec, r->n_specs, e)))
        return -1;
    r->conditions.tool = "kvcalib";
    r->conditions.protocol = r->protocol.text;
    kv_common_conditions(&a->common, &r->conditions);
    if (a->model ? measure_text(r, a, e) : measure_dump(r, a, e))
        return -1;
    if (kv_allocate(r->offer, r->n_places, r->n_specs, r->values, r->budget,
                    r->choice, e))
        return kv_fail_in(e, "--allocate %s", a->allocate);
    if (write_file(r, e))
        return -1;
    sum = total(r, r->n_specs);
    kv_note("%s: %.6g bits per value, cost %.6g", a->common.output,
            sum.bytes * 8 / r->values, sum.cost);
    return a->table ? print_table(r, e) : 0;
}

int kvcalib_allocate(const struct kvcalib_args *a, struct kv_err *e)
{
    struct run r = {.leak = NAN};
    const int rc = run(&r, a, e);

    kv_out_discard(&r.out);
    kv_results_discard(r.table);
    free(r.choice);
    free(r.offer);
    free(r.spec);
    free(r.asked);
    kv_calib_free(r.calib);
    kv_windows_clear(&r.text);
    kv_tokenizer_free(r.tokenizer);
    kv_model_free(r.model);
    kv_dump_close(r.dump);
    return rc;
}
