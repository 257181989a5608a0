/* kvgen's output: a line for each answer, a row for each spec. */
#include "lib/mixed.h"
#include "lib/seq/bits.h"
#include "tools/kvgen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ------------------------------------------------------------- */

const char *const kvgen_fields[] = {
    "spec",     "sample",         "text",
    "tokens",   "finish_reason",  "bits",
    "kept",     "prompt_seconds", "seconds",
    "tokens_s", "agrees",         "prompt_tokens",
    NULL};

static struct kv_answer *answer_at(const struct kvgen_run *r,
                                   const struct kvgen_args *a, size_t prompt,
                                   size_t spec, size_t sample)
{
    return &r->answer[(prompt * r->n_specs + spec) * a->samples + sample];
}

static double bits_of(const struct kv_answer *x)
{
    return 8 * x->bits.bytes / x->bits.values;
}

static double speed(const struct kv_answer *x)
{
    return x->made > 1 ? (double)(x->made - 1) / x->seconds : NAN;
}

/* NaN is null. */
static void put_real(FILE *f, const char *name, double x)
{
    if (isfinite(x))
        fprintf(f, ", \"%s\": %.9g", name, x);
    else
        fprintf(f, ", \"%s\": null", name);
}

/* Characters that a terminal would act on go to it as \u escapes. */
static size_t flags_for(const struct kv_out *out)
{
    return out->terminal ? JSON_ENCODE_ANY | JSON_ENSURE_ASCII
                         : JSON_ENCODE_ANY;
}

static void put_json(const struct kv_out *out, const char *name, json_t *value)
{
    fprintf(out->file, ", \"%s\": ", name);
    json_dumpf(value, out->file, flags_for(out));
    json_decref(value);
}

/* Without the end token, and from a stop string on. */
static int put_text(const struct kvgen_run *r, const struct kv_answer *x,
                    struct kv_err *e)
{
    const size_t n = x->made - (x->finish == KV_FINISH_EOS);
    char *text;
    size_t bytes;

    if (kv_answer_text(r->tokenizer, x->prompt, x->n_prompt, x->ids, n, &text,
                       &bytes, e))
        return -1;
    bytes = kv_stops_find(&x->stops, text, bytes);
    put_json(&r->out, "text", json_stringn(text, bytes));
    free(text);
    return 0;
}

/* The fields of the prompt, except its id. */
static void put_carried(const struct kv_prompt *p, const struct kv_out *out)
{
    json_t *rest = json_copy(p->fields);

    json_object_del(rest, "id");
    fputs(", ", out->file);
    json_dumpf(rest, out->file, JSON_EMBED | flags_for(out));
    json_decref(rest);
}

static int put_answer(const struct kvgen_run *r, const struct kv_prompt *p,
                      const struct kv_answer *x, const struct kv_answer *base,
                      size_t sample, struct kv_err *e)
{
    json_t *id = json_object_get(p->fields, "id");
    FILE *f = r->out.file;

    fputs("{\"id\": ", f);
    if (id)
        json_dumpf(id, f, flags_for(&r->out));
    else
        fprintf(f, "%zu", p->line);
    put_json(&r->out, "spec", json_string(x->spec->text));
    fprintf(f, ", \"sample\": %zu", sample);
    if (put_text(r, x, e))
        return -1;
    fprintf(f, ", \"tokens\": %zu, \"finish_reason\": \"%s\"", x->made,
            kv_finish_name(x->finish));
    fprintf(f, ", \"prompt_tokens\": %zu", x->n_prompt);
    put_real(f, "agrees", base ? (double)kv_answer_agrees(x, base) : NAN);
    put_real(f, "bits", bits_of(x));
    put_real(f, "kept", x->bits.kept_values / x->bits.values);
    put_real(f, "prompt_seconds", x->prompt_seconds);
    put_real(f, "seconds", x->seconds);
    put_real(f, "tokens_s", speed(x));
    put_carried(p, &r->out);
    fputs("}\n", f);
    return 0;
}

int kvgen_put_answers(struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_err *e)
{
    const size_t per_prompt = r->n_specs * a->samples;

    for (size_t i = 0; i < r->n_answers; i++) {
        const size_t prompt = i / per_prompt, sample = i % a->samples;
        const struct kv_answer *base =
            r->reference < r->n_specs
                ? answer_at(r, a, prompt, r->reference, sample)
                : NULL;

        if (put_answer(r, &r->prompts.at[r->mine[prompt]], &r->answer[i], base,
                       sample, e))
            return -1;
    }
    return kv_out_commit(&r->out, e);
}

/* ---- rows ---------------------------------------------------------------- */

