/* kvgen: answers of a model whose cache is quantized. */
#include "tools/kvgen.h"
#include "eval/calib_check.h"
#include "eval/loop.h"
#include "lib/base/progress.h"
#include "lib/mixed.h"
#include "lib/model/model_files.h"
#include "lib/scheme.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 256 }; /* --max-tokens' default */

static void release(struct kvgen_run *r)
{
    kv_out_discard(&r->out);
    kvgen_journal_free(r->journal);
    for (size_t i = 0; i < r->n_answers; i++)
        kv_answer_clear(&r->answer[i]);
    free(r->answer);
    free(r->transferred);
    for (size_t i = 0; r->stop && i < r->n_mine; i++)
        free(r->stop[i]);
    free(r->stop);
    kv_calib_free(r->calib);
    free(r->spec);
    free(r->mine);
    kv_prompts_clear(&r->prompts);
    kv_chat_model_clear(&r->chat);
    kv_tokenizer_free(r->tokenizer);
    kv_model_free(r->model);
}

/* Checks the options before anything is read. */
static int check_options(const struct kvgen_args *a, struct kv_err *e)
{
    if (!a->model)
        return kv_fail(e, "a model is needed: -m MODEL");
    if (kvgen_serve_check(a, e) || kvgen_disaggregate_check(a, e))
        return -1;
    if (a->serve.address)
        return 0;
    if (!a->prompts == !a->score)
        return kv_fail(e, a->score ? "-f FILE goes without --score FILE"
                                   : "prompts are needed: -f FILE, or pairs: "
                                     "--score FILE");
    if (a->score && (a->sampling.temperature != 0 || a->stops.n ||
                     a->ignore_eos || a->max_tokens != KVGEN_NOT_SAID ||
                     a->min_tokens || a->sampling.repetition_penalty != 1))
        return kv_fail(e, "%s goes without --score, which writes no tokens",
                       a->sampling.temperature != 0      ? "--temperature"
                       : a->stops.n                      ? "--stop"
                       : a->ignore_eos                   ? "--ignore-eos"
                       : a->max_tokens != KVGEN_NOT_SAID ? "--max-tokens"
                       : a->min_tokens                   ? "--min-tokens"
                                       : "--repetition-penalty");
    if (!a->common.output)
        return kv_fail(e, "answers go into a file: -o FILE");
    if (!a->max_tokens ||
        (a->max_tokens > INT32_MAX && a->max_tokens != KVGEN_NOT_SAID))
        return kv_fail(e, "--max-tokens %zu: expected 1 to %d tokens",
                       a->max_tokens, INT32_MAX);
    if (a->min_tokens > INT32_MAX)
        return kv_fail(e, "--min-tokens %zu: expected at most %d tokens",
                       a->min_tokens, INT32_MAX);
    if (!a->samples)
        return kv_fail(e, "--samples 0: expected at least 1");
    if (a->samples > 1 && a->sampling.temperature == 0)
        return kv_fail(e,
                       "--samples %zu goes with --temperature: without it "
                       "all answers to a prompt are the same",
                       a->samples);
    for (size_t i = 0; i < a->stops.n; i++) {
        const char *text = a->stops.item[i];

        if (!*text)
            return kv_fail(e, "--stop: an empty text stops every answer");
        if (kv_utf8_valid(text, strlen(text)) < strlen(text))
            return kv_fail(e, "--stop %s: expected UTF-8", text);
    }
    return kv_sampling_check(&a->sampling, e);
}

int kvgen_load_model(struct kvgen_run *r, const struct kvgen_args *a,
                     struct kv_err *e)
{
    if (kv_model_open(&r->model, a->model, e) ||
        (a->pool_heads && kv_model_pool_heads(r->model, a->pool_heads, e)) ||
        kv_tokenizer_open(&r->tokenizer, a->model, e) ||
        kv_chat_model_read(&r->chat, a->model, e) ||
        kv_common_place(&a->common, r->model, a->gemm, e))
        return -1;

    const struct kv_model_info *info = kv_model_info(r->model);

    r->conditions = (struct kv_conditions){
        .tool = "kvgen",
        .model = info->name,
        .model_hash = info->hash,
        .weights = info->weights,
        .protocol = a->score                       ? "score"
                    : a->sampling.temperature == 0 ? "greedy"
                                                   : "sample",
        .gemm = kv_model_gemm(r->model)};
    kv_common_conditions(&a->common, &r->conditions);
    return 0;
}

/* ---- specs --------------------------------------------------------------- */

static bool is_reference(const struct kv_spec *s)
{
    return !s->policy.policy &&
           (!strcmp(s->scheme->name, "f32") || !strcmp(s->scheme->name, "f16"));
}

