/* kvcalib: trains the tables of schemes (codebooks, smoothing) on a dump. */
#include "tools/kvcalib.h"
#include "calib/calibrate.h"
#include "calib/tables.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/model/model.h"
#include "lib/model/model_files.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "tools/columns_about.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      "table",
                                      "side",
                                      "layer",
                                      "head",
                                      "shape",
                                      "bytes",
                                      "error",
                                      NULL};

static void about_columns(void)
{
    kv_columns_about("kvcalib --table", columns);
    kvcalib_about_allocate();
}

/* Sets the word iters if the scheme has it. */
static void set_iters(struct kv_spec *s, size_t iters)
{
    for (const struct kv_param *p = s->scheme->params; p && p->name; p++) {
        if (strcmp(p->name, "iters"))
            continue;
        if ((double)iters < p->min || (double)iters > p->max)
            kv_die("--iters %zu: %s takes %.0f to %.0f", iters, s->scheme->name,
                   p->min, p->max);
        kv_spec_set(s, KV_K, "iters", (double)iters);
        kv_spec_set(s, KV_V, "iters", (double)iters);
    }
}

static int list_specs(const struct kvcalib_args *a,
                      const struct kv_shape *shape, struct kv_spec **list,
                      size_t *n, struct kv_err *e)
{
    if (kv_spec_expand(a->specs.item, a->specs.n, list, n, e))
        return -1;
    for (size_t i = 0; i < *n; i++) {
        if (!kv_policy_calibrated(&(*list)[i].policy))
            (*list)[i].policy = (struct kv_policy_spec){0};
        if (a->iters && (*list)[i].mixed)
            return kv_fail(e,
                           "--iters does not reach into %s: write iters=%zu "
                           "in its specs",
                           (*list)[i].text, a->iters);
        if (a->iters)
            set_iters(&(*list)[i], a->iters);
        if (kv_spec_fit(&(*list)[i], shape, e))
            return -1;
    }
    kv_common_hadamard(*list, *n, shape);
    return 0;
}

/* The mean training error of one side's own tables; NaN if there are none.  A
 * table for both sides (klt's trellis) has errors on values of neither side. */
static double mean_error(const struct kv_calib_set *s, int side)
{
    double sum = 0, n = 0;

    for (size_t i = 0; i < s->n_tables; i++)
        if (!isnan(s->table[i].error) && s->table[i].side == side) {
            sum += s->table[i].error;
            n++;
        }
    return n > 0 ? sum / n : NAN;
}

/* Writes ", mean squared error K 0.01, V 0.02", with the sides that have an
 * error. */
static void error_words(const struct kv_calib_set *s, char *text,
                        size_t capacity)
{
    size_t n = 0;

    text[0] = 0;
    for (int side = 0; side < KV_SIDES; side++) {
        const double x = mean_error(s, side);

        if (!isnan(x))
            n += (size_t)snprintf(text + n, capacity - n, "%s %c %.4g",
                                  n ? "," : ", mean squared error",
                                  kv_side_name((enum kv_side)side), x);
    }
}

static void say(const struct kv_calib *c, const char *path)
{
    for (size_t i = 0; i < c->n_sets; i++) {
        const struct kv_calib_set *s = &c->set[i];
        char error[64];

        error_words(s, error, sizeof(error));
        kv_note("%s: %zu tables, %zu bytes%s", s->spec, s->n_tables,
                kv_calib_set_bytes(s), error);
    }
    kv_note("%s: hash %s, %zu spec%s on %s, %zu window%s of %zu", path, c->hash,
            c->n_sets, c->n_sets == 1 ? "" : "s", c->text, c->n_windows,
            c->n_windows == 1 ? "" : "s", c->ctx);
}

static void put_scope(struct kv_results *r, const char *column, int scope)
{
    if (scope == KV_ALL)
        kv_results_text(r, column, "all");
    else
        kv_results_size(r, column, (uint64_t)scope);
}

static int put_table(struct kv_results *r, const struct kv_table *t,
                     struct kv_err *e)
{
    char shape[96] = "";
    size_t w = 0;

