/* kvppl: perplexity and divergence of a model with a quantized cache. */
#include "tools/kvppl.h"
#include "eval/calib_check.h"
#include "eval/loop.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/mixed.h"
#include "lib/model/model.h"
#include "lib/model/model_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void release(struct kvppl_run *r)
{
    kv_ppl_free(r->ppl);
    kv_klbase_close(r->from_file);
    kv_klbase_close(r->to_file);
    kv_calib_free(r->calib);
    kv_windows_clear(&r->text);
    kv_tokenizer_free(r->tokenizer);
    kv_model_free(r->model);
    free(r->extent.window);
    free(r->there);
    free(r->spec);
}

int kvppl_load_calibration(struct kvppl_run *r, const struct kvppl_args *a,
                           const int32_t *tokens, size_t n, struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    struct kv_sketch sketch = {0};
    int rc;

    if (!a->calib)
        return 0;
    kv_sketch_add_windows(&sketch, tokens, n, r->text.ctx, r->text.reading.bos);
    kv_sketch_sort(&sketch);
    rc = kv_calibration_load(
        &r->calib, &r->leak, a->calib,
        &(struct kv_evaluated){info->hash, &info->shape, &sketch},
        a->allow_leakage, e);
    kv_sketch_clear(&sketch);
    return rc ? -1 : kv_calib_adopt(r->calib, r->spec, r->n_specs, e);
}

/* llama.cpp evaluates every window with a BOS in the place of its first
 * token, when the model has one; its base file keeps the text's own tokens. */
static int evaluated_tokens(struct kvppl_run *r, const struct kvppl_args *a,
                            int32_t **to, struct kv_err *e)
{
    const size_t n = r->text.n * r->text.ctx;
    int32_t *tokens;

    if (a->own)
        return kvppl_write_own(r, a, to, e);
    *to = tokens = kv_alloc(n, sizeof(*tokens));
    memcpy(tokens, r->text.tokens, n * sizeof(*tokens));
    if (r->protocol.kind == KV_LLAMA_CPP && kv_tokenizer_adds_bos(r->tokenizer))
        for (size_t w = 0; w < r->text.n; w++)
            tokens[w * r->text.ctx] = kv_tokenizer_bos(r->tokenizer);
    return 0;
}

static int open_kl_base(struct kvppl_run *r, const struct kvppl_args *a,
                        struct kv_err *e)
{
    const size_t n_vocab = kv_model_info(r->model)->n_vocab;

    if (!a->kl_base)
        return a->kl_read ? kv_fail(e, "--kl-divergence wants the file given "
                                       "by --kl-divergence-base")
                          : 0;
    if (r->protocol.kind != KV_LLAMA_CPP)
        return kv_fail(e, "--kl-divergence-base goes with --protocol "
                          "llama.cpp, whose scored tokens the file holds");
    if (a->kl_read)
        return kv_klbase_open(&r->from_file, a->kl_base, r->text.ctx, n_vocab,
                              r->text.n, r->text.tokens, e);
    return kv_klbase_create(&r->to_file, a->kl_base, r->text.ctx, n_vocab,
                            r->text.n, r->text.tokens, e);
}

static int load_model(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e)
{
    if (!a->model)
        return kv_fail(e, "a model is needed: -m MODEL");
    if (kv_model_open(&r->model, a->model, e) ||
        (a->pool_heads && kv_model_pool_heads(r->model, a->pool_heads, e)) ||
        kv_tokenizer_open(&r->tokenizer, a->model, e) ||
        kv_common_place(&a->common, r->model, a->gemm, e))
        return -1;

    const struct kv_model_info *info = kv_model_info(r->model);

    r->conditions = (struct kv_conditions){.tool = "kvppl",
                                           .model = info->name,
                                           .model_hash = info->hash,
                                           .weights = info->weights,
                                           .gemm = kv_model_gemm(r->model)};
    kv_common_conditions(&a->common, &r->conditions);
    return 0;
}

