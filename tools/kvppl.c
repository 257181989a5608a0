/* kvppl: perplexity and divergence of a model with a quantized cache. */
#include "tools/kvppl.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/model/model_files.h"

static void check_places(const struct kvppl_args *a)
{
    bool all = !a->windows.n;

    if (a->places && strcmp(a->places, "first") && !kvppl_random_places(a))
        kv_die("--places %s: expected first or random", a->places);
    for (size_t i = 0; i < a->windows.n; i++)
        all |= !a->windows.item[i];
    if (all && kvppl_random_places(a))
        kv_die("--places random wants -n, the number of windows to draw");
}

static void check_options(struct kvppl_args *a)
{
    check_places(a);
    if (a->no_base && (a->kl || a->kl_base))
        kv_die("--no-base goes without --kl and --kl-divergence-base: there is "
               "nothing to compare with");
    if (a->no_base && !a->specs.n)
        kv_die("--no-base without -s leaves nothing to run");
    if (a->calibs.n > 1 && a->calibs.n > a->models.n)
        kv_die("-C names %zu calibrations, -m %zu models: expected one for "
               "each model at most",
               a->calibs.n, a->models.n);
    kvppl_check_own(a);
}

/* Checks the settings: llama.cpp's base file has room for only one. */
static int check_settings(const struct kvppl_study *s,
                          const struct kvppl_args *a, struct kv_err *e)
{
    if (s->n > 1 && a->kl_base)
        return kv_fail(e,
                       "--kl-divergence-base is of one model, text, context "
                       "and protocol, not of %zu settings",
                       s->n);
    if (s->n_models > 1 && a->common.on_gpu)
        return kv_fail(e, "several models (-m) do not go with --device %s",
                       a->common.device);
    return 0;
}

static int run(struct kvppl_study *s, const struct kvppl_args *a,
               struct kv_err *e)
{
    if ((a->ranks && kv_ranks_start(&s->ranks, e)) || kvppl_check_ranks(a, e) ||
        (a->jitter && kvppl_check_jitter(a, e)))
        return -1;
    if (s->ranks.self)
        kv_verbosity_set(0);
    if (kvppl_list_settings(s, a, e) || check_settings(s, a, e))
        return -1;
    for (size_t i = 0; i < s->n; i++)
        if (kvppl_load_setting(&s->run[i], a,
                               &s->model[i / (s->n / s->n_models)], e))
            return -1;
    if (kvppl_open_base(s, a, e) ||
        (!s->ranks.self && kvppl_open_tables(s, a, e)))
        return -1;
    for (size_t i = 0; i < s->n; i++)
        if (kvppl_run_setting(&s->run[i], a, e))
            return -1;
    return kvppl_close_base(s, e) || kvppl_close_tables(s, e) ? -1 : 0;
}

static void clear_args(struct kvppl_args *a)
{
    kv_strings_clear(&a->models);
    kv_strings_clear(&a->texts);
    kv_strings_clear(&a->calibs);
    kv_strings_clear(&a->protocols);
    kv_strings_clear(&a->specs);
    kv_sizes_clear(&a->ctxs);
    kv_sizes_clear(&a->windows);
}