    for (size_t i = 0; i < t->n_dims; i++)
        w += (size_t)snprintf(shape + w, sizeof(shape) - w, "%s%zu",
                              i ? "x" : "", t->dims[i]);
    kv_results_text(r, "table", t->name);
    kv_results_text(r, "side",
                    t->side == KV_ALL ? "all"
                    : t->side == KV_K ? "K"
                                      : "V");
    put_scope(r, "layer", t->layer);
    put_scope(r, "head", t->head);
    kv_results_text(r, "shape", shape);
    kv_results_size(r, "bytes", kv_table_bytes(t));
    kv_results_real(r, "error", t->error);
    return kv_results_row(r, e);
}

/* Returns the specs of the file's sets, [n_sets]; the caller frees them. */
static struct kv_spec *specs_of(const struct kv_calib *c)
{
    struct kv_spec *s = kv_alloc(c->n_sets, sizeof(*s));
    struct kv_err e = {""};

    for (size_t i = 0; i < c->n_sets; i++)
        if (kv_spec_parse(&s[i], c->set[i].spec, &e))
            kv_die("%s", e.msg);
    return s;
}

static int put_tables(struct kv_results *r, const struct kvcalib_args *a,
                      const struct kv_calib *c, const struct kv_spec *spec,
                      const struct kv_dump_info *info, struct kv_err *e)
{
    struct kv_conditions conditions = {.tool = "kvcalib",
                                       .model = info->model,
                                       .model_hash = info->model_hash,
                                       .weights = info->weights,
                                       .ctx = info->ctx,
                                       .windows = info->n_windows};

    kv_common_conditions(&a->common, &conditions);
    for (size_t i = 0; i < c->n_sets; i++)
        for (size_t j = 0; j < c->set[i].n_tables; j++) {
            kv_results_conditions(r, &conditions, &spec[i], c, NAN);
            if (put_table(r, &c->set[i].table[j], e))
                return -1;
        }
    return 0;
}

static int print_tables(const struct kvcalib_args *a, const struct kv_calib *c,
                        const struct kv_dump_info *info, struct kv_err *e)
{
    struct kv_spec *spec = specs_of(c);
    struct kv_results *r;
    int rc = kv_common_table(&r, &a->common, NULL, columns, spec, c->n_sets, e);

    if (!rc && put_tables(r, a, c, spec, info, e)) {
        kv_results_discard(r);
        rc = -1;
    } else if (!rc) {
        rc = kv_results_close(r, e);
    }
    free(spec);
    return rc;
}

/* Checks the names in --columns before hours of training. */
static int try_columns(const struct kvcalib_args *a, struct kv_err *e)
{
    struct kv_results *r;

    if (!a->table)
        return 0;
    if (kv_common_table(&r, &a->common, NULL, columns, NULL, 0, e))
        return -1;
    kv_results_discard(r);
    return 0;
}

/* Fails before hours of training if the output cannot be written. */
static int try_output(const char *path, struct kv_err *e)
{
    struct kv_out out;

    if (kv_out_open(&out, path, false, e))
        return -1;
    kv_out_discard(&out);
    return 0;
}

/* Fails here, not at the later use, if a scheme cannot keep massive tokens. */
static int try_massive(const struct kv_calib *c,
                       const struct kv_dump_info *info,
                       const struct kv_spec *specs, size_t n, struct kv_err *e)
{
    for (size_t i = 0; i < n * KV_SIDES; i++) {
        const struct kv_spec *s = &specs[i / KV_SIDES];
        const enum kv_side side = (enum kv_side)(i % KV_SIDES);
        struct kv_codec *codec;

        if (s->mixed || !kv_spec_is(s, side, "massive", "yes") ||
            (side == KV_V && info->shape.latent))
            continue;
        if (kv_codec_new(&codec, s, &info->shape, info->first_layer, side, c,
                         e))
            return -1;
        kv_codec_free(codec);
    }
    return 0;
}