const char *const kvgen_columns[] = {KV_CONDITION_COLUMNS,
                                     KV_BITS_COLUMNS,
                                     "kept",
                                     "chat_template",
                                     "chat_date",
                                     "max_tokens",
                                     "stops",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "repetition_penalty",
                                     "shard",
                                     "batch",
                                     "prompts",
                                     "samples",
                                     "answers",
                                     "prompt_tokens",
                                     "tokens",
                                     "tokens_se",
                                     "agree",
                                     "agree_se",
                                     "same",
                                     "same_se",
                                     "by_eos",
                                     "by_stop",
                                     "by_length",
                                     "prompt_seconds",
                                     "seconds",
                                     "tokens_s",
                                     "tokens_s_se",
                                     NULL};

/* Mean and spread of the prompts' means over their samples. */
struct mean {
    double sum, squares;
    size_t n;
};

static void add(struct mean *m, double x)
{
    if (!isfinite(x))
        return;
    m->sum += x;
    m->squares += x * x;
    m->n++;
}

static double mean_of(const struct mean *m)
{
    return m->n ? m->sum / (double)m->n : NAN;
}

/* The standard error; NaN of one. */
static double error_of(const struct mean *m)
{
    const double n = (double)m->n, spread = m->squares - m->sum * m->sum / n;

    return m->n > 1 ? sqrt(fmax(spread, 0) / (n - 1) / n) : NAN;
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
    struct mean mean[MEANS];
    size_t by[KV_FINISH_STOP + 1];
    struct kv_bits bits;
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
    value[SPEED] = speed(x);
}

static void summarize(const struct kvgen_run *r, const struct kvgen_args *a,
                      size_t spec, struct summary *s)
{
    *s = (struct summary){0};
    for (size_t i = 0; i < r->n_mine; i++) {
        struct mean over[MEANS] = {{0}};

        for (size_t j = 0; j < a->samples; j++) {
            const struct kv_answer *x = answer_at(r, a, i, spec, j);
            double value[MEANS];

            measure(x,
                    r->reference < r->n_specs
                        ? answer_at(r, a, i, r->reference, j)
                        : NULL,
                    value);
            for (int k = 0; k < MEANS; k++)
                add(&over[k], value[k]);
            s->by[x->finish]++;
            kv_bits_add(&s->bits, &x->bits);
        }
        for (int k = 0; k < MEANS; k++)
            add(&s->mean[k], mean_of(&over[k]));
    }
    kv_bits_of_spec(&s->bits, &r->spec[spec], &kv_model_info(r->model)->shape,
                    r->calib, KV_ALL, KV_ALL);
}

/* --stop as a list, blank without. */
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
    kv_results_text(t, "shard", a->shard);
    kv_results_size(t, "batch", r->batch);
}

static int put_row(struct kvgen_run *r, const struct kvgen_args *a,
                   struct kv_results *t, size_t spec, struct kv_err *e)
{
    static const struct {
        const char *mean, *error;
    } names[MEANS] = {{"prompt_tokens", NULL},    {"tokens", "tokens_se"},
                      {"agree", "agree_se"},      {"same", "same_se"},
                      {"prompt_seconds", NULL},   {"seconds", NULL},
                      {"tokens_s", "tokens_s_se"}};
    const struct kv_spec *own = &r->spec[spec];
    struct summary s;

    summarize(r, a, spec, &s);
    kv_common_note_stored(own, &s.bits);
    kv_results_conditions(t, &r->conditions, own,
                          kv_spec_calibrated(own) ? r->calib : NULL, r->leak);
    kv_results_bits(t, &s.bits);
    kv_results_real(t, "kept", s.bits.kept_values / s.bits.values);
    put_asked(r, a, t);
    kv_results_size(t, "prompts", r->n_mine);
    kv_results_size(t, "samples", a->samples);
    kv_results_size(t, "answers", r->n_mine * a->samples);
    for (int k = 0; k < MEANS; k++) {
        kv_results_real(t, names[k].mean, mean_of(&s.mean[k]));
        if (names[k].error)
            kv_results_real(t, names[k].error, error_of(&s.mean[k]));
    }
    kv_results_size(t, "by_eos", s.by[KV_FINISH_EOS]);
    kv_results_size(t, "by_stop", s.by[KV_FINISH_STOP]);
    kv_results_size(t, "by_length", s.by[KV_FINISH_LENGTH]);
    return kv_results_row(t, e);
}

int kvgen_put_rows(struct kvgen_run *r, const struct kvgen_args *a,
                   struct kv_results *t, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_specs; i++)
        if (put_row(r, a, t, i, e))
            return -1;
    return 0;
}