int main(int argc, char **argv)
{
    struct kvppl_args a = {
        .common = KV_COMMON_DEFAULT, .shard = {1, 1}, .own = KVPPL_NOT_OWN};
    struct kvppl_study study = {.ranks = {.n = 1}};
    struct kv_err e = {""};
    const struct kv_opt opts[] = {
        KV_INS_FOLDER('m', "model", &a.models, kv_model_holds, "MODEL,...",
                      "Hugging Face folder, or a GGUF file; as -f, -c,\n"
                      "-n and -p a list or repeated: rows for each"),
        KV_INS('f', "file", &a.texts, "FILE,...", "text, verbatim, <= 1 GiB"),
        KV_FLAG(0, "parse-special", &a.parse_special,
                "names of special tokens in the text are tokens"),
        KV_FLAG(0, "bos", &a.bos,
                "a BOS at each window, not only before the text"),
        KV_SIZES('c', "ctx", &a.ctxs, "N,...",
                 "tokens in a window (0: the model's context)"),
        KV_SIZES('n', "windows", &a.windows, "N,...",
                 "windows of the text (0: all whole ones)"),
        KV_STR(0, "places", &a.places, "P",
               "these windows: the first, or random, N drawn by\n"
               "--seed (first)"),
        KV_SPECS(&a.specs, "scheme and parameters, sweeps in {}; repeatable;\n"
                           "K-q8_0/V-q4_0: a scheme for each side"),
        KV_INS('C', "calib", &a.calibs, "FILE,...",
               "calibration, from kvcalib, of each model one"),
        KV_WORDS('p', "protocol", &a.protocols, "P,...",
                 "all, stream[:STEP], prefill:P or llama.cpp (all)"),
        KV_FLAG(0, "keep-window", &a.keep_window,
                "all, llama.cpp: keep the spec's sinks and residual"),
        KV_FLAG(0, "no-base", &a.no_base,
                "do not run the base line; leaves dnll blank"),
        KV_OUT_ONCE(0, "base", &a.base, "FILE",
                    "read the base lines from FILE if it exists, else\n"
                    "write them: for shards, or for more specs"),
        KV_FLAG(0, "kl", &a.kl, "divergence from the base line, same top 1"),
        KV_OUT(0, "kl-curve", &a.curve, "FILE",
               "write it by position, 16 rows for each spec"),
        KV_SIZE(0, "own", &a.own, "N",
                "score N tokens that the f32 model writes after a\n"
                "window (below); --kl is on"),
        KV_REAL(0, "own-temperature", &a.own_temperature, "T",
                "sample them, logits divided by T (0: the most\n"
                "probable token)"),
        KV_SIZE(0, "jitter", &a.jitter, "N",
                "each row N times more (1 to 7), K and V times\n"
                "1 + 1e-6 e, e normal: kl_jitter is their spread"),
        KV_OUT(0, "records", &a.records, "FILE",
               "write every token's loss and divergence (HDF5),\n"
               "for scripts/compare"),
        KV_OUT_OR_IN(0, "kl-divergence-base", &a.kl_base, &a.kl_read, "FILE",
                     "write the base line's probabilities as\n"
                     "llama.cpp does"),
        KV_FLAG(0, "kl-divergence", &a.kl_read,
                "read that file instead, and compare with it"),
        KV_STR(0, "gemm", &a.gemm, "T",
               "products with weights in f32; in bf16, to which\n"
               "both are rounded, if the processor has it; auto:\n"
               "bf16 where weights hold no more, and a row f16\n"
               "(f32)"),
        KV_POOL_HEADS(&a.pool_heads),
        KV_SHARD(&a.shard, &a.common.output, &a.append,
                 "every N-th row from the I-th on (1/1; without a\n"
                 "value as a launcher says, below)"),
        KV_FLAG(0, "ranks", &a.ranks,
                "windows by the ranks that mpirun has started"),
        KV_STR(0, "split", &a.split, "WHAT",
               "--ranks: windows, or layers, of a model larger\n"
               "than one machine's memory (windows)"),
        KV_OUT_BESIDE(0, "resume", &a.resume, &a.common.output,
                      KV_RESULTS_JOURNAL,
                      "measure no row again that FILE has, or that a\n"
                      "stopped run kept in FILE.partial; csv, tsv"),
        KV_OUT_BESIDE(0, "append", &a.append, &a.common.output,
                      KV_RESULTS_JOURNAL,
                      "as --resume, and FILE's other rows stay, of any\n"
                      "text, protocol and calibration"),
        KV_FLAG(0, "allow-leakage", &a.allow_leakage,
                "evaluate on text that calibration has seen"),
        KV_COMMON_OPTS(a.common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-m MODEL -f TEXT [-c CTX] [-n WINDOWS] [-s SPEC]...",
        .brief =
            "Perplexity of a model whose KV cache is quantized, with the "
            "cache in the loop,\nand its divergence from the same model with "
            "an f32 cache (the first row).",
        .more =
            "Protocols (not interchangeable; each row names its own):\n"
            "  all        the window encoded whole at s = r = 0\n"
            "  stream     the real cache, token by token\n"
            "  prefill:P  P tokens at full precision, then the real cache\n"
            "  llama.cpp  as all; only the second half of a window is "
            "scored\n\n"
            "--own N: a window of -c tokens is a prompt.  The model with an "
            "f32 cache writes\nN tokens after it, and goes on where it would "
            "end; every spec is forced along\nthem, one token at a time "
            "(stream, or prefill:P of the prompt), and they alone\n"
            "are scored.  agree: leading tokens that the spec alone would have "
            "written, all N\nat most; of sampled text it is blank.\n\n"
            "--device cuda: the forward pass on a GPU.  Codes of kivi, "
            "absmax, zeropoint, pq,\nmillion, evasion, vecinfer, cq and klt "
            "are made and decoded there, those of hack\n(axes=paper, "
            "partitions to 256) made and attended to.  "
            "Other\nspecs' codes are the CPU's.  Numbers differ from the "
            "CPU's by the rounding to\nthe weights' type.\n\n" KV_SHARD_HELP
            "\nWith --append they share one file.\n\n"
            "mpirun -n 4 kvppl --ranks: each rank takes a part of the windows; "
            "the first\nwrites the rows, which are those of one rank.  With "
            "--split layers each rank\nreads the weights of some layers alone, "
            "and windows pass from rank to rank.\n\n"
            "Units: losses and divergences in nats per token, bits per value "
            "of K and V.\nA layer that slides holds its window, and of older "
            "tokens what shares a block\nwith it: these bytes, over the "
            "window's values.\n"
            "Errors (_se) are over windows; ppl_se of llama.cpp is over "
            "tokens, as there.\n"
            "--kl-divergence: dnll is against the losses in that file, which "
            "holds nothing\nless likely than e^-16 of the likeliest: of such "
            "tokens it is too much.\n\n"
            "  kvppl -m DIR -f text.txt -c 1024 -n 8 --kl "
            "-s 'kivi:b{2,4}g32'",
        .before = kv_common_no_cache_types,
        .list = kv_common_list,
        .columns = kvppl_about_columns,
    };
    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_specs(argv + first, argc - first);
    kv_common_no_operands(argv + first, argc - first);
    check_options(&a);
    a.common.can_gpu = true;
    kv_common_specs(&a.specs);
    kv_common_start(&a.common);

    const int rc = run(&study, &a, &e);

    kv_ranks_stop(&study.ranks, rc ? e.msg : NULL);
    kvppl_study_clear(&study);
    clear_args(&a);
    if (rc && study.ranks.told)
        return KV_EXIT_CANNOT;
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
