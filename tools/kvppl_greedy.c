/* kvppl --greedy: text by the most probable token, the base line's and each
 * spec's. */
#include "eval/greedy.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/base/utf8.h"
#include "lib/mixed.h"
#include "lib/tokenizer/chat_template.h"
#include "tools/kvppl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Texts that are made together: as many as share what is read of the weights,
 * and have their caches in memory at once. */
enum { TOGETHER = KV_FEW_ROWS };

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      "chat_template",
                                      "chat_date",
                                      "prompt_tokens",
                                      "tokens",
                                      "kept",
                                      "agree",
                                      "prompt_seconds",
                                      "seconds",
                                      "tokens_s",
                                      "output",
                                      "clipped",
                                      NULL};

/* A template by its name may be another model's. */
static void note_tokens(const struct kvppl_run *r, const struct kvppl_args *a)
{
    const char *const *token = kv_chat_named_tokens(a->chat_template);

    for (; *token; token++) {
        int32_t *ids = NULL;
        size_t n = 0;
        struct kv_err e;

        if (!kv_tokenizer_encode(r->tokenizer, *token, strlen(*token), true,
                                 &ids, &n, NULL, &e) &&
            n > 1)
            kv_note("--chat-template %s: %s is no token of this model, it is "
                    "spelled in %zu",
                    a->chat_template, *token, n);
        free(ids);
    }
}

/* --chat-date, or now. */
static int start_clock(struct kvppl_run *r, const struct kvppl_args *a,
                       struct kv_err *e)
{
    if (!a->chat_date)
        kv_chat_clock_local(&r->clock);
    else if (kv_chat_clock_parse(&r->clock, a->chat_date, e))
        return kv_fail_in(e, "--chat-date");
    return 0;
}

static void note_date(const struct kvppl_run *r, const struct kvppl_args *a)
{
    char now[KV_CHAT_CLOCK_CHARS];

    if (!r->clock.asked || a->chat_date)
        return;
    kv_chat_clock_text(&r->clock, now);
    kv_note("the chat template writes the date: --chat-date %s makes this "
            "prompt again",
            now);
}

/* The message of -f in the chat template, special tokens and all. */
static int chat_prompt(struct kvppl_run *r, const struct kvppl_args *a,
                       const struct kv_chat_model *chat, int32_t **ids,
                       size_t *n, struct kv_err *e)
{
    char *message, *text = NULL;
    size_t bytes, length;
    int rc;

    if (start_clock(r, a, e) ||
        kv_text_read_stream(a->text, KV_TEXT_MAX_BYTES, &message, &bytes,
                            r->text.text_hash, e))
        return -1;
    bytes -= bytes && message[bytes - 1] == '\n'; /* of the file's last line */
    rc = kv_chat_prompt(chat, a->model, a->chat_template, message, bytes,
                        &r->clock, &text, &length, e) ||
         kv_tokenizer_encode(r->tokenizer, text, length, true, ids, n, NULL, e);
    if (!rc && !*n)
        rc = kv_fail(e, "%s: the chat template makes no tokens of it", a->text);
    if (!rc) {
        note_tokens(r, a);
        note_date(r, a);
    }
    r->conditions.reading = (struct kv_reading){.known = true, .special = true};
    free(text);
    free(message);
    return rc ? -1 : 0;
}

/* The text of -f, by the chat template if there is one. */
static int text_prompt(struct kvppl_run *r, const struct kvppl_args *a,
                       const struct kv_chat_model *chat, int32_t **ids,
                       size_t *n, struct kv_err *e)
{
    const char *slash = strrchr(a->text, '/');

    r->conditions.text = slash ? slash + 1 : a->text;
    r->conditions.text_hash = r->text.text_hash;
    r->conditions.reading = kv_text_reading(r->tokenizer, a->parse_special);
    return a->chat_template
               ? chat_prompt(r, a, chat, ids, n, e)
               : kv_text_tokens(r->tokenizer, a->text, a->parse_special,
                                kv_model_info(r->model)->n_vocab, ids, n,
                                r->text.text_hash, e);
}

