/* kvgen -f: answers that the model writes. */
#include "tools/columns_about.h"
#include "tools/kvgen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const fields[] = {KVGEN_ANSWER_FIELDS, NULL};

/* Writes the answer's text without the end token, and only up to a stop
 * string. */
static int put_text(const struct kvgen_run *r, const struct kv_out *out,
                    const struct kv_answer *x, struct kv_err *e)
{
    const size_t n = x->made - (x->finish == KV_FINISH_EOS);
    char *text;
    size_t bytes;

    if (kv_answer_cut(r->tokenizer, x->prompt, x->n_prompt, x->ids, n,
                      &x->stops, x->least, &text, &bytes, e))
        return -1;
    kvgen_put_json(out, "text", json_stringn(text, bytes));
    free(text);
    return 0;
}

static int put_fields(const struct kvgen_run *r, const struct kv_out *out,
                      const struct kv_answer *x, const struct kv_answer *base,
                      struct kv_err *e)
{
    if (put_text(r, out, x, e))
        return -1;
    kvgen_put_json(out, "finish_reason",
                   json_string(kv_finish_name(x->finish)));
    kvgen_put_real(out, "agrees",
                   base ? (double)kv_answer_agrees(x, base) : NAN);
    return 0;
}

static bool take_fields(const json_t *line, struct kv_answer *x)
{
    const char *why = json_string_value(json_object_get(line, "finish_reason"));

    for (x->finish = KV_FINISH_LENGTH; x->finish < KV_FINISH_FAILED;
         x->finish++)
        if (why && !strcmp(why, kv_finish_name(x->finish)))
            return true;
    return false;
}

/* ---- rows ---------------------------------------------------------------- */

static const char *const columns[] = {KVGEN_ANSWER_COLUMNS, NULL};

void kvgen_about_answers(void)
{
    kv_columns_about("kvgen", columns);
}

enum {
    PROMPT_TOKENS,
    TOKENS,
    AGREE,
    SAME,
    PROMPT_SECONDS,
    SECONDS,
    SPEED,
    MEANS
};

struct summary {
    struct kv_window_mean mean[MEANS];
    size_t by[KV_FINISH_STOP + 1];
};

static void measure(const struct kv_answer *x, const struct kv_answer *base,
                    double value[MEANS])
{
    const size_t agrees = base ? kv_answer_agrees(x, base) : 0;
    const bool same = base && agrees == x->made && agrees == base->made;

    value[PROMPT_TOKENS] = (double)x->n_prompt;
    value[TOKENS] = (double)x->made;
    value[AGREE] = base ? (double)agrees : NAN;
    value[SAME] = base ? same : NAN;
    value[PROMPT_SECONDS] = x->prompt_seconds;
    value[SECONDS] = x->seconds;
    value[SPEED] = kvgen_speed(x);
}

static void summarize(const struct kvgen_run *r, const struct kvgen_args *a,
                      size_t spec, struct summary *s)
{
    *s = (struct summary){0};
    for (size_t i = 0; i < r->n_mine; i++) {
        struct kv_window_mean over[MEANS] = {{0}};

        for (size_t j = 0; j < a->samples; j++) {
            const struct kv_answer *x = kvgen_answer(r, a, i, spec, j);
            double value[MEANS];

            measure(x, kvgen_reference(r, a, i, j), value);
            for (int k = 0; k < MEANS; k++)
                kvgen_mean_add(&over[k], value[k]);
            s->by[x->finish]++;
        }
        for (int k = 0; k < MEANS; k++)
            kvgen_mean_add(&s->mean[k], kv_window_mean_value(&over[k]));
    }
}

/* Writes --stop's strings as a list; a blank cell if there are none. */
static void put_stops(const struct kvgen_args *a, struct kv_results *t)
{
    json_t *list = json_array();
    char *text;

    for (size_t i = 0; i < a->stops.n; i++)
        json_array_append_new(list, json_string(a->stops.item[i]));
    text = json_dumps(list, 0);
    kv_results_text(t, "stops", a->stops.n ? text : NULL);
    free(text);
    json_decref(list);
}

static void put_asked(const struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t)
{
    const struct kv_sampling *s = &a->sampling;
    char now[KV_CHAT_CLOCK_CHARS];

    if (r->n_messages)
        kv_results_text(t, "chat_template", a->chat_template);
    if (r->clock.asked) {
        kv_chat_clock_text(&r->clock, now);
        kv_results_text(t, "chat_date", now);
    }
    kv_results_size(t, "max_tokens", a->max_tokens);
    put_stops(a, t);
    kv_results_real(t, "temperature", s->temperature);
    kv_results_size(t, "top_k", s->top_k);
    kv_results_real(t, "top_p", s->top_p);
    kv_results_real(t, "repetition_penalty", s->repetition_penalty);
    kv_results_size(t, "min_tokens", a->min_tokens);
}

static void put_cells(const struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t, size_t spec)
{
    static const struct {
        const char *mean, *error;
    } names[MEANS] = {{"prompt_tokens", NULL},    {"tokens", "tokens_se"},
                      {"agree", "agree_se"},      {"same", "same_se"},
                      {"prompt_seconds", NULL},   {"seconds", NULL},
                      {"tokens_s", "tokens_s_se"}};
    struct summary s;

    summarize(r, a, spec, &s);
    put_asked(r, a, t);
    kv_results_size(t, "samples", a->samples);
    kv_results_size(t, "answers", r->n_mine * a->samples);
    for (int k = 0; k < MEANS; k++) {
        kv_results_real(t, names[k].mean, kv_window_mean_value(&s.mean[k]));
        if (names[k].error)
            kv_results_real(t, names[k].error, kv_window_mean_se(&s.mean[k]));
    }
    kv_results_size(t, "by_eos", s.by[KV_FINISH_EOS]);
    kv_results_size(t, "by_stop", s.by[KV_FINISH_STOP]);
    kv_results_size(t, "by_length", s.by[KV_FINISH_LENGTH]);
}

const struct kvgen_job kvgen_answers = {fields, columns, put_fields,
                                        take_fields, put_cells};
