/* kvattn: attention over caches, its error and its time. */
#include "tools/kvattn.h"
#include "eval/attn_kept.h"
#include "eval/attn_memory.h"
#include "eval/calib_check.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/opt.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/model/model_files.h"
#include "lib/policy.h"
#include "tools/random_calib.h"
#include "tools/shape_option.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const path_names[KV_ATTN_PATHS] = {
    [KV_ATTN_AUTO] = "auto",       [KV_ATTN_INT8] = "int8",
    [KV_ATTN_EXACT] = "exact",     [KV_ATTN_GENERIC] = "generic",
    [KV_ATTN_UNFUSED] = "unfused", [KV_ATTN_DEQUANT] = "dequant"};

enum { MAX_REPS = 100000000 /* the times of all repetitions are stored */ };

#define NOT_GIVEN SIZE_MAX

/* Takes the fields of the shape that --shape does not give from the
 * calibration. */
static int calibration_of_shape(struct kvattn_run *r,
                                const struct kvattn_args *a, struct kv_err *e)
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
                       r->shape);
    *s = r->calib->shape;
    return 0;
}

/* Divides the number of tokens, from --shape, by --repeat: the other tokens are
 * copies on the GPU. */
static int repeat_tokens(struct kvattn_run *r, struct kv_err *e)
{
    const size_t repeats = r->how.repeats;
    struct kv_attn_inputs *in = &r->inputs;

    if (repeats == 1)
        return 0;
    if (in->nq > 1)
        return kv_fail(e, "--repeat goes with one query, not with --shape %s",
                       r->shape);
    if (in->n % repeats || in->n / repeats % KV_GPU_TILE)
        return kv_fail(e,
                       "--repeat %zu of %zu tokens: expected %zu times a "
                       "multiple of %d tokens",
                       repeats, in->n, repeats, KV_GPU_TILE);
    in->n /= repeats;
    return 0;
}

static int prepare_shape(struct kvattn_run *r, const struct kvattn_args *a,
                         struct kv_err *e)
{
    const struct kv_shape *s = &r->inputs.shape;
    size_t batch = 1;

    if (kv_shape_option(r->shape, &r->inputs, &batch, e) ||
        calibration_of_shape(r, a, e))
        return -1;
    /* On a GPU the batch consists of copies of one sequence, so that the host
     * holds only one. */
    r->inputs.n_batch = a->common.on_gpu ? 1 : batch;
    r->inputs.has_k_pre = true;
    r->how.copies = batch / r->inputs.n_batch;
    if (repeat_tokens(r, e))
        return -1;
    snprintf(r->model, sizeof(r->model), "random-hq%zu-hkv%zu-d%zu", s->n_heads,
             s->n_kv_heads, s->head_dim);
    r->conditions.model = r->model;
    return 0;
}

static int prepare_dump(struct kvattn_run *r, const struct kvattn_args *a,
                        struct kv_err *e)
{
    const struct kv_dump_info *info;

    if (kv_dump_open(&r->dump, a->dump, e))
        return -1;
    info = kv_dump_info(r->dump);
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
    return kv_attn_inputs_of_dump(&r->inputs, r->dump, e) ||
           kv_calibration_for_dump(&r->calib, &r->leak, a->calib, r->dump,
                                   a->allow_leakage, e);
}

static bool on_gpu_alone(enum kv_attn_path path)
{
    return path == KV_ATTN_UNFUSED || path == KV_ATTN_DEQUANT;
}

/* Adds the path of one word of --path.  On a GPU auto means exact. */
static int parse_path(struct kvattn_run *r, const struct kvattn_args *a,
                      const char *word, struct kv_err *e)
{
    for (size_t i = 0; i < KV_ATTN_PATHS; i++) {
        const enum kv_attn_path path = i == KV_ATTN_AUTO && a->common.on_gpu
                                           ? KV_ATTN_EXACT
                                           : (enum kv_attn_path)i;

        if (strcmp(word, path_names[i]) != 0)
            continue;
        if (on_gpu_alone((enum kv_attn_path)i) && !a->common.on_gpu)
            return kv_fail(e, "--path %s is for a GPU: --device cuda",
                           path_names[i]);
        for (size_t k = 0; k < r->n_paths; k++)
            if (r->path[k] == path)
                return kv_fail(e,
                               "--path %s: %s is there twice (auto is exact on "
                               "a GPU)",
                               word, path_names[path]);
        r->path[r->n_paths++] = path;
        return 0;
    }
    return kv_fail(e,
                   "--path %s: expected auto, exact, int8, generic, unfused or "
                   "dequant, or several of them with commas between",
                   word);
}

