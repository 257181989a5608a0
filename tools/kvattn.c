/* kvattn: attention over caches, its error and its time. */
#include "eval/attn_bench.h"
#include "eval/bits.h"
#include "eval/calib_check.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/opt.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "tools/common.h"
#include "tools/random_calib.h"
#include "tools/shape_option.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      KV_BITS_COLUMNS,
                                      "layer",
                                      "attn_rel_err",
                                      "lat_us_p50",
                                      "lat_us_p10",
                                      "lat_us_p90",
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
                                      NULL};

static const char *const path_names[] = {[KV_ATTN_INT8] = "int8",
                                         [KV_ATTN_EXACT] = "exact",
                                         [KV_ATTN_GENERIC] = "generic",
                                         [KV_ATTN_UNFUSED] = "unfused",
                                         [KV_ATTN_DEQUANT] = "dequant"};

enum {
    PATHS = sizeof(path_names) / sizeof(*path_names),
    MAX_REPS = 100000000 /* whose times are kept */
};

struct args {
    struct kv_common common;
    struct kv_strings specs;
    const char *dump, *shape, *calib, *path;
    size_t layer, windows, queries, reps, warmup;
    bool allow_leakage, warm;
};

struct run {
    struct kv_dump *dump; /* NULL with --shape */
    struct kv_attn_inputs inputs;
    struct kv_calib *calib;
    bool random_calib; /* tables that mean nothing: no error to report */
    double leak;
    struct kv_spec *spec;
    size_t n_specs;
    char model[64], protocol[32];
    struct kv_conditions conditions;
    struct kv_results *table;
    struct kv_bench *bench;
    struct kv_attn_bench how;
    enum kv_attn_path path[PATHS]; /* in the order of --path */
    size_t n_paths;
    struct kv_attn_step *base;
    double bandwidth;
    struct kv_progress progress; /* runs */
    size_t left_out; /* specs that the GPU has no kernel or no room for */
};

#define NOT_GIVEN SIZE_MAX

/* Fills in the fields of the shape that --shape omits from the calibration. */
static int calibration_of_shape(struct run *r, const struct args *a,
                                struct kv_err *e)
{
    struct kv_shape *s = &r->inputs.shape;

    r->leak = NAN;
    if (!a->calib)
        return 0;
    if (kv_calib_load(&r->calib, a->calib, e))
        return -1;
    if (s->n_heads != r->calib->shape.n_heads ||
        s->n_kv_heads != r->calib->shape.n_kv_heads ||
        s->head_dim != r->calib->shape.head_dim)
        return kv_fail(e,
                       "%s is for %zu query heads, %zu KV heads and dimension "
                       "%zu, not for --shape %s",
                       a->calib, r->calib->shape.n_heads,
                       r->calib->shape.n_kv_heads, r->calib->shape.head_dim,
                       a->shape);
    *s = r->calib->shape;
    return 0;
}

static int prepare_shape(struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kv_shape *s = &r->inputs.shape;
    size_t batch = 1;

    if (kv_shape_option(a->shape, &r->inputs, &batch, e) ||
        calibration_of_shape(r, a, e))
        return -1;
    /* On a GPU, copies of one sequence, so that the host need not hold all. */
    r->inputs.n_batch = a->common.on_gpu ? 1 : batch;
    r->how.copies = batch / r->inputs.n_batch;
    snprintf(r->model, sizeof(r->model), "random-hq%zu-hkv%zu-d%zu", s->n_heads,
             s->n_kv_heads, s->head_dim);
    r->conditions.model = r->model;
    return 0;
}

static int prepare_dump(struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kv_dump_info *info;

    if (kv_dump_open(&r->dump, a->dump, e))
        return -1;
    info = kv_dump_info(r->dump);
    r->inputs.shape = info->shape;
    r->inputs.n_batch = a->windows == NOT_GIVEN ? 0 : a->windows;
    r->how.copies = 1;
    r->inputs.nq = a->queries;
    r->inputs.layer = a->layer == NOT_GIVEN ? info->first_layer : a->layer;
    r->conditions.model = info->model;
    r->conditions.model_hash = info->model_hash;
    r->conditions.weights = info->weights;
    r->conditions.text = info->text;
    r->conditions.text_hash = info->text_hash;
    r->conditions.reading = info->reading;
    return kv_calibration_for_dump(&r->calib, &r->leak, a->calib, r->dump,
                                   a->allow_leakage, e);
}

