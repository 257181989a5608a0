/* kvppl --greedy: text by the most probable token, the base line's and each
 * spec's. */
#include "eval/greedy.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/utf8.h"
#include "lib/mixed.h"
#include "tools/kvppl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS, "tokens", "agree",
                                      "output", NULL};

/* The prompt: the text of -f, or a BOS alone; room for the new tokens. */
static int prompt(struct kvppl_run *r, const struct kvppl_args *a,
                  int32_t **ids, size_t *n, struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    const int32_t bos = kv_tokenizer_bos(r->tokenizer);

    if (a->text) {
        const char *slash = strrchr(a->text, '/');

        if (kv_text_tokens(r->tokenizer, a->text, a->parse_special,
                           info->n_vocab, ids, n, r->text.text_hash, e))
            return -1;
        r->conditions.text = slash ? slash + 1 : a->text;
        r->conditions.text_hash = r->text.text_hash;
        r->conditions.reading = kv_text_reading(r->tokenizer, a->parse_special);
    } else {
        if (bos < 0 || (size_t)bos >= info->n_vocab)
            return kv_fail(e, "this model has no BOS to begin with: give a "
                              "prompt by -f FILE");
        *ids = kv_alloc(1, sizeof(**ids));
        (*ids)[0] = bos;
        *n = 1;
    }
    kv_model_context(r->model, *n + a->greedy);
    *ids = kv_realloc(*ids, *n + a->greedy, sizeof(**ids));
    return 0;
}

/* Whether to print a row for each spec; without specs and --format, prints the
 * text itself. */
static bool is_table(const struct kvppl_args *a)
{
    return a->specs.n || strcmp(a->common.format, "csv") != 0;
}

/* Prints byte by byte; on a terminal, escapes control characters. */
static void print_text(const char *text, size_t n)
{
    char *shown;

    if (!isatty(STDOUT_FILENO)) {
        fwrite(text, 1, n, stdout);
        return;
    }
    shown = kv_shown(text, n, "\n\t", &n);
    fwrite(shown, 1, n, stdout);
    free(shown);
}

/* Nothing to compare with: the text itself, to stdout or -o. */
static int put_text(const struct kvppl_args *a, const char *text, size_t n,
                    struct kv_err *e)
{
    struct kv_out out;

    if (!a->common.output) {
        print_text(text, n);
        return 0;
    }
    if (kv_out_open(&out, a->common.output, true, e))
        return -1;
    fwrite(text, 1, n, out.file);
    return kv_out_commit(&out, e);
}

static int put(struct kvppl_run *r, const struct kvppl_args *a,
               const struct kv_spec *spec, const int32_t *ids, size_t n,
               size_t agree, struct kv_err *e)
{
    char *text;
    size_t bytes;
    int rc;

    if (kv_tokenizer_decode(r->tokenizer, ids, n, false, &text, &bytes, e))
        return -1;
    if (!r->table) {
        rc = put_text(a, text, bytes, e);
    } else {
        kv_results_conditions(r->table, &r->conditions, spec->text,
                              kv_spec_calibrated(spec) ? r->calib : NULL,
                              r->leak);
        kv_results_size(r->table, "tokens", a->greedy);
        kv_results_size(r->table, "agree", agree);
        kv_results_bytes(r->table, "output", text, bytes);
        rc = kv_results_row(r->table, e);
    }
    free(text);
    return rc;
}

/* Leading new tokens that equal the base line's. */
static size_t agreement(const int32_t *a, const int32_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The base line always runs; a shard that does not own its row leaves the row
 * out. */
static int run_specs(struct kvppl_run *r, const struct kvppl_args *a,
                     int32_t *ids, size_t n, struct kv_err *e)
{
    int32_t *base = kv_alloc(n + a->greedy, sizeof(*base));
    struct kv_spec f32;
    int rc = -1;

    memcpy(base, ids, n * sizeof(*base));
    if (kv_spec_parse(&f32, "f32", e) ||
        kv_spec_fit(&f32, &kv_model_info(r->model)->shape, e) ||
        kv_greedy(r->model, &f32, NULL, a->common.seed, base, n, a->greedy, e))
        goto out;
    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_spec *spec = &r->spec[i];
        const bool is_base = !strcmp(spec->text, f32.text);

        if (!is_base && kv_greedy(r->model, spec, r->calib, a->common.seed, ids,
                                  n, a->greedy, e))
            goto out;
        if (put(r, a, spec, is_base ? base : ids, n + a->greedy,
                is_base ? a->greedy : agreement(ids + n, base + n, a->greedy),
                e))
            goto out;
    }
    rc = 0;
out:
    free(base);
    return rc;
}

/* Options that mean nothing here are refused, not passed over. */
static int check_options(const struct kvppl_args *a, struct kv_err *e)
{
    const struct {
        bool given;
        const char *name;
    } others[] = {{a->ctx != 0, "-c"},
                  {a->windows != 0, "-n"},
                  {a->kl || a->kl_read, "--kl"},
                  {a->kl_base != NULL, "--kl-divergence-base"},
                  {a->keep_window, "--keep-window"},
                  {a->resume, "--resume"},
                  {strcmp(a->protocol, "all") != 0, "--protocol"}};

    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (others[i].given)
            return kv_fail(e, "%s does not go with --greedy", others[i].name);
    return 0;
}

int kvppl_greedy(struct kvppl_run *r, const struct kvppl_args *a,
                 struct kv_err *e)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = -1;

    r->conditions.protocol = "greedy";
    if (check_options(a, e) || kvppl_list_specs(r, a, NULL, e) ||
        prompt(r, a, &ids, &n, e))
        return -1;
    if (kvppl_load_calibration(r, a, ids, n, e) || kvppl_try_specs(r, e) ||
        (is_table(a) && kv_results_open(&r->table, a->common.output,
                                        a->common.format, columns, e)))
        goto out;
    rc = run_specs(r, a, ids, n, e);
    if (r->table && rc)
        kv_results_discard(r->table);
    else if (r->table)
        rc = kv_results_close(r->table, e);
out:
    free(ids);
    return rc;
}