static int load_text(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    size_t ctx;

    if (!a->text)
        return kv_fail(e, "a text is needed: -f FILE");
    if (kvppl_own_context(r, a, &ctx, e))
        return -1;
    if (ctx + a->own < 2)
        return kv_fail(e, "-c %zu: expected at least 2 tokens", ctx);
    if (a->bos && r->protocol.kind == KV_LLAMA_CPP)
        return kv_fail(e, "--bos does not go with --protocol llama.cpp, which "
                          "puts a BOS at each window in its own way, of "
                          "tokenizers that add one");
    if (kv_windows_read(&r->text, r->tokenizer, a->text,
                        &(struct kv_windows_wanted){.ctx = ctx,
                                                    .n = a->windows,
                                                    .special = a->parse_special,
                                                    .bos = a->bos},
                        info->n_vocab, e))
        return -1;
    if (r->protocol.kind != KV_LLAMA_CPP)
        kv_windows_note_bos(&r->text);
    r->conditions.text = r->text.text;
    r->conditions.text_hash = r->text.text_hash;
    r->conditions.reading = r->text.reading;
    r->n_tokens = ctx + a->own;
    r->conditions.ctx = ctx;
    r->conditions.windows = r->text.n;
    r->conditions.protocol = r->protocol.text;
    return 0;
}

int kvppl_list_specs(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e)
{
    struct kv_sweep sweep = {.base = a->no_base ? NULL : "f32",
                             .specs = &a->specs,
                             .shape = &kv_model_info(r->model)->shape,
                             .protocol = &r->protocol,
                             .shard = a->shard};

    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, &r->n_all, e))
        return -1;
    kv_common_hadamard(r->spec, r->n_specs, sweep.shape);
    for (size_t i = 0; i < r->n_specs && a->common.on_gpu; i++)
        if (r->spec[i].policy.policy)
            return kv_fail(e,
                           "%s: policies run on the CPU alone, not with "
                           "--device %s",
                           r->spec[i].text, a->common.device);
    return 0;
}

int kvppl_try_specs(const struct kvppl_run *r, size_t n, struct kv_err *e)
{
    const struct kv_shape *shape = &kv_model_info(r->model)->shape;

    for (size_t i = 0; i < r->n_specs; i++) {
        struct kv_loop *loop;

        if (kv_loop_new(&loop, &r->spec[i], shape, r->calib, &r->protocol, 0,
                        NULL, e))
            return -1;

        const int rc = kv_loop_takes(loop, n, e);

        kv_loop_free(loop);
        if (rc)
            return -1;
    }
    return 0;
}

/* ---- perplexity ---------------------------------------------------------- */

/* Names the run for its progress bar. */
static const struct kv_calib *begin_run(struct kvppl_run *r,
                                        const struct kv_spec *spec)
{
    snprintf(r->what, sizeof(r->what), "row %zu of %zu, %s", ++r->row,
             r->n_rows, spec->text);
    return kv_spec_calibrated(spec) ? r->calib : NULL;
}

static int ended_early(const struct kvppl_run *r, struct kv_err *e)
{
    return r->study->keys.key ? kv_fail_in(e, "finished rows are kept") : -1;
}

static int run_base(struct kvppl_run *r, const struct kv_spec *base,
                    struct kv_ppl_row *row, struct kv_err *e)
{
    if (kv_ppl_run(r->ppl, base, begin_run(r, base), r->to_file, row, e) ||
        kv_inputs_unchanged(e))
        return ended_early(r, e);
    kvppl_say_row(r, base, &row->score);
    return 0;
}

static bool is_base(const struct kv_spec *spec, const struct kv_spec *base)
{
    return base && !strcmp(spec->text, base->text);
}

/* Which rows need not be measured: the first rank has the table. */
static void find_rows(struct kvppl_run *r, const struct kv_spec *base)
{
    r->there = kv_alloc(r->n_specs + 1, sizeof(*r->there));
    for (size_t i = 0; i < r->n_specs && !r->study->ranks.self; i++)
        r->there[i] = kvppl_find_row(r, &r->spec[i], base);
}

/* Whether a row of the shard is to be measured; sets up r->progress.  The base
 * line runs where it is wanted and another row does, or its file is written. */
static bool start_progress(struct kvppl_run *r, const struct kvppl_args *a,
                           const struct kv_spec *base)
{
    bool missing = r->to_file;
    size_t runs;

    r->n_rows = 0;
    for (size_t i = 0; i < r->n_specs; i++) {
        if (r->there[i])
            continue;
        missing = true;
        r->n_rows += !is_base(&r->spec[i], base);
    }
    runs = r->n_rows * (1 + a->jitter) + (missing && base);
    r->n_rows += missing && base;
    kv_progress_init(&r->progress, r->what,
                     runs * kv_ranks_first(&r->study->ranks, 1, r->text.n) *
                         kv_model_info(r->model)->shape.n_layers);
    return missing;
}

/* The spec's run, and its repeats. */
static int pass_spec(struct kvppl_run *r, const struct kvppl_args *a,
                     const struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_calib *calib = begin_run(r, spec);

    for (size_t i = 0; i <= a->jitter; i++)
        if (kv_ppl_pass_again(r->ppl, spec, calib, i, e))
            return -1;
    return 0;
}