/* Lists the specs of -s, or f32 if there are none. */
int kvgen_list_specs(struct kvgen_run *r, const struct kvgen_args *a,
                     struct kv_err *e)
{
    const struct kv_protocol protocol = {.kind = KV_PREFILL, .step = 1};
    const struct kv_sweep sweep = {.base = a->specs.n ? NULL : "f32",
                                   .specs = &a->specs,
                                   .shape = &kv_model_info(r->model)->shape,
                                   .protocol = &protocol,
                                   .shard = {1, 1}};
    size_t n;

    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, &n, e) ||
        kv_spec_in_place(r->spec, r->n_specs, "kvgen", e))
        return -1;
    kv_common_hadamard(r->spec, r->n_specs, sweep.shape);
    if (a->common.on_gpu && kv_policy_on_device(r->spec, r->n_specs, e))
        return -1;
    while (r->reference < r->n_specs && !is_reference(&r->spec[r->reference]))
        r->reference++;
    return 0;
}

/* Loads -C and checks it against the prompts. */
static int load_calibration(struct kvgen_run *r, const struct kvgen_args *a,
                            struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    struct kv_sketch sketch = {0};
    int rc;

    if (!a->calib)
        return 0;
    for (size_t i = 0; i < r->prompts.n; i++)
        kv_sketch_add(&sketch, r->prompts.at[i].ids, r->prompts.at[i].n);
    kv_sketch_sort(&sketch);
    rc = kv_calibration_load(
        &r->calib, &r->leak, a->calib,
        &(struct kv_evaluated){info->hash, &info->shape, &sketch},
        a->allow_leakage, e);
    kv_sketch_clear(&sketch);
    return rc ? -1 : kv_calib_adopt(r->calib, r->spec, r->n_specs, e);
}

/* Opens each spec once, so that a spec that cannot run fails before the first
 * answer.  A policy's budget is tried on the shortest and the longest
 * prompt. */
static int try_specs(const struct kvgen_run *r, const struct kvgen_args *a,
                     struct kv_err *e)
{
    const struct kv_prompt *end[2] = {r->prompts.at, r->prompts.at};

    for (size_t i = 0; i < r->prompts.n; i++) {
        const struct kv_prompt *p = &r->prompts.at[i];

        end[0] = p->n < end[0]->n ? p : end[0];
        end[1] = p->n > end[1]->n ? p : end[1];
    }
    for (size_t i = 0; i < 2 * r->n_specs; i++) {
        const struct kv_prompt *p = end[i % 2];
        const struct kv_protocol protocol = {
            .kind = KV_PREFILL, .step = 1, .prefill = p->n};
        struct kv_loop *loop;
        int rc;

        if (kv_loop_new(&loop, &r->spec[i / 2], &kv_model_info(r->model)->shape,
                        r->calib, &protocol, 0, NULL, e))
            return -1;
        rc = kv_loop_takes(loop, p->n + kvgen_most(r, a, p), e);
        kv_loop_free(loop);
        if (rc)
            return kv_fail_in(e, "%s: line %zu", kv_input_name(r->prompts.path),
                              p->line);
    }
    return 0;
}

/* ---- results ------------------------------------------------------------- */

int kvgen_put_results(struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t, struct kv_err *e)
{
    return kvgen_put_lines(r, a, e) || kvgen_put_rows(r, a, t, e) ? -1 : 0;
}

static int write_results(struct kvgen_run *r, const struct kvgen_args *a,
                         struct kv_err *e)
{
    struct kv_results *t;

    if (kv_common_table(&t, &a->common, NULL, r->job->columns, r->spec,
                        r->n_specs, e))
        return -1;
    if (kvgen_make_answers(r, a, e) || kvgen_put_results(r, a, t, e)) {
        kv_results_discard(t);
        return -1;
    }
    return kv_results_close(t, e);
}

static int open_journal(struct kvgen_run *r, const struct kvgen_args *a,
                        struct kv_err *e)
{
    if (!a->resume && !a->append)
        return 0;
    if (!r->out.target)
        return kv_fail(e, "--%s wants -o to be a regular file, not %s",
                       a->append ? "append" : "resume", a->common.output);
    r->out.adds = a->append;
    return kvgen_journal_open(&r->journal, a->common.output, a->append, e);
}

int kvgen_prepare(struct kvgen_run *r, const struct kvgen_args *a,
                  struct kv_err *e)
{
    if (kv_prompts_read(&r->prompts, a->score ? a->score : a->prompts, a->score,
                        r->job->fields, e) ||
        kvgen_load_model(r, a, e) || kvgen_list_specs(r, a, e) ||
        kvgen_read_prompts(r, a, e) || load_calibration(r, a, e) ||
        try_specs(r, a, e))
        return -1;
    kvgen_list_answers(r, a);
    return kvgen_choose_batch(r, a, e);
}