static int parse_paths(struct kvattn_run *r, const struct kvattn_args *a,
                       struct kv_err *e)
{
    static const char *const none[] = {"auto"};
    const char *const *word = a->paths.n ? a->paths.item : none;
    const size_t n = a->paths.n ? a->paths.n : 1;

    for (size_t i = 0; i < n; i++)
        if (parse_path(r, a, word[i], e))
            return -1;
    return 0;
}

static void want_queries(struct kvattn_run *r)
{
    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_policy *p = r->spec[i].policy.policy;

        if (kv_spec_needs_queries(&r->spec[i]) || (p && p->mass))
            r->inputs.want_all_q = true;
    }
}

/* Checks that all specs can be measured before the first row: rows on stdout
 * cannot be taken back.  Each spec is checked together with the base line, the
 * first spec. */
static int check_specs(const struct kvattn_run *r, size_t memory,
                       struct kv_err *e)
{
    double base = 0, most = 0, bytes;
    const struct kv_spec *of = NULL;
    bool generic = false;

    for (size_t i = 0; i < r->n_paths; i++)
        generic |= r->path[i] == KV_ATTN_GENERIC;

    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_spec *spec = &r->spec[i];
        struct kv_codecs *cs;

        if (kv_codecs_new(&cs, spec, &r->inputs.shape, r->inputs.layer, 1,
                          r->calib, e))
            return -1;
        bytes = base + kv_attn_step_bytes(&r->how, &r->inputs, spec,
                                          kv_codecs_at(cs, r->inputs.layer),
                                          generic);
        kv_codecs_free(cs);
        if (spec->policy.policy && r->how.repeats > 1)
            return kv_fail(e, "%s: --repeat does not go with a policy",
                           spec->text);
        if (spec->policy.policy &&
            kv_attn_kept_check(&r->inputs, spec, r->calib, !r->dump, e))
            return -1;
        base = i ? base : bytes;
        of = bytes > most ? spec : of;
        most = fmax(most, bytes);
    }
    bytes = kv_attn_inputs_bytes(&r->inputs) + most +
            (r->how.gpu ? 0 : (double)kv_bench_bytes());
    return kv_attn_memory_check(&r->inputs, "tensors and caches", bytes, memory,
                                e)
               ? kv_fail_in(e, "%s", of->text)
               : 0;
}

static int read_inputs(struct kvattn_run *r, const struct kvattn_args *a,
                       struct kv_err *e)
{
    if (r->dump)
        return kv_attn_inputs_read(&r->inputs, r->dump, e);
    kv_attn_inputs_random(&r->inputs, a->common.seed);
    return 0;
}

static int prepare_specs(struct kvattn_run *r, const struct kvattn_args *a,
                         struct kv_err *e)
{
    size_t n_all;
    const struct kv_sweep sweep = {.base = "f16",
                                   .specs = &a->specs,
                                   .shape = &r->inputs.shape,
                                   .shard = {1, 1}};

    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, &n_all, e) ||
        kv_spec_alone(r->spec, r->n_specs, "attention on codes", e))
        return -1;
    want_queries(r);
    if (kv_attn_memory_check(&r->inputs, "tensors",
                             kv_attn_inputs_bytes(&r->inputs), a->common.memory,
                             e))
        return -1;
    kv_common_hadamard(r->spec, r->n_specs, sweep.shape);
    r->random_calib = r->shape && !a->calib;
    if (r->random_calib &&
        kv_random_calibration(&r->calib, r->spec, r->n_specs, &r->inputs.shape,
                              a->common.seed, e))
        return -1;
    return kv_calib_adopt(r->calib, r->spec, r->n_specs, e) ||
           check_specs(r, a->common.memory, e) || read_inputs(r, a, e);
}