/* Rows of specs [first, end), which are there, the base line's, or wait for
 * their scores. */
static int put_rows(struct kvppl_run *r, const struct kvppl_args *a,
                    size_t first, size_t end, const struct kv_spec *base,
                    const struct kv_ppl_row *of_base, struct kv_err *e)
{
    struct kv_ppl_row row[KV_PPL_TOGETHER] = {0};
    size_t n = 0;
    int rc = 0;

    if (kv_ppl_score(r->ppl, NULL, row, e) || kv_inputs_unchanged(e))
        rc = ended_early(r, e);
    for (size_t i = first; i < end && !rc && !r->study->ranks.self; i++) {
        const struct kv_spec *spec = &r->spec[i];
        const bool there = kvppl_find_row(r, spec, base);
        const bool own = !there && !is_base(spec, base);

        if (own)
            kvppl_say_row(r, spec, &row[n].score);
        rc = there ? kv_results_row(r->study->table, e)
                   : kvppl_put_row(r, a, spec, own ? &row[n] : of_base, e);
        n += own ? 1 + a->jitter : 0;
    }
    for (size_t i = 0; i < KV_PPL_TOGETHER; i++)
        free(row[i].loss);
    return rc;
}

/* After a pass that failed: those of specs [first, end) become rows, unless the
 * program is to end now, or other ranks do not know of the failure. */
static int keep_passed(struct kvppl_run *r, const struct kvppl_args *a,
                       size_t first, size_t end, const struct kv_spec *base,
                       const struct kv_ppl_row *of_base, struct kv_err *e)
{
    const struct kv_err why = *e;

    if (!kv_interrupted(e) && r->study->ranks.n < 2)
        put_rows(r, a, first, end, base, of_base, e);
    *e = why;
    return ended_early(r, e);
}

/* Rows are compared with the base line.  A shard that does not own its row
 * leaves the row out. */
static int run_specs(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_ppl_row *of_base, struct kv_err *e)
{
    struct kv_spec f32, *base = a->no_base ? NULL : &f32;
    size_t first = 0;

    if (kv_spec_parse(&f32, "f32", e) ||
        kv_spec_fit(&f32, &kv_model_info(r->model)->shape, e))
        return -1;
    find_rows(r, base);
    if (kvppl_meet_ranks(r, a, e) ||
        (start_progress(r, a, base) && base && run_base(r, base, of_base, e)))
        return -1;
    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_spec *spec = &r->spec[i];

        if (!r->there[i] && !is_base(spec, base) && pass_spec(r, a, spec, e))
            return keep_passed(r, a, first, i, base, of_base, e);
        if (!kv_ppl_full(r->ppl) && !a->jitter && !is_base(spec, base) &&
            i + 1 < r->n_specs)
            continue;
        if (put_rows(r, a, first, i + 1, base, of_base, e))
            return -1;
        first = i + 1;
    }
    return 0;
}

static int perplexity(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e)
{
    struct kv_ppl_plan plan = {0};
    struct kv_ppl_row of_base = {0};
    struct kv_klbase *file;
    int32_t *tokens = NULL;
    int rc = -1;

    if (load_text(r, a, e) || kvppl_list_specs(r, a, e) ||
        kvppl_load_calibration(r, a, r->text.tokens, r->text.n * r->text.ctx,
                               e) ||
        kvppl_try_specs(r, r->n_tokens, e) || open_kl_base(r, a, e))
        return -1;
    if ((!r->study->ranks.self && kvppl_open_tables(r, a, e)) ||
        evaluated_tokens(r, a, &tokens, e))
        goto out;
    kvppl_measure_text(r, tokens);
    if (kvppl_records_set(r, tokens, e))
        goto out;
    plan = (struct kv_ppl_plan){
        .model = r->model,
        .tokens = tokens,
        .n_windows = r->text.n,
        .n = r->n_tokens,
        .protocol = r->protocol,
        .memory = a->common.memory,
        .seed = a->common.seed,
        .no_base = a->no_base,
        .kl = a->kl || a->kl_read,
        .losses = a->records,
        .kl_file = r->from_file,
        .ranks = r->study->ranks.n > 1 ? &r->study->ranks : NULL,
        .progress = &r->progress};
    if (kv_ppl_new(&r->ppl, &plan, e) || run_specs(r, a, &of_base, e))
        goto out;
    file = r->to_file;
    r->to_file = NULL;
    if (file && kv_klbase_commit(file, e))
        goto out;
    rc = 0;
out:
    free(of_base.loss);
    free(tokens);
    if (!rc)
        return r->study->ranks.self ? 0 : kvppl_close_tables(r, e);
    kvppl_discard_tables(r);
    return -1;
}