/* The prompt: the text of -f, or a BOS alone; room for the new tokens. */
static int prompt(struct kvppl_run *r, const struct kvppl_args *a,
                  const struct kv_chat_model *chat, struct kv_greedy *g,
                  struct kv_err *e)
{
    const int32_t bos = kv_tokenizer_bos(r->tokenizer);

    if (a->text) {
        if (text_prompt(r, a, chat, &g->ids, &g->n_prompt, e))
            return -1;
    } else {
        if (bos < 0 || (size_t)bos >= kv_model_info(r->model)->n_vocab)
            return kv_fail(e, "this model begins texts with no BOS: give a "
                              "prompt by -f FILE");
        g->ids = kv_alloc(1, sizeof(*g->ids));
        g->ids[0] = bos;
        g->n_prompt = 1;
    }
    g->n_new = a->greedy;
    g->end = chat->end;
    g->n_ends = a->ignore_eos ? 0 : chat->n_ends;
    kv_model_context(r->model, g->n_prompt + g->n_new);
    g->ids = kv_realloc(g->ids, g->n_prompt + g->n_new, sizeof(*g->ids));
    return 0;
}

/* Whether to print a row for each spec; without specs, --format and --columns,
 * prints the text itself. */
static bool is_table(const struct kvppl_args *a)
{
    return a->specs.n || a->common.columns ||
           strcmp(a->common.format, "csv") != 0;
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

/* What was made after a chat's prompt; else all of the text. */
static int put(struct kvppl_run *r, const struct kvppl_args *a,
               const struct kv_spec *spec, const struct kv_greedy *g,
               size_t agree, struct kv_err *e)
{
    const size_t skip = a->chat_template ? g->n_prompt : 0;
    struct kv_results *t = r->table;
    char *text;
    size_t bytes;
    int rc;

    if (kv_tokenizer_decode(r->tokenizer, g->ids + skip,
                            g->n_prompt + g->made - skip, false, &text, &bytes,
                            e))
        return -1;
    if (!t) {
        rc = put_text(a, text, bytes, e);
    } else {
        kv_results_conditions(t, &r->conditions, spec,
                              kv_spec_calibrated(spec) ? r->calib : NULL,
                              r->leak);
        kv_results_text(t, "chat_template", a->chat_template);
        if (r->clock.asked) {
            char now[KV_CHAT_CLOCK_CHARS];

            kv_chat_clock_text(&r->clock, now);
            kv_results_text(t, "chat_date", now);
        }
        kv_results_size(t, "prompt_tokens", g->n_prompt);
        kv_results_size(t, "tokens", g->made);
        kv_results_real(t, "kept", g->bits.kept_values / g->bits.values);
        kv_results_size(t, "agree", agree);
        kv_results_real(t, "prompt_seconds", g->prompt_seconds);
        kv_results_real(t, "seconds", g->seconds);
        kv_results_real(t, "tokens_s",
                        g->made > 1 ? (double)(g->made - 1) / g->seconds : NAN);
        kv_results_bytes(t, "output", text, bytes);
        kv_results_size(t, "clipped", (uint64_t)g->bits.clipped);
        rc = kv_results_row(t, e);
    }
    free(text);
    return rc;
}

/* Leading new tokens that equal the base line's. */
static size_t agreement(const struct kv_greedy *a, const struct kv_greedy *b)
{
    size_t i = 0;

    while (i < a->made && i < b->made &&
           a->ids[a->n_prompt + i] == b->ids[b->n_prompt + i])
        i++;
    return i;
}

/* Runs [first, end) of n, together. */
static int run_some(struct kvppl_run *r, const struct kvppl_args *a,
                    struct kv_greedy *run, size_t first, size_t end, size_t n,
                    struct kv_err *e)
{
    if (end - first == 1)
        snprintf(r->what, sizeof(r->what), "row %zu of %zu, %s", end, n,
                 run[first].spec->text);
    else
        snprintf(r->what, sizeof(r->what), "rows %zu to %zu of %zu", first + 1,
                 end, n);
    return kv_greedy(r->model, run + first, end - first, r->calib,
                     a->common.seed, &r->progress, e);
}

/* run [n]: the base line's, and one for every other spec. */
static int run_specs(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_greedy *run, size_t n, struct kv_err *e)
{
    size_t done = 0, next = 1;

    kv_progress_init(&r->progress, r->what,
                     (n + TOGETHER - 1) / TOGETHER * run->n_new);
    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_spec *spec = &r->spec[i];
        const size_t mine = strcmp(spec->text, run->spec->text) ? next++ : 0;

        if (mine >= done) {
            const size_t end = n - done < TOGETHER ? n : done + TOGETHER;

            if (run_some(r, a, run, done, end, n, e))
                return -1;
            done = end;
        }
        kv_common_note_stored(spec, &run[mine].bits);
        if (put(r, a, spec, &run[mine], agreement(&run[mine], run), e))
            return -1;
    }
    return 0;
}