static int measure_cpu(struct kvattn_run *r)
{
    r->bench = kv_bench_new(r->conditions.threads);
    r->bandwidth = kv_bench_bandwidth(r->bench);
    kv_detail("reading memory: %.1f GB/s with %zu threads", r->bandwidth * 1e-9,
              r->conditions.threads);
    return 0;
}

static int measure_gpu(struct kvattn_run *r, const struct kv_device *gpu,
                       struct kv_err *e)
{
    double copy;

    if (kv_device_bandwidth(gpu, &r->bandwidth, &copy, e))
        return -1;
    kv_note("%s: reads %.0f GB/s, copies %.0f GB/s (read and written)",
            r->conditions.device, r->bandwidth * 1e-9, copy * 1e-9);
    return 0;
}

static void name_protocol(struct kvattn_run *r, const struct kvattn_args *a)
{
    char repeats[32] = "";

    if (r->how.repeats > 1)
        snprintf(repeats, sizeof(repeats), ":repeat%zu", r->how.repeats);
    snprintf(r->protocol, sizeof(r->protocol), "decode:%zu%s%s", r->inputs.nq,
             a->warm ? ":warm" : "", repeats);
}

static int prepare(struct kvattn_run *r, const struct kvattn_args *a,
                   struct kv_err *e)
{
    const struct kv_attn_inputs *in = &r->inputs;

    if (a->warm && a->common.on_gpu)
        return kv_fail(e, "--warm is for the CPU: on a GPU every run is cold");
    r->how.repeats = a->repeats;
    r->how.gpu = a->common.on_gpu ? &a->common.gpu : NULL;
    r->how.threads = a->common.threads;
    if (parse_paths(r, a, e) ||
        (r->shape ? prepare_shape(r, a, e) : prepare_dump(r, a, e)) ||
        prepare_specs(r, a, e))
        return -1;
    name_protocol(r, a);
    r->conditions.tool = "kvattn";
    r->conditions.ctx = in->n * r->how.repeats;
    r->conditions.windows = in->n_batch * r->how.copies;
    r->conditions.protocol = r->protocol;
    kv_common_conditions(&a->common, &r->conditions);
    if (a->common.on_gpu ? measure_gpu(r, &a->common.gpu, e) : measure_cpu(r))
        return -1;
    return r->table ? 0 : kvattn_open_table(r, a, e);
}

static void clear(struct kvattn_run *r)
{
    kv_results_discard(r->table);
    kv_attn_step_free(r->base);
    kv_bench_free(r->bench);
    free(r->spec);
    kv_calib_free(r->calib);
    kv_attn_inputs_clear(&r->inputs);
    kv_dump_close(r->dump);
}

void kvattn_next(struct kvattn_run *r)
{
    const struct kvattn_run next = {.table = r->table, .left_out = r->left_out};

    r->table = NULL;
    clear(r);
    *r = next;
}

static int run(struct kvattn_run *r, const struct kvattn_args *a,
               struct kv_err *e)
{
    const size_t n = a->shapes.n ? a->shapes.n : 1;
    struct kv_results *table;

    for (size_t i = 0; i < n; i++) {
        if (i)
            kvattn_next(r);
        r->shape = a->shapes.n ? a->shapes.item[i] : NULL;
        if (prepare(r, a, e) || kvattn_run_all(r, a, e))
            return -1;
    }
    table = r->table;
    r->table = NULL;
    return kv_results_close(table, e);
}

/* Refuses options that only a dump has, given with --shape or -m. */
static void refuse_of_dump(const struct kvattn_args *a)
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