static void check_options(struct kvppl_args *a)
{
    if (a->no_base && (a->kl || a->kl_base))
        kv_die("--no-base goes without --kl and --kl-divergence-base: there is "
               "nothing to compare with");
    if (a->no_base && !a->specs.n)
        kv_die("--no-base without -s leaves nothing to run");
    kvppl_check_own(a);
}

static int run(struct kvppl_run *r, const struct kvppl_args *a,
               struct kv_err *e)
{
    if (kvppl_check_ranks(a, e) || (a->jitter && kvppl_check_jitter(a, e)) ||
        (a->ranks && kv_ranks_start(&r->study->ranks, e)))
        return -1;
    if (r->study->ranks.self)
        kv_verbosity_set(0);
    if (kv_protocol_parse(&r->protocol, a->protocol, a->keep_window, e) ||
        load_model(r, a, e))
        return -1;
    return perplexity(r, a, e);
}

int main(int argc, char **argv)
{
    struct kvppl_args a = {.common = KV_COMMON_DEFAULT,
                           .shard = {1, 1},
                           .protocol = "all",
                           .own = KVPPL_NOT_OWN};
    struct kvppl_study study = {.ranks = {.n = 1}};
    struct kvppl_run r = {.study = &study, .leak = NAN};
    struct kv_err e = {""};
    const struct kv_opt opts[] = {
        KV_IN_FOLDER('m', "model", &a.model, kv_model_holds, "MODEL",
                     "Hugging Face folder, or a GGUF file"),
        KV_IN('f', "file", &a.text, "FILE", "text, verbatim, <= 1 GiB"),
        KV_FLAG(0, "parse-special", &a.parse_special,
                "names of special tokens in the text are tokens"),
        KV_FLAG(0, "bos", &a.bos,
                "a BOS at each window, not only before the text"),
        KV_SIZE('c', "ctx", &a.ctx, "N",
                "tokens in a window (0: the model's context)"),
        KV_SIZE('n', "windows", &a.windows, "N",
                "the first N windows (0: all whole ones)"),
        KV_SPECS(&a.specs, "scheme and parameters, sweeps in {}; repeatable;\n"
                           "K-q8_0/V-q4_0: a scheme for each side"),
        KV_IN('C', "calib", &a.calib, "FILE", "calibration, from kvcalib"),
        KV_STR('p', "protocol", &a.protocol, "P",
               "all, stream[:STEP], prefill:P or llama.cpp (all)"),
        KV_FLAG(0, "keep-window", &a.keep_window,
                "all, llama.cpp: keep the spec's sinks and residual"),
        KV_FLAG(0, "no-base", &a.no_base,
                "do not run the base line; leaves dnll blank"),
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
                "each row N times more, K and V times 1 + 1e-6 e, e\n"
                "normal: kl_jitter is the spread of kl_mean"),
        KV_OUT(0, "records", &a.records, "FILE",
               "write every token's loss and divergence (HDF5),\n"
               "for scripts/compare"),
        KV_OUT_OR_IN(0, "kl-divergence-base", &a.kl_base, &a.kl_read, "FILE",
                     "write the base line's probabilities as\n"
                     "llama.cpp does"),
        KV_FLAG(0, "kl-divergence", &a.kl_read,
                "read that file instead, and compare with it"),
        KV_STR(0, "gemm", &a.gemm, "T",
               "products with weights in f32, or in bf16, to which\n"
               "both are rounded, if the processor has it (f32)"),
        KV_POOL_HEADS(&a.pool_heads),
        KV_SHARD(&a.shard, &a.common.output, &a.append,
                 "every N-th row from the I-th on (1/1; without a\n"
                 "value as a launcher says, below)"),
        KV_FLAG(0, "ranks", &a.ranks,
                "windows by the ranks that mpirun has started"),
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
            "the first\nwrites the rows, which are those of one rank.\n\n"
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
    };
    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_specs(argv + first, argc - first);
    kv_common_no_operands(argv + first, argc - first);
    check_options(&a);
    a.common.can_gpu = true;
    kv_common_specs(&a.specs);
    kv_common_start(&a.common);

    const int rc = run(&r, &a, &e);

    kv_ranks_stop(&study.ranks, rc ? e.msg : NULL);
    release(&r);
    kv_strings_clear(&a.specs);
    if (rc && study.ranks.told)
        return KV_EXIT_CANNOT;
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
