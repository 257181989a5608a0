/* kvattn -m: times one decode step of a model's shape on a GPU, whole and in
 * parts, with each spec's cache; weights and caches are random. */
#include "eval/attn_bench.h"
#include "eval/attn_memory.h"
#include "eval/latency.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/file_hash.h"
#include "lib/mixed.h"
#include "lib/model/model_files.h"
#include "lib/seq/bits.h"
#include "lib/seq/seq.h"
#include "lib/seq/tile_cache.h"
#include "tools/columns_about.h"
#include "tools/kvattn.h"
#include "tools/random_calib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      KV_BITS_COLUMNS,
                                      "lat_us_p50",
                                      "lat_us_p10",
                                      "lat_us_p90",
                                      "norm_us",
                                      "qkv_us",
                                      "rope_us",
                                      "attention_us",
                                      "out_us",
                                      "mlp_us",
                                      "head_us",
                                      "tokens_s",
                                      "device_bytes",
                                      "speedup",
                                      "speedup_unfused",
                                      "path",
                                      NULL};

void kvattn_about_step(void)
{
    kv_columns_about("kvattn -m", columns);
}

struct step {
    struct kvattn_run *run;
    const struct kvattn_args *args;
    struct kv_config config;
    struct kv_step *step;
    struct kv_tiles_job *jobs; /* [batch] */
    const char *path;
    size_t ctx, batch;
    char model[256], model_hash[KV_HASH_CHARS];
    double base, unfused; /* medians; NaN before they are known */
};

/* Sets the model's name: "x" for x/, x.json and x/config.json. */
static void name_model(struct step *l, const char *path)
{
    char *copy = kv_strdup(path), *name = copy;
    size_t n = strlen(copy);

    if (n > 12 && !strcmp(copy + n - 12, "/config.json"))
        n -= 12;
    else if (n > 5 && !strcmp(copy + n - 5, ".json"))
        n -= 5;
    while (n > 1 && copy[n - 1] == '/')
        n--;
    copy[n] = '\0';
    if (strrchr(copy, '/') && strcmp(copy, "/"))
        name = strrchr(copy, '/') + 1;
    snprintf(l->model, sizeof(l->model), "%s", name);
    free(copy);
}

/* Hashes the file that gives the model's shape: config.json, or the GGUF
 * file. */
static int hash_model(struct step *l, struct kv_err *e)
{
    char *file = kv_is_dir(l->path) ? kv_model_file(l->path, "config.json")
                                    : kv_strdup(l->path);
    struct kv_hash *h = kv_hash_new();
    const int rc = kv_hash_add_file(h, file, UINT64_MAX, e);

    kv_hash_end(h, l->model_hash);
    free(file);
    return rc;
}

static int make_inputs(struct step *l, struct kv_err *e)
{
    struct kv_attn_inputs *in = &l->run->inputs;

    *in = (struct kv_attn_inputs){.shape = l->config.shape,
                                  .n_batch = 1,
                                  .n = l->ctx,
                                  .nq = 1,
                                  .has_k_pre = true};
    in->shape.n_layers = 1;
    for (size_t i = 0; i < l->run->n_specs; i++)
        if (kv_spec_needs_queries(&l->run->spec[i]))
            in->want_all_q = true;
    if (kv_attn_memory_check(in, "tensors", kv_attn_inputs_bytes(in),
                             l->args->common.memory, e))
        return -1;
    kv_attn_inputs_random(in, l->args->common.seed);
    return 0;
}

/* The table for all models, whose specs may differ in their parameters. */
static int open_table(struct step *l, size_t n_all, struct kv_err *e)
{
    const struct kvattn_args *a = l->args;
    struct kvattn_run *r = l->run;
    struct kv_spec *all = NULL;
    size_t n = 0;
    int rc = 0;

    if (a->models.n < 2)
        return kv_common_table(&r->table, &a->common, a->common.output, columns,
                               r->spec, n_all, e);
    for (size_t i = 0; i < a->models.n && !rc; i++) {
        struct kv_config config;

        rc = kv_model_config(&config, a->models.item[i], e) ||
             kvattn_add_specs(a, &config.shape, &all, &n, e);
    }
    rc = rc || kv_common_table(&r->table, &a->common, a->common.output, columns,
                               all, n, e);
    free(all);
    return rc ? -1 : 0;
}