/* Refuses options that do not go with --repeat. */
static void check_repeats(const struct kvattn_args *a)
{
    if (a->repeats == 1)
        return;
    if (!a->repeats)
        kv_die("--repeat 0: expected at least 1");
    if (!a->shapes.n || !a->common.on_gpu)
        kv_die("--repeat goes with --shape and --device cuda");
    for (size_t i = 0; i < a->paths.n; i++)
        if (!strcmp(a->paths.item[i], path_names[KV_ATTN_UNFUSED]) ||
            !strcmp(a->paths.item[i], path_names[KV_ATTN_DEQUANT]))
            kv_die("--repeat does not go with --path %s", a->paths.item[i]);
}

/* Wants exactly one source of tensors, and refuses options that the source does
 * not have. */
static void check_source(const struct kvattn_args *a)
{
    const bool model = a->models.n;

    if (!!a->dump + (a->shapes.n > 0) + model != 1)
        kv_die("give one of --dump, --shape and -m (try --help)");
    if (!a->dump)
        refuse_of_dump(a);
    if (!model && (a->ctxs.n || a->batches.n))
        kv_die("%s goes with -m", a->ctxs.n ? "-c" : "--batch");
    if (model && (a->warm || a->paths.n))
        kv_die("%s does not go with -m", a->warm ? "--warm" : "--path");
}