/* --tables: reads the tables of the run's one spec. */
static int take_tables(struct kv_calib **c, const struct kvcalib_args *a,
                       struct kv_dump *dump, const struct kv_spec *specs,
                       size_t n, struct kv_err *e)
{
    struct kv_arrays *tables;
    int rc;

    if (n != 1)
        return kv_fail(e, "--tables %s: expected one spec, not %zu", a->tables,
                       n);
    if (kv_arrays_open(&tables, a->tables, e))
        return -1;
    rc = kv_calib_take_tables(c, dump, specs, tables, a->common.seed, e);
    kv_arrays_close(tables);
    return rc;
}

/* Does the first rank's work after it has gathered all tables. */
static int finish(const struct kvcalib_args *a, struct kv_calib *c,
                  const struct kv_dump_info *info, const struct kv_spec *specs,
                  size_t n, struct kv_err *e)
{
    if (try_massive(c, info, specs, n, e) ||
        kv_calib_save(c, a->common.output, e))
        return -1;
    say(c, a->common.output);
    return a->table ? print_tables(a, c, info, e) : 0;
}

static int calibrate(const struct kvcalib_args *a, struct kv_ranks *r,
                     struct kv_err *e)
{
    struct kv_dump *dump = NULL;
    struct kv_calib *c = NULL, *factors = NULL;
    struct kv_spec *specs = NULL;
    size_t n = 0;
    int rc = -1;

    if (r->self)
        kv_verbosity_set(0);
    if (kv_dump_open(&dump, a->dump, e) ||
        list_specs(a, &kv_dump_info(dump)->shape, &specs, &n, e) ||
        (!r->self && (try_output(a->common.output, e) || try_columns(a, e))) ||
        (a->factors && kv_calib_load(&factors, a->factors, e)) ||
        (a->tables ? take_tables(&c, a, dump, specs, n, e)
                   : kvcalib_train(&c, r, a, dump, specs, n, factors, e)))
        goto out;
    rc = r->self ? 0 : finish(a, c, kv_dump_info(dump), specs, n, e);
out:
    kv_calib_free(factors);
    kv_calib_free(c);
    free(specs);
    kv_dump_close(dump);
    return rc;
}

/* Refuses options that have no effect on training. */
static void check_options(const struct kvcalib_args *a)
{
    const struct {
        bool given;
        const char *name;
    } others[] = {{a->calib && !a->export, "-C"},
                  {a->model != NULL, "-m"},
                  {a->text != NULL, "-f"},
                  {a->parse_special, "--parse-special"},
                  {a->bos, "--bos"},
                  {a->ctx != 0, "-c"},
                  {a->windows != 0, "-n"},
                  {a->queries != KVCALIB_QUERIES, "--queries"},
                  {a->allow_leakage, "--allow-leakage"}};

    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (others[i].given)
            kv_die("%s goes with --allocate", others[i].name);
}

static void check_export(const struct kvcalib_args *a)
{
    const bool options = a->export && !strcmp(a->export, KVCALIB_LLAMA_CPP);

    if (!a->export)
        return;
    if (options && (a->calib || !a->specs.n))
        kv_die("--export " KVCALIB_LLAMA_CPP " prints the options of one spec: "
               "expected -s SPEC%s",
               a->calib ? " without -C" : "");
    if (!options && !a->calib)
        kv_die("--export wants the calibration whose scales it writes: -C "
               "calib.h5");
    if (a->dump || a->common.output || a->allocate || a->tables || a->factors ||
        a->table || a->ranks || a->iters)
        kv_die("--export %s",
               options ? KVCALIB_LLAMA_CPP " goes with -s alone"
                       : "goes with -C and -s alone: it writes FILE");
}