/* The base line always runs; a shard that does not own its row leaves the row
 * out. */
static int run_all(struct kvppl_run *r, const struct kvppl_args *a,
                   const struct kv_greedy *g, struct kv_err *e)
{
    const size_t tokens = g->n_prompt + g->n_new;
    struct kv_greedy *run = kv_alloc(r->n_specs + 1, sizeof(*run));
    struct kv_spec f32;
    size_t n = 0;
    int rc = kv_spec_parse(&f32, "f32", e) ||
             kv_spec_fit(&f32, &kv_model_info(r->model)->shape, e);

    for (size_t i = 0; i <= r->n_specs && !rc; i++) {
        const struct kv_spec *spec = i ? &r->spec[i - 1] : &f32;

        if (i && !strcmp(spec->text, f32.text))
            continue;
        run[n] = *g;
        run[n].spec = spec;
        run[n].ids = kv_alloc(tokens, sizeof(*g->ids));
        memcpy(run[n++].ids, g->ids, g->n_prompt * sizeof(*g->ids));
    }
    rc = rc || run_specs(r, a, run, n, e);
    while (n)
        free(run[--n].ids);
    free(run);
    return rc ? -1 : 0;
}

/* Options that mean nothing here are refused, not passed over. */
static int check_options(const struct kvppl_args *a, struct kv_err *e)
{
    const struct {
        bool given;
        const char *name;
    } others[] = {{a->ctx != 0, "-c"},
                  {a->windows != 0, "-n"},
                  {a->bos, "--bos"},
                  {a->kl || a->kl_read, "--kl"},
                  {a->kl_base != NULL, "--kl-divergence-base"},
                  {a->keep_window, "--keep-window"},
                  {a->resume, "--resume"},
                  {a->no_base, "--no-base"},
                  {a->chat_template && !a->text, "--chat-template without -f"},
                  {a->chat_date && !a->chat_template,
                   "--chat-date without --chat-template"},
                  {strcmp(a->protocol, "all") != 0, "--protocol"}};

    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (others[i].given)
            return kv_fail(e, "%s does not go with --greedy", others[i].name);
    return 0;
}

int kvppl_greedy(struct kvppl_run *r, const struct kvppl_args *a,
                 struct kv_err *e)
{
    struct kv_chat_model chat = {0};
    struct kv_greedy g = {0};
    int rc = -1;

    r->conditions.protocol = "greedy";
    r->protocol = (struct kv_protocol){.kind = KV_PREFILL, .step = 1};
    if (check_options(a, e) || kvppl_list_specs(r, a, e) ||
        kv_spec_alone(r->spec, r->n_specs, "--greedy", e) ||
        kv_chat_model_read(&chat, a->model, e) || prompt(r, a, &chat, &g, e) ||
        kvppl_load_calibration(r, a, g.ids, g.n_prompt, e))
        goto out;
    r->protocol.prefill = g.n_prompt;
    if (kvppl_try_specs(r, g.n_prompt + g.n_new, e) ||
        (is_table(a) && kv_common_table(&r->table, &a->common, a->common.output,
                                        columns, r->spec, r->n_all, e)))
        goto out;
    if (chat.asked)
        kv_note("%s asks for %s: --greedy takes the most probable token all "
                "the same",
                a->model, chat.asked);
    rc = run_all(r, a, &g, e);
    if (r->table && rc)
        kv_results_discard(r->table);
    else if (r->table)
        rc = kv_results_close(r->table, e);
out:
    kv_chat_model_clear(&chat);
    free(g.ids);
    return rc;
}