static int prepare(struct step *l, struct kv_err *e)
{
    const struct kvattn_args *a = l->args;
    struct kvattn_run *r = l->run;
    struct kv_shape shape;
    size_t n_all;

    if (kv_model_config(&l->config, l->path, e) || hash_model(l, e))
        return -1;
    name_model(l, l->path);
    shape = l->config.shape;
    shape.n_layers = 1;

    const struct kv_sweep sweep = {
        .base = "f16", .specs = &a->specs, .shape = &shape, .shard = {1, 1}};

    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, &n_all, e) ||
        kv_spec_alone(r->spec, r->n_specs, "a decoding step", e))
        return -1;
    for (size_t i = 0; i < r->n_specs; i++)
        if (r->spec[i].policy.policy)
            return kv_fail(e,
                           "%s: a decoding step keeps every token: expected "
                           "a spec without a policy",
                           r->spec[i].given);
    kv_common_hadamard(r->spec, r->n_specs, sweep.shape);
    if (a->calib ? kv_calib_load(&r->calib, a->calib, e)
                 : kv_random_calibration(&r->calib, r->spec, r->n_specs, &shape,
                                         a->common.seed, e))
        return -1;
    if (make_inputs(l, e))
        return -1;
    r->conditions.tool = "kvattn";
    r->conditions.model = l->model;
    r->conditions.model_hash = l->model_hash;
    r->conditions.ctx = l->ctx;
    r->conditions.windows = l->batch;
    r->conditions.protocol = "decode-step";
    r->conditions.gemm = "f16";
    kv_common_conditions(&a->common, &r->conditions);
    l->jobs = kv_alloc(l->batch, sizeof(*l->jobs));
    return kv_step_new(&l->step, &l->config, &a->common.gpu, l->batch, l->ctx,
                       a->common.seed, e) ||
           (r->table ? 0 : open_table(l, n_all, e));
}

/* A row's columns other than times. */
struct row {
    const struct kv_spec *spec;
    const char *path;
    const struct kv_calib *calib; /* NULL: not asked for */
    struct kv_bits bits;
    size_t device_bytes;
};

static int put_row(struct step *l, const struct row *row,
                   const struct kv_timing *whole, const double *part,
                   struct kv_err *e)
{
    struct kv_results *t = l->run->table;

    kv_results_conditions(t, &l->run->conditions, row->spec, row->calib, NAN);
    kv_results_bits(t, &row->bits);
    kv_results_real(t, "lat_us_p50", whole->p50 * 1e6);
    kv_results_real(t, "lat_us_p10", whole->p10 * 1e6);
    kv_results_real(t, "lat_us_p90", whole->p90 * 1e6);
    for (int i = 0; i < KV_STEP_PARTS; i++) {
        char name[32];

        snprintf(name, sizeof(name), "%s_us", kv_step_names[i]);
        kv_results_real(t, name, part[i] * 1e6);
    }
    kv_results_real(t, "tokens_s", (double)l->batch / whole->p50);
    kv_results_size(t, "device_bytes", row->device_bytes);
    kv_results_real(t, "speedup", l->base / whole->p50);
    kv_results_real(t, "speedup_unfused", l->unfused / whole->p50);
    kv_results_text(t, "path", row->path);
    return kv_results_row(t, e);
}

/* Times the step with unfused attention.  If memory does not suffice for it,
 * the other rows still run. */
static int time_unfused(struct step *l, struct kv_err *e)
{
    const struct kvattn_args *a = l->args;
    struct row row = {.spec = &l->run->spec[0], .path = "unfused"}; /* f16 */
    double part[KV_STEP_PARTS];
    struct kv_timing whole;
    struct kv_step_caches *caches;
    int rc;

    if (kv_step_caches_unfused(&caches, &l->config.shape, l->batch, l->ctx,
                               a->common.seed, e)) {
        kv_warn("unfused attention: %s: left out", e->msg);
        l->run->left_out++;
        return 0;
    }
    row.device_bytes = kv_step_caches_bytes(caches);
    row.bits.bytes = row.bits.quantized_bytes = (double)row.device_bytes;
    row.bits.values = row.bits.quantized_values = row.bits.bytes / 2;
    row.bits.nominal = 16;
    rc = kv_step_time(l->step, caches, a->warmup, a->reps, &whole, part, e);
    kv_step_caches_free(caches);
    if (rc)
        return -1;
    l->unfused = whole.p50;
    return put_row(l, &row, &whole, part, e);
}

/* Sends the cache to the device; returns 1 if the device does not support this
 * spec. */
static int open_caches(struct step *l, const struct kv_cache *cache,
                       struct kv_step_caches **caches, struct kv_err *e)
{
    const struct kvattn_args *a = l->args;
    struct kv_tile_cache *t;
    int rc;

