/* A setting's rows: the base line, then the specs, compared with it. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/scheme.h"
#include "tools/kvppl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    const struct kv_calib *none = begin_run(r, base);

    if ((r->study->base_from
             ? kvppl_load_base(r, row, e)
             : kv_ppl_run(r->ppl, base, none, r->to_file, row, e) ||
                   kvppl_save_base(r, row, e)) ||
        kv_inputs_unchanged(e))
        return ended_early(r, e);
    kvppl_say_row(r, base, &row->score);
    return 0;
}

static bool is_base(const struct kv_spec *spec, const struct kv_spec *base)
{
    return base && !strcmp(spec->text, base->text);
}

/* Finds the rows that need not be measured; only the first rank has the
 * table. */
static void find_rows(struct kvppl_run *r, const struct kv_spec *base)
{
    r->there = kv_alloc(r->n_specs + 1, sizeof(*r->there));
    for (size_t i = 0; i < r->n_specs && !r->study->ranks.self; i++)
        r->there[i] = kvppl_find_row(r, &r->spec[i], base);
}

/* Whether a row of the shard must be measured; sets up r->progress.  The base
 * line runs if it is requested and another row runs, or if its file is
 * written. */
static bool start_progress(struct kvppl_run *r, const struct kvppl_args *a,
                           const struct kv_spec *base)
{
    bool missing = r->to_file || r->study->base_to;
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

/* Runs the spec and its repeats. */
static int pass_spec(struct kvppl_run *r, const struct kvppl_args *a,
                     const struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_calib *calib = begin_run(r, spec);

    for (size_t i = 0; i <= a->jitter; i++)
        if (kv_ppl_pass_again(r->ppl, spec, calib, i, e))
            return -1;
    return 0;
}

static bool is_floor(const struct kvppl_run *r, const struct kv_spec *spec)
{
    return r->floor && !spec->mixed && !spec->policy.policy &&
           !strcmp(spec->scheme->name, "f16");
}

/* Writes the rows of specs [first, end): an earlier run has the row, or it is
 * the base line's, or its run waits for scores. */
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
        if (own && is_floor(r, spec))
            kvppl_say_floor(&row[n].score);
        rc = there ? kv_results_row(r->study->table, e)
                   : kvppl_put_row(r, a, spec, own ? &row[n] : of_base, e);
        n += own ? 1 + a->jitter : 0;
    }
    for (size_t i = 0; i < KV_PPL_TOGETHER; i++) {
        free(row[i].loss);
        free(row[i].kl);
    }
    return rc;
}

/* After a failed pass: writes the rows of specs [first, end), unless the
 * program must end now, or other ranks do not know of the failure. */
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

/* Runs the specs and compares them with the base line.  A shard that does not
 * own the base line's row does not write it. */
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

static struct kv_ppl_plan make_plan(struct kvppl_run *r,
                                    const struct kvppl_args *a)
{
    struct kv_ranks *ranks = &r->study->ranks;

    return (struct kv_ppl_plan){.model = r->model,
                                .tokens = r->tokens,
                                .n_windows = r->text.n,
                                .n = r->n_tokens,
                                .protocol = r->protocol,
                                .memory = a->common.memory,
                                .seed = a->common.seed,
                                .no_base = a->no_base,
                                .kl = a->kl || a->kl_read,
                                .losses = a->records || a->base,
                                .kl_file = r->from_file,
                                .ranks = ranks->n > 1 ? ranks : NULL,
                                .progress = &r->progress};
}

int kvppl_run_setting(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e)
{
    struct kv_ppl_plan plan;
    struct kv_ppl_row of_base = {0};
    struct kv_klbase *file;
    int32_t *tokens = NULL;
    int rc = -1;

    if (r->study->n > 1)
        kv_note("%s, %s, %zu x %zu tokens, %s:", r->conditions.model,
                r->text.text, r->text.n, r->n_tokens, r->protocol.text);
    if (kv_model_by_length(r->model))
        kv_model_context(r->model,
                         r->n_tokens); /* another setting's is in force */
    if (open_kl_base(r, a, e) || evaluated_tokens(r, a, &tokens, e))
        return -1;
    r->tokens = tokens;
    kvppl_measure_text(r);
    if (kvppl_records_set(r, e))
        goto out;
    plan = make_plan(r, a);
    if (kv_ppl_new(&r->ppl, &plan, e) || run_specs(r, a, &of_base, e))
        goto out;
    file = r->to_file;
    r->to_file = NULL;
    if (!file || !kv_klbase_commit(file, e))
        rc = 0;
out:
    free(of_base.loss);
    free(of_base.kl);
    free(tokens);
    kv_ppl_free(r->ppl);
    r->ppl = NULL;
    return rc;
}