static void parse(int argc, char **argv, struct kvattn_args *a)
{
    const struct kv_opt opts[] = {
        KV_SPECS(&a->specs, "scheme and parameters; repeats, and takes\n"
                            "sweeps in quotes: 'kivi:b{2,4}g{32,64}';\n"
                            "K-q8_0/V-q4_0: a scheme for each side"),
        KV_IN('C', "calib", &a->calib, "FILE", "calibration from kvcalib"),
        KV_IN(0, "dump", &a->dump, "FILE", "keys, values, queries from kvdump"),
        KV_LIST(0, "shape", &a->shapes, "B,HQ,HKV,D,N[,NQ]",
                "random tensors instead: batch, query heads,\n"
                "KV heads, head dimension, tokens, queries;\n"
                "repeatable: rows for each"),
        KV_INS_FOLDER('m', "model", &a->models, kv_model_holds, "MODEL,...",
                      "a model's folder or config.json instead: its whole\n"
                      "decoding step on a GPU, weights random; as -c and\n"
                      "--batch a list or repeated: rows for each"),
        KV_SIZES('c', "ctx", &a->ctxs, "N,...", "-m: tokens before the step"),
        KV_SIZES(0, "batch", &a->batches, "N,...", "-m: sequences (1)"),
        KV_SIZE(0, "layer", &a->layer, "L", "layer of the dump (its first)"),
        KV_SIZE('n', "windows", &a->windows, "N",
                "windows of the dump, the batch (0: all)"),
        KV_SIZE(0, "queries", &a->queries, "NQ",
                "newest queries of each window, a step (1)"),
        KV_WORDS(0, "path", &a->paths, "PATH,...",
                 "which attention, a row for each (auto):\n"
                 "int8 rounds queries and weights, exact does not,\n"
                 "generic decodes the whole cache; a scheme that\n"
                 "lacks one has the next; auto is int8 where that\n"
                 "adds less error than the scheme has (below), else\n"
                 "exact; also, on a GPU, unfused (f16) and dequant\n"
                 "(all others)"),
        KV_FLAG(0, "warm", &a->warm,
                "on the CPU: each timed run follows the same run,\n"
                "and finds in the caches what fits there"),
        KV_SIZE(0, "repeat", &a->repeats, "T",
                "--shape on a GPU: make the codes of N / T tokens\n"
                "and attend to each token T times, each time in\n"
                "memory of its own (1): the time is of N tokens,\n"
                "output and error are of N / T"),
        KV_SIZE(0, "reps", &a->reps, "N",
                "timed runs (20); with fewer, p10 and p90 are\n"
                "little more than the fastest and the slowest"),
        KV_SIZE(0, "warmup", &a->warmup, "N", "runs before them (3)"),
        KV_FLAG(0, "allow-leakage", &a->allow_leakage,
                "take a calibration on the evaluated text"),
        KV_APPEND(a->common),
        KV_COMMON_OPTS(a->common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage =
            "-s SPEC... [-C calib.h5] (--dump dump.h5 | --shape ... | -m ...)",
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
            "path_rel_err: error that the path adds, against exact attention\n"
            "over the same codes; --path auto takes int8 where that is below\n"
            "attn_rel_err of exact attention over them, on a GPU exact.\n"
            "noisy: 1 where lat_us_p90 is over twice lat_us_p10.\n"
            "--memory bounds tensors, caches and what a step makes of them\n"
            "and, on the CPU, the 256M that are read between runs.\n"
            "path, what ran: exact and int8 on tiles of codes, threads over\n"
            "sequences, KV heads and chunks; codes, the scheme's own, over\n"
            "sequences or, where they are few, KV heads; generic, decode()\n"
            "and then plain C, a thread a sequence.\n"
            "append_us: CPU time of one token of each sequence into its "
            "cache,\n"
            "quantizing what is due; mean of the newest 128; not on a GPU.\n"
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
            "POLICY+SPEC: the tokens before the newest NQ are a prompt, of\n"
            "which the policy drops what it will (a budget is a share of it);\n"
            "attn_rel_err is that of exact attention, or of the scheme's own,\n"
            "against dense attention over all tokens; bits are over all, kept\n"
            "is the share held; timed is a cache of as many tokens as the\n"
            "blocks have that hold any.\n"
            "ops_*: multiplications and additions of a step's attention where\n"
            "the scheme attends on its codes: integer products, what corrects\n"
            "them as executed, by HACK's formulas, by these with every\n"
            "partition counted; ops_other is in none of them.\n"
            "--shape without -C trains calibrated schemes on random tensors:\n"
            "their latency counts, their error is left blank.\n"
            "-m MODEL -c N --device cuda: one decoding step after N tokens,\n"
            "weights and caches random, each layer's its own; the whole step\n"
            "and its parts alone, in columns of their own, over f16 by our\n"
            "kernel (speedup) and by cuBLAS and a softmax (speedup_unfused).",
        .before = kv_common_no_cache_types,
        .list = kv_common_list,
        .columns = kvattn_about_columns};
    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_specs(argv + first, argc - first);
    kv_common_no_operands(argv + first, argc - first);
    check_source(a);
    if (!a->specs.n)
        kv_die("nothing to run: give -s SPEC (try --list)");
    if (a->queries == NOT_GIVEN)
        a->queries = 1;
    if (!a->reps || !a->queries)
        kv_die("--%s 0: expected at least 1", a->reps ? "queries" : "reps");
    if (a->reps > MAX_REPS)
        kv_die("--reps %zu: at most %d", a->reps, MAX_REPS);
    kv_common_specs(&a->specs);
    kv_common_start(&a->common);
    check_repeats(a);
}

int main(int argc, char **argv)
{
    static const char *const key[] = {
        KV_CONDITION_KEYS, "model", "level", "threads", "layer", "path", NULL};
    static const char *const step_key[] = {KV_CONDITION_KEYS, "model", "path",
                                           NULL};
    struct kv_results_keys keys = {
        .key = key,
        .full = "bits",
        .alike = {{"tool", "kvattn"}, {"version", kv_version()}}};
    struct kvattn_args a = {
        .common = {KV_COMMON_DEFAULTS, .can_gpu = true, .keys = &keys},
        .layer = NOT_GIVEN,
        .windows = NOT_GIVEN,
        .queries = NOT_GIVEN,
        .reps = 20,
        .warmup = 3,
        .repeats = 1};
    struct kvattn_run r = {0};
    struct kv_err e = {""};
    int rc;

    parse(argc, argv, &a);
    if (a.models.n) /* such a row covers all layers, on a GPU */
        keys.key = step_key;
    rc = a.models.n ? kvattn_step(&r, &a, &e) : run(&r, &a, &e);
    clear(&r);
    kv_strings_clear(&a.specs);
    kv_strings_clear(&a.shapes);
    kv_strings_clear(&a.models);
    kv_strings_clear(&a.paths);
    kv_sizes_clear(&a.ctxs);
    kv_sizes_clear(&a.batches);
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return r.left_out ? KV_EXIT_NO : KV_EXIT_OK;
}