static bool on_gpu_alone(enum kv_attn_path path)
{
    return path == KV_ATTN_UNFUSED || path == KV_ATTN_DEQUANT;
}

/* One word of --path, n characters. */
static int parse_path(struct run *r, const struct args *a, const char *word,
                      size_t n, struct kv_err *e)
{
    for (size_t i = 0; i < PATHS; i++) {
        if (strlen(path_names[i]) != n || memcmp(word, path_names[i], n) != 0)
            continue;
        if (on_gpu_alone((enum kv_attn_path)i) && !a->common.on_gpu)
            return kv_fail(e, "--path %s is for a GPU: --device cuda",
                           path_names[i]);
        for (size_t k = 0; k < r->n_paths; k++)
            if (r->path[k] == (enum kv_attn_path)i)
                return kv_fail(e, "--path %s: %s is there twice", a->path,
                               path_names[i]);
        r->path[r->n_paths++] = (enum kv_attn_path)i;
        return 0;
    }
    return kv_fail(e,
                   "--path %s: expected exact, int8, generic, unfused or "
                   "dequant, or several of them with commas between",
                   a->path);
}

static int parse_paths(struct run *r, const struct args *a, struct kv_err *e)
{
    for (const char *at = a->path;; at++) {
        const size_t n = strcspn(at, ",");

        if (parse_path(r, a, at, n, e))
            return -1;
        at += n;
        if (!*at)
            return 0;
    }
}

static int prepare_inputs(struct run *r, const struct args *a, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_specs; i++)
        if (kv_spec_needs_queries(&r->spec[i]))
            r->inputs.want_all_q = true;
    return r->dump
               ? kv_attn_inputs_read(&r->inputs, r->dump, a->common.memory, e)
               : kv_attn_inputs_random(&r->inputs, a->common.seed,
                                       a->common.memory, e);
}

/* Checks that all specs can be measured before the first row: rows on stdout
 * cannot be taken back. */
static int check_specs(const struct run *r, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_specs; i++) {
        struct kv_codecs *cs;

        if (kv_codecs_new(&cs, &r->spec[i], &r->inputs.shape, r->inputs.layer,
                          1, r->calib, e))
            return -1;
        kv_codecs_free(cs);
    }
    return 0;
}

static int prepare_specs(struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kv_sweep sweep = {.base = "f16",
                                   .specs = &a->specs,
                                   .shape = &r->inputs.shape,
                                   .shard = {1, 1}};

    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, e) ||
        kv_spec_alone(r->spec, r->n_specs, "attention on codes", e) ||
        prepare_inputs(r, a, e))
        return -1;
    kv_common_hadamard(r->spec, r->n_specs, sweep.shape);
    r->random_calib = a->shape && !a->calib;
    if (r->random_calib &&
        kv_random_calibration(&r->calib, r->spec, r->n_specs, &r->inputs.shape,
                              a->common.seed, e))
        return -1;
    return kv_calib_adopt(r->calib, r->spec, r->n_specs, e) ||
           check_specs(r, e);
}

static int measure_cpu(struct run *r)
{
    r->bench = kv_bench_new(r->conditions.threads);
    r->bandwidth = kv_bench_bandwidth(r->bench);
    kv_detail("reading memory: %.1f GB/s with %zu threads", r->bandwidth * 1e-9,
              r->conditions.threads);
    return 0;
}

static int measure_gpu(struct run *r, const struct kv_device *gpu,
                       struct kv_err *e)
{
    double copy;

    if (kv_device_bandwidth(gpu, &r->bandwidth, &copy, e))
        return -1;
    kv_note("%s: reads %.0f GB/s, copies %.0f GB/s (read and written)",
            r->conditions.device, r->bandwidth * 1e-9, copy * 1e-9);
    return 0;
}