static void about_columns(void)
{
    kvgen_about_answers();
    kvgen_about_scores();
    kvgen_about_transfers();
}

static int run(struct kvgen_run *r, const struct kvgen_args *a,
               struct kv_err *e)
{
    if (kvgen_prepare(r, a, e) ||
        kv_out_open(&r->out, a->common.output, true, e) ||
        open_journal(r, a, e))
        return -1;
    if (r->chat.asked && a->sampling.repetition_penalty == 1)
        kv_note("%s asks for %s, which is not applied unless an option says "
                "so",
                a->model, r->chat.asked);
    return write_results(r, a, e);
}

int main(int argc, char **argv)
{
    struct kvgen_args a = {.common = KV_COMMON_DEFAULT,
                           .shard = {1, 1},
                           .sampling = KV_SAMPLING_GREEDY,
                           .serve = KVGEN_SERVE_DEFAULT,
                           .disaggregate = KVGEN_DISAGGREGATE_DEFAULT,
                           .chat_template = "model",
                           .max_tokens = KVGEN_NOT_SAID,
                           .samples = 1};
    struct kvgen_run r = {.leak = NAN};
    struct kv_err e = {""};
    const struct kv_opt opts[] = {
        KV_IN_FOLDER('m', "model", &a.model, kv_model_holds, "MODEL",
                     "Hugging Face folder, or a GGUF file"),
        KV_IN('f', "file", &a.prompts, "FILE", "prompts, JSON lines (below)"),
        KV_IN(0, "score", &a.score, "FILE",
              "instead of -f: pairs of context and continuation,\n"
              "JSON lines (below)"),
        KV_SPECS(&a.specs, "scheme and parameters, sweeps in {}; repeatable;\n"
                           "K-q8_0/V-q4_0: a scheme for each side (f32)"),
        KV_IN('C', "calib", &a.calib, "FILE", "calibration, from kvcalib"),
        KV_SIZE('n', "max-tokens", &a.max_tokens, "N",
                "new tokens at most, where a prompt does not say\n"
                "(256)"),
        KV_SIZE('c', "ctx", &a.ctx, "N",
                "tokens of prompt and answer at most (0: the\n"
                "model's context)"),
        KV_LIST(0, "stop", &a.stops, "STR",
                "ends an answer, which is cut before it; repeatable"),
        KV_SIZE(0, "min-tokens", &a.min_tokens, "N",
                "new tokens that no end token or stop may end,\n"
                "where a prompt does not say (0)"),
        KV_FLAG(0, "ignore-eos", &a.ignore_eos,
                "go on where the model would end"),
        KV_REAL(0, "temperature", &a.sampling.temperature, "T",
                "divides logits (0: the most probable token)"),
        KV_SIZE(0, "top-k", &a.sampling.top_k, "K",
                "of the K most probable tokens (0: all)"),
        KV_REAL(0, "top-p", &a.sampling.top_p, "P",
                "of the most probable that sum to P (1)"),
        KV_REAL(0, "repetition-penalty", &a.sampling.repetition_penalty, "R",
                "of tokens of the prompt and the answer (1)"),
        KV_SIZE(0, "samples", &a.samples, "N", "answers to each prompt (1)"),
        KV_SIZE(0, "batch", &a.batch, "B",
                "answers that decode together (8, or what --memory\n"
                "has room for); on the CPU none depends on it"),
        KV_STR(0, "chat-template", &a.chat_template, "T",
               "of messages: model (its own), chatml, gemma,\n"
               "llama2, llama3, mistral, phi3 or zephyr (model)"),
        KV_STR(0, "chat-date", &a.chat_date, "DATE",
               "what templates that write the date are told:\n"
               "2025-01-31 or 2025-01-31T12:00:00 (now)"),
        KV_FLAG(0, "parse-special", &a.parse_special,
                "names of special tokens in a prompt are tokens"),
        KV_STR(0, "gemm", &a.gemm, "T",
               "products of prompts of more than 8 tokens with\n"
               "weights in f32, or in bf16, to which both are\n"
               "rounded, if the processor has it (f32)"),
        KV_POOL_HEADS(&a.pool_heads),
        KV_SHARD(&a.shard, &a.common.output, &a.append,
                 "every N-th prompt from the I-th on (1/1; without a\n"
                 "value as a launcher says, below)"),
        KV_OUT_BESIDE(0, "resume", &a.resume, &a.common.output,
                      KV_RESULTS_JOURNAL,
                      "make no answer again that ANSWERS has, or that a\n"
                      "stopped run kept in ANSWERS.partial"),
        KV_OUT_BESIDE(0, "append", &a.append, &a.common.output,
                      KV_RESULTS_JOURNAL,
                      "as --resume, and other lines of ANSWERS stay"),
        KV_FLAG(0, "allow-leakage", &a.allow_leakage,
                "prompts that calibration has seen"),
        KVGEN_DISAGGREGATE_OPTS(a.disaggregate),
        KVGEN_SERVE_OPTS(a.serve),
        KV_COMMON_OPTS(a.common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage =
            "-m MODEL -f PROMPTS [-s SPEC]... -o ANSWERS [options]\n"
            "       kvgen -m MODEL --score PAIRS [-s SPEC]... -o SCORES "
            "[options]\n"
            "       kvgen -m MODEL --serve ADDR:PORT [-s SPEC]... [options]\n"
            "       mpirun -n 2 kvgen --disaggregate 1:1 -m MODEL -f PROMPTS "
            "... [options]",
        .brief =
            "Answers of a model whose KV cache is quantized, with the cache "
            "in the loop, to\nprompts under several specs: a line of JSON for "
            "each into -o, a row for each\nspec to stdout.",
        .more =
            "A line of -f is {\"prompt\": TEXT}, or {\"messages\": "
            "[{\"role\": R, \"content\": TEXT},\n...]} of system, user and "
            "assistant; a last one of the assistant's is continued.\nid, "
            "max_tokens, min_tokens and stop (a text or a list) are of this "
            "prompt;\nthese and all other fields are in the lines of its "
            "answers.\n\n"
            "An answer ends with the model's end tokens, a stop string or its "
            "limit.  A\nprompt attends at full precision (hack with "
            "prefill=codes: on its codes), once\nfor all specs; every token "
            "after it sees the quantized cache.  Random numbers\nare of seed, "
            "prompt, sample and token.\n\n"
            "agrees: tokens up to the first that is not the reference's, the "
            "first spec that\n"
            "is f32 or f16; seconds are of all answers that decode together.  "
            "Errors (_se)\n"
            "are over prompts.\n"
            "\n"
            "A line of --score is {\"context\": TEXT, \"continuation\": TEXT}, "
            "and other fields.\n"
            "The context attends at full precision, but for its last token; "
            "that and each\n"
            "token of the continuation see the quantized cache of all before "
            "it.\n"
            "log_likelihood: the sum of the natural logarithms of the tokens' "
            "probabilities;\n"
            "is_greedy: each is the most probable; d_log_likelihood: less the "
            "reference's.\n"
            "Pairs that follow each other and have the same context share its "
            "pass.\n"
            "\n"
            "--disaggregate sends each prompt's cache, layer by layer as it "
            "is\n"
            "quantized, to the rank that decodes; a prompt's timestamp (ms) "
            "is\n"
            "when it arrives.  Lines and rows have the times "
            "(docs/serving.md).\n"
            "\n" KV_SHARD_HELP "\nWith --append they share one file.\n\n"
            "--serve answers /v1/completions and /v1/chat/completions; "
            "/v1/models, /health\n"
            "and /metrics are there too.  A request's model is NAME (the first "
            "-s, or f32),\n"
            "\"NAME,SPEC\" or a SPEC; max_tokens is 16 where a completion does "
            "not say, -n\n"
            "where a chat does not.  With echo and logprobs a prompt's first "
            "token is the\n"
            "prompt, and the rest come one by one, each seeing the quantized "
            "cache: slow.\n"
            "SIGINT and SIGTERM give answers under way 10 s, twice: none.\n"
            "\n"
            "  kvgen -m DIR -f prompts.jsonl -s f16 -s 'kivi:b{2,4}g32' "
            "-o answers.jsonl\n"
            "  kvgen -m DIR -s f16 -s kivi:b2g32 --serve 127.0.0.1:8080",
        .before = kv_common_no_cache_types,
        .list = kv_common_list,
        .columns = about_columns,
    };
    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_specs(argv + first, argc - first);
    kv_common_no_operands(argv + first, argc - first);
    a.common.can_gpu = true;
    if (check_options(&a, &e))
        kv_die("%s", e.msg);
    kv_common_specs(&a.specs);
    if (a.serve.address)
        kvgen_serve_signals();
    kv_common_start(&a.common);

    if (a.max_tokens == KVGEN_NOT_SAID)
        a.max_tokens = MAX_TOKENS;
    r.job = a.score                ? &kvgen_scores
            : a.disaggregate.ranks ? &kvgen_transfers
                                   : &kvgen_answers;

    const int rc = a.serve.address        ? kvgen_serve(&r, &a, &e)
                   : a.disaggregate.ranks ? kvgen_disaggregate(&r, &a, &e)
                                          : run(&r, &a, &e);

    release(&r);
    kv_strings_clear(&a.stops);
    kv_strings_clear(&a.specs);
    if (rc && r.told)
        exit(KV_EXIT_CANNOT);
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