    if (!kv_tile_cache_stored(cache)) {
        kv_fail(e, "no CUDA kernel for its codes");
        return 1;
    }
    t = kv_tile_cache_new(cache);
    kv_tile_cache_update(t);
    for (size_t i = 0; i < l->batch; i++)
        l->jobs[i] = kv_tile_cache_job(t, 1);
    rc = kv_step_caches_fused(caches, &a->common.gpu, l->jobs, l->batch,
                              l->config.shape.n_layers, KV_PATH_INT8, e);
    kv_tile_cache_free(t);
    return rc ? 1 : 0;
}

static int time_seq(struct step *l, const struct kv_spec *spec,
                    const struct kv_seq *seq, struct kv_err *e)
{
    struct row row = {.spec = spec};
    double part[KV_STEP_PARTS];
    struct kv_timing whole;
    struct kv_step_caches *caches;
    int rc = open_caches(l, kv_seq_cache(seq, 0), &caches, e);

    if (rc)
        return rc;
    row.path = kv_step_caches_name(caches);
    row.calib = kv_spec_calibrated(spec) ? l->run->calib : NULL;
    row.device_bytes = kv_step_caches_bytes(caches);
    for (int side = 0; side < KV_SIDES; side++)
        kv_seq_bits(seq, 0, (enum kv_side)side, &row.bits);
    kv_bits_of_spec(&row.bits, spec, &l->run->inputs.shape, l->run->calib, 0,
                    KV_ALL);
    kv_common_note_stored(spec, &row.bits);
    rc = kv_step_time(l->step, caches, l->args->warmup, l->args->reps, &whole,
                      part, e);
    kv_step_caches_free(caches);
    if (rc)
        return -1;
    if (isnan(l->base))
        l->base = whole.p50;
    return put_row(l, &row, &whole, part, e);
}

static int time_spec(struct step *l, const struct kv_spec *spec,
                     struct kv_err *e)
{
    const struct kv_attn_inputs *in = &l->run->inputs;
    const struct kv_tokens all = kv_attn_inputs_tokens(in, 0, 0, in->n);
    struct kv_codecs *cs;
    struct kv_seq *seq;
    int rc;

    if (kv_codecs_new(&cs, spec, &in->shape, 0, 1, l->run->calib, e))
        return -1;
    seq = kv_seq_new(
        &(struct kv_seq_plan){.n_layers = 1, .seed = l->args->common.seed});
    rc = kv_seq_open(seq, kv_codecs_at(cs, 0), e) ||
                 kv_seq_append(seq, 0, &all, e)
             ? -1
             : time_seq(l, spec, seq, e);
    kv_seq_free(seq);
    kv_codecs_free(cs);
    if (rc <= 0)
        return rc;
    kv_warn("%s: %s: left out", spec->text, e->msg);
    l->run->left_out++;
    return 0;
}

static int run_setting(struct step *l, struct kv_err *e)
{
    struct kvattn_run *r = l->run;
    struct kv_progress progress;
    int rc = prepare(l, e);

    if (!rc) {
        kv_progress_init(&progress, "decoding", r->n_specs + 1);
        rc = time_unfused(l, e);
        for (size_t i = 0; i < r->n_specs && !rc; i++) {
            kv_progress_step(&progress, 1);
            rc = kv_interrupted(e) || time_spec(l, &r->spec[i], e) ? -1 : 0;
        }
        kv_progress_clear(&progress);
    }
    kv_step_free(l->step);
    free(l->jobs);
    return rc;
}

static bool has_zero(const struct kv_sizes *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (!s->item[i])
            return true;
    return false;
}

int kvattn_step(struct kvattn_run *r, const struct kvattn_args *a,
                struct kv_err *e)
{
    const size_t batches = a->batches.n ? a->batches.n : 1;
    const size_t n = a->models.n * a->ctxs.n * batches;
    struct kv_results *table;

    if (!a->common.on_gpu)
        return kv_fail(e, "-m: a step is measured on a GPU: --device cuda");
    if (!n || has_zero(&a->ctxs) || has_zero(&a->batches))
        return kv_fail(e, "-m wants -c and --batch above 0");
    for (size_t i = 0; i < n; i++) {
        struct step l = {.run = r, .args = a, .base = NAN, .unfused = NAN};

        if (i)
            kvattn_next(r);
        l.path = a->models.item[i / batches / a->ctxs.n];
        l.ctx = a->ctxs.item[i / batches % a->ctxs.n];
        l.batch = a->batches.n ? a->batches.item[i % batches] : 1;
        if (run_setting(&l, e))
            return -1;
    }
    table = r->table;
    r->table = NULL;
    return kv_results_close(table, e);
}