static int prepare(struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kv_attn_inputs *in = &r->inputs;

    if (a->warm && a->common.on_gpu)
        return kv_fail(e, "--warm is for the CPU: on a GPU every run is cold");
    if (parse_paths(r, a, e) ||
        (a->shape ? prepare_shape(r, a, e) : prepare_dump(r, a, e)) ||
        prepare_specs(r, a, e))
        return -1;
    snprintf(r->protocol, sizeof(r->protocol), "decode:%zu%s", in->nq,
             a->warm ? ":warm" : "");
    r->conditions.tool = "kvattn";
    r->conditions.ctx = in->n;
    r->conditions.windows = in->n_batch * r->how.copies;
    r->conditions.protocol = r->protocol;
    kv_common_conditions(&a->common, &r->conditions);
    if (a->common.on_gpu ? measure_gpu(r, &a->common.gpu, e) : measure_cpu(r))
        return -1;
    return kv_results_open(&r->table, a->common.output, a->common.format,
                           columns, e);
}

static int put_row(struct run *r, const struct kv_spec *spec, const char *path,
                   struct kv_attn_result *m,
                   const struct kv_append_times *append, struct kv_err *e)
{
    const struct kv_timing *t = &m->timing;
    const bool calibrated = kv_spec_calibrated(spec);
    struct kv_results *table = r->table;

    kv_results_conditions(table, &r->conditions, spec->text,
                          calibrated ? r->calib : NULL, r->leak);
    kv_bits_of_spec(&m->bits, spec, &r->inputs.shape, r->calib,
                    (int)r->inputs.layer, KV_ALL);
    kv_results_bits(table, &m->bits);
    if (r->dump)
        kv_results_size(table, "layer", r->inputs.layer);
    if (!calibrated || !r->random_calib)
        kv_results_real(table, "attn_rel_err", m->rel_err);
    kv_results_real(table, "lat_us_p50", t->p50 * 1e6);
    kv_results_real(table, "lat_us_p10", t->p10 * 1e6);
    kv_results_real(table, "lat_us_p90", t->p90 * 1e6);
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
    return kv_results_row(table, e);
}

/* Words, not data: operations that the scheme's own attention counted. */
static void say_ops(const struct kv_spec *spec, const struct kv_attend_ops *o)
{
    char formula[96] = "";

    if (o->formula) /* the paper has none for axes=artifact */
        snprintf(formula, sizeof(formula),
                 " (formula of the paper: %" PRIu64
                 "; with every partition: %" PRIu64 ")",
                 o->formula, o->formula_parts);
    kv_note("%s: %" PRIu64 " operations in integer products, %" PRIu64
            " to correct them%s, %" PRIu64 " more beside",
            spec->text, o->products, o->correction, formula, o->other);
}

/* The paths that ran on a spec so far: a path that the spec lacks falls back to
 * another, which gets no second row. */
struct ran {
    const char *name[PATHS + 1];
    size_t n;
};

static bool is_new(struct ran *ran, const char *name)
{
    for (size_t i = 0; i < ran->n; i++)
        if (!strcmp(ran->name[i], name))
            return false;
    ran->name[ran->n++] = name;
    return true;
}

static void leave_out(struct run *r, const struct kv_err *e)
{
    kv_warn("%s: left out", e->msg);
    r->left_out++;
}

/* Times the step and puts its row; 1 where a GPU failed.  Without times of
 * encoding the row of attention stands. */
static int run_step(struct run *r, const struct kv_spec *spec,
                    struct kv_attn_step *step, struct kv_err *e)
{
    struct kv_append_times append;
    struct kv_attn_result m;
    struct kv_err why = {""};
    int rc = kv_attn_step_run(step, r->base, &m, e);
    bool blank;

    if (kv_interrupted(e)) /* on a GPU nothing within asks */
        return -1;
    if (rc)
        return rc;
    if (kv_spec_at(spec, r->inputs.layer, KV_K)->scheme->attend)
        say_ops(spec, &m.ops);
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

static int run_path(struct run *r, const struct kv_spec *spec,
                    enum kv_attn_path path, struct ran *ran, struct kv_err *e)
{
    struct kv_attn_step *step;
    int rc = 0;