static void parse(int argc, char **argv, struct kvcalib_args *a)
{
    const struct kv_opt opts[] = {
        KV_SPECS(&a->specs, "scheme and parameters; repeatable, takes sweeps\n"
                            "and K-SPEC/V-SPEC, a scheme for each side"),
        KV_SIZE(0, "iters", &a->iters, "N",
                "k-means iterations at most, part of the specs as\n"
                "iters=N (0: each scheme's own)"),
        KV_IN(0, "factors", &a->factors, "FILE",
              "take smoothing factors (t=S, SH, HS) of this\n"
              "calibration: codebooks alone are the dump's"),
        KV_IN(0, "tables", &a->tables, "FILE",
              "no training: the tables of the one spec, from a\n"
              ".npz, .safetensors or .h5, trained elsewhere on\n"
              "the text of dump.h5 (below)"),
        KV_OUT(0, "export", &a->export, "FILE",
               "no training: k_scale and v_scale of -C's set of\n"
               "modelopt:fp8, for vLLM and SGLang (.safetensors);\n"
               "of another spec the tables, as --tables reads\n"
               "them; llama.cpp: prints its -ctk and -ctv of -s"),
        KV_FLAG(0, "table", &a->table,
                "a row for each table to stdout; with\n"
                "--allocate, for each layer, side and spec"),
        KV_FLAG(0, "ranks", &a->ranks,
                "layers by the ranks that mpirun has started"),
        KV_STR(0, "allocate", &a->allocate, "BITS",
               "no training: choose one of the specs for each\n"
               "layer and side, at most BITS per value"),
        KV_IN('C', "calib", &a->calib, "FILE",
              "--allocate, --export: calibration of the specs"),
        KV_IN_FOLDER('m', "model", &a->model, kv_model_holds, "MODEL",
                     "--allocate: by the divergence of this model, not\n"
                     "by the attention of a dump"),
        KV_IN('f', "file", &a->text, "FILE",
              "-m: text, read verbatim, at most 1 GiB"),
        KV_FLAG(0, "parse-special", &a->parse_special,
                "-m: names of special tokens in the text are tokens"),
        KV_FLAG(0, "bos", &a->bos,
                "-m: a BOS at each window, not only before the text"),
        KV_SIZE('c', "ctx", &a->ctx, "N",
                "-m: tokens in a window (0: the model's context)"),
        KV_SIZE('n', "windows", &a->windows, "N",
                "-m: the first N windows (0: all whole ones)"),
        KV_SIZE(0, "queries", &a->queries, "N",
                "--allocate: query positions of a window (64)"),
        KV_FLAG(0, "allow-leakage", &a->allow_leakage,
                "--allocate: on text that calibration has seen"),
        KV_COMMON_OPTS(a->common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-s SPEC... dump.h5 -o calib.h5 [options]\n"
                 "       kvcalib --allocate BITS -s SPEC... (dump.h5 | -m DIR "
                 "-f TEXT)\n               -o layers.txt\n"
                 "       kvcalib --export FILE.safetensors -C calib.h5 "
                 "[-s mixed,file=LAYERS]\n"
                 "       kvcalib --export llama.cpp -s SPEC",
        .brief = "Trains what schemes must know beforehand (codebooks, "
                 "smoothing factors) on the\ntensors of a dump, and writes it "
                 "with a sketch of the text it was trained on.",
        .more =
            "--device cuda measures points against centers of codebooks on "
            "the GPU; the\nfile is the same, byte for byte.\n\n"
            "mpirun -n 4 kvcalib --ranks: each rank trains a part of the "
            "layers (a spec whose\nlayers are trained together is one "
            "rank's); the first writes the file, which is\nbyte for byte the "
            "one of one rank.\n\n"
            "-s mixed,file=LAYERS trains every spec that the layer file "
            "names.\n\n"
            "--tables: arrays layers.0.k.codebook [books, entries, channels] "
            "of vecinfer, cq,\npq, million (rounded to f16), layers.0.k.smooth "
            "[KV heads, channels] where t is\nnot none; kvquant's levels and "
            "range, oscar's rotation, rotatekv's order\n(docs/schemes.md).  "
            "Without a layer or k or v, an array is for all of them; of\na "
            "head: layers.0.heads.1.k.codebook, or [KV heads, ...] in one.\n\n"
            "--export: an f32 for the keys and one for the values of each "
            "layer, value =\nscale x code, named as in a checkpoint, "
            "model.layers.0.self_attn.k_proj.k_scale.\nLayers that a layer "
            "file keeps in f16 or bf16, of K or of V, are left out;\nstdout "
            "names them in vLLM's options.  Of another spec, each table in "
            "f32 under\nthe name that --tables reads: oscar's "
            "layers.0.k.rotation, klt's forward.\n\n"
            "--allocate writes a layer file, for -s mixed,file=LAYERS: for "
            "each layer and\nside the spec that makes the sum of errors "
            "least while the measured bits, the\nmean over all values at s0 "
            "r0, hold.  An error is that of the attention output\nover a "
            "dump, or with -m the divergence from the f32 cache, with this "
            "layer and\nside alone stored; that errors add up is an "
            "assumption.\n\n"
            "  kvcalib -s 'vecinfer:d{2,4}b8' dump.h5 -o calib.h5\n"
            "  kvcalib -s vecinfer:d4b8 --factors calib.h5 other.h5 -o "
            "both.h5\n"
            "  kvcalib --tables own.npz -s vecinfer:d4b8 dump.h5 -o calib.h5\n"
            "  kvcalib --allocate 3 -s 'kivi:b{1,2,3,4}g32' dump.h5 -o "
            "layers.txt\n"
            "  kvppl -m DIR -f text.txt --kl -s mixed,file=layers.txt",
        .before = kv_common_no_cache_types,
        .list = kv_common_list,
        .columns = about_columns,
        .operand = "dump.h5",
    };
    const int first = kv_opt_parse(argc, argv, &about, opts);

    if (argc - first > 1 || a->model)
        kv_common_no_specs(argv + first, argc - first);
    if (argc - first > 1 || (argc == first && !a->allocate && !a->export))
        kv_die("wants one dump, %d files were given (try --help)",
               argc - first);
    a->dump = first < argc ? argv[first] : NULL;
    if (!a->specs.n && !a->export)
        kv_die("wants at least one scheme: -s SPEC (see --list)");
    if (!a->common.output && !a->export)
        kv_die("wants the file to write: -o %s",
               a->allocate ? "layers.txt" : "calib.h5");
    check_export(a);
    if ((a->allocate || a->tables) && a->factors)
        kv_die("--factors goes with training, --%s trains nothing",
               a->allocate ? "allocate" : "tables");
    if (a->tables && a->iters)
        kv_die("--iters goes with training, --tables trains nothing");
    if (a->allocate && a->tables)
        kv_die("--allocate and --tables are two jobs: one is expected");
    if (!a->allocate)
        check_options(a);
    kv_common_specs(&a->specs);
    kv_common_start(&a->common);
}

/* Starts the ranks, and then refuses options: all ranks fail, but only one of
 * them prints the sentence. */
static int start_ranks(const struct kvcalib_args *a, struct kv_ranks *r,
                       struct kv_err *e)
{
    const char *other = a->allocate ? "allocate" : a->tables ? "tables" : NULL;

    if (!a->ranks)
        return 0;
    if (kv_ranks_start(r, e))
        return -1;
    return other ? kv_fail(e, "--ranks goes with training, --%s trains nothing",
                           other)
                 : 0;
}

int main(int argc, char **argv)
{
    struct kvcalib_args a = {.common = {KV_COMMON_DEFAULTS, .can_gpu = true},
                             .queries = KVCALIB_QUERIES};
    struct kv_ranks r = {.n = 1};
    struct kv_err e = {""};

    parse(argc, argv, &a);

    const int rc = start_ranks(&a, &r, &e) ? -1
                   : a.export              ? kvcalib_export(&a, &e)
                   : a.allocate            ? kvcalib_allocate(&a, &e)
                                           : calibrate(&a, &r, &e);

    kv_ranks_stop(&r, rc ? e.msg : NULL);
    kv_strings_clear(&a.specs);
    if (rc && r.told)
        return KV_EXIT_CANNOT;
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