    if (kv_interrupted(e))
        return -1;
    rc = kv_attn_step_new(&step, &r->how, &r->inputs, spec, path, e);
    if (rc > 0 && r->base) { /* the others may run */
        leave_out(r, e);
        return 0;
    }
    if (rc)
        return -1;
    if (!r->base)
        r->base = step;
    if (is_new(ran, kv_attn_step_path(step))) {
        rc = run_step(r, spec, step, e);
        if (rc > 0 && step != r->base) {
            leave_out(r, e);
            rc = 0;
        }
    }
    if (step != r->base)
        kv_attn_step_free(step);
    return rc ? -1 : 0;
}

static bool is_f16(const struct run *r, const struct kv_spec *spec)
{
    for (int side = 0; side < KV_SIDES; side++)
        if (strcmp(kv_spec_at(spec, r->inputs.layer, (enum kv_side)side)
                       ->scheme->name,
                   "f16") != 0)
            return false;
    return true;
}

/* Whether this path says anything of this spec. */
static bool is_of(enum kv_attn_path path, bool f16)
{
    return path == KV_ATTN_UNFUSED   ? f16
           : path == KV_ATTN_DEQUANT ? !f16
                                     : true;
}

/* The base line is fused: on a GPU never the generic kernel if the family has
 * its own. */
static enum kv_attn_path base_path(const struct run *r)
{
    return r->how.gpu ? KV_ATTN_EXACT : r->path[0];
}

/* At most. */
static size_t runs_of_spec(const struct run *r)
{
    return r->n_paths * (r->how.warmup + r->how.reps);
}

static int run_spec(struct run *r, const struct kv_spec *spec, struct kv_err *e)
{
    const size_t end = r->progress.done + runs_of_spec(r);
    const bool f16 = is_f16(r, spec), base = !r->base;
    struct ran ran = {.n = 0};
    int rc = base ? run_path(r, spec, base_path(r), &ran, e) : 0;

    for (size_t i = 0; i < r->n_paths && !rc; i++)
        if (is_of(r->path[i], f16) && !(base && r->path[i] == base_path(r)))
            rc = run_path(r, spec, r->path[i], &ran, e);
    /* paths that it lacks, and runs on a GPU */
    kv_progress_step(&r->progress, end - r->progress.done);
    return rc;
}

static int run_all(struct run *r, const struct args *a, struct kv_err *e)
{
    int rc = 0;

    r->how.calib = r->calib;
    r->how.gpu = a->common.on_gpu ? &a->common.gpu : NULL;
    r->how.warm = a->warm;
    r->how.bench = r->bench;
    r->how.threads = r->conditions.threads;
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

    struct kv_results *table = r->table;

    r->table = NULL;
    return kv_results_close(table, e);
}

static void clear(struct run *r)
{
    kv_results_discard(r->table);
    kv_attn_step_free(r->base);
    kv_bench_free(r->bench);
    free(r->spec);
    kv_calib_free(r->calib);
    kv_attn_inputs_clear(&r->inputs);
    kv_dump_close(r->dump);
}

/* Refuses options about a dump together with --shape. */
static void refuse_of_dump(const struct args *a)
{
    const char *name = a->layer != NOT_GIVEN     ? "--layer"
                       : a->windows != NOT_GIVEN ? "--windows"
                       : a->queries != NOT_GIVEN ? "--queries"
                       : a->allow_leakage        ? "--allow-leakage"
                                                 : NULL;

    if (name)
        kv_die("%s is of a --dump; --shape B,HQ,HKV,D,N[,NQ] says all sizes",
               name);
}

static void parse(int argc, char **argv, struct args *a)
{
    const struct kv_opt opts[] = {
        KV_SPECS(&a->specs, "scheme and parameters; repeats, and takes\n"
                            "sweeps in quotes: 'kivi:b{2,4}g{32,64}'"),
        KV_IN('C', "calib", &a->calib, "FILE", "calibration from kvcalib"),
        KV_IN(0, "dump", &a->dump, "FILE", "keys, values, queries from kvdump"),
        KV_STR(0, "shape", &a->shape, "B,HQ,HKV,D,N[,NQ]",
               "random tensors instead: batch, query heads,\n"
               "KV heads, head dimension, tokens, queries"),
        KV_SIZE(0, "layer", &a->layer, "L", "layer of the dump (its first)"),
        KV_SIZE('n', "windows", &a->windows, "N",
                "windows of the dump, the batch (0: all)"),
        KV_SIZE(0, "queries", &a->queries, "NQ",
                "newest queries of each window, a step (1)"),
        KV_STR(0, "path", &a->path, "PATH[,PATH...]",
               "which attention, a row for each (exact):\n"
               "int8 rounds queries and weights, exact does not,\n"
               "generic decodes the whole cache; a scheme that\n"
               "lacks one has the next; also, on a GPU, unfused\n"
               "(f16) and dequant (all others)"),
        KV_FLAG(0, "warm", &a->warm,
                "on the CPU: each timed run follows the same run,\n"
                "and finds in the caches what fits there"),
        KV_SIZE(0, "reps", &a->reps, "N",
                "timed runs (20); with fewer, p10 and p90 are\n"
                "little more than the fastest and the slowest"),
        KV_SIZE(0, "warmup", &a->warmup, "N", "runs before them (3)"),
        KV_FLAG(0, "allow-leakage", &a->allow_leakage,
                "take a calibration on the evaluated text"),
        KV_COMMON_OPTS(a->common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-s SPEC... [-C calib.h5] (--dump dump.h5 | --shape ...)",
        .brief = "One decoding step of attention over each scheme's cache: "
                 "its error\nagainst exact attention, and its time.",
        .more =
            "Each sequence of the batch has a cache with the spec's own s and\n"
            "r; a step attends with the newest NQ queries of all of them.\n"
            "Before each run the processor's caches are filled with other\n"
            "data, but with --warm, which the protocol names.\n"
            "bytes_moved: caches, queries, outputs, each once;\n"
            "device_bytes: caches as the step reads them; bw_share: of what\n"
            "the same threads read from memory; speedup: over the f16 row,\n"
            "which is timed by turns with each.\n"
            "path, what ran: exact and int8 on tiles of codes, threads over\n"
            "sequences, KV heads and chunks; codes, the scheme's own, over\n"
            "sequences or, where they are few, KV heads; generic, decode()\n"
            "and then plain C, a thread a sequence.\n"
            "--device cuda: caches are made on the CPU and attended to on the\n"
            "GPU, cold; generic is the kernel for any sizes, unfused two\n"
            "products of cuBLAS and a softmax, dequant codes made halves\n"
            "first, then attended to; speedup is over fused f16; a batch of\n"
            "--shape is one sequence in so many copies; bw_share is of what\n"
            "the GPU reads; a spec without a kernel there is named and left\n"
            "out, and the exit status is 1.\n"
            "encode_us_p50: encoding one block of keys and of values (a "
            "token,\n"
            "where blocks are tokens) of each sequence; inline_us_p50: that,\n"
            "then attention;\n"
            "async_us_p50: both at a time, encoding in a stream of its own.\n"
            "quantize_us_p50: encoding the newest 128 coded tokens of each\n"
            "sequence and putting them into attention's tiles, by integers in\n"
            "groups, codebook indices, hack (attention over them is checked,\n"
            "not timed);\n"
            "decode_us_p50: decoding these to f32.\n"
            "Blank where the GPU does not encode (kvquant --help).\n"
            "--shape without -C trains calibrated schemes on random tensors:\n"
            "their latency counts, their error is left blank.",
        .list = kv_common_list};
    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_specs(argv + first, argc - first);
    kv_common_no_operands(argv + first, argc - first);
    if (!a->dump == !a->shape)
        kv_die("give either --dump or --shape (try --help)");
    if (!a->specs.n)
        kv_die("nothing to run: give -s SPEC (try --list)");
    if (a->shape)
        refuse_of_dump(a);
    if (a->queries == NOT_GIVEN)
        a->queries = 1;
    if (!a->reps || !a->queries)
        kv_die("--reps and --queries must be positive");
    if (a->reps > MAX_REPS)
        kv_die("--reps %zu: at most %d", a->reps, MAX_REPS);
    kv_common_specs(&a->specs);
    kv_common_start(&a->common);
}

int main(int argc, char **argv)
{
    struct args a = {.common = {KV_COMMON_DEFAULTS, .can_gpu = true},
                     .layer = NOT_GIVEN,
                     .windows = NOT_GIVEN,
                     .path = "exact",
                     .queries = NOT_GIVEN,
                     .reps = 20,
                     .warmup = 3};
    struct run r = {0};
    struct kv_err e = {""};
    int rc;

    parse(argc, argv, &a);
    rc = prepare(&r, &a, &e) || run_all(&r, &a, &e);
    clear(&r);
    kv_strings_clear(&a.specs);
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return r.left_out ? KV_EXIT_NO : KV_EXIT_OK;
}
