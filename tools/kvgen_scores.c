/* kvgen --score: the log-likelihood of given continuations. */
#include "lib/base/alloc.h"
#include "tools/columns_about.h"
#include "tools/kvgen.h"

#include <math.h>
#include <stdlib.h>

static const char *const fields[] = {
    "spec",          "sample", "log_likelihood", "is_greedy", "tokens",
    "bits",          "kept",   "prompt_seconds", "seconds",   "tokens_s",
    "prompt_tokens", "ids",    "log_probs",      "key",       "cache",
    "greedy_tokens", NULL};

static double log_likelihood(const struct kv_answer *x)
{
    double sum = 0;

    for (size_t i = x->n_context; i < x->made; i++)
        sum += x->log_prob[i];
    return sum;
}

/* The number of leading tokens that are each the most probable token, so that a
 * greedy answer would have them too. */
static size_t greedy_tokens(const struct kv_answer *x)
{
    size_t end = x->n_context;

    while (end < x->made && x->top[end * x->n_top].id == x->ids[end])
        end++;
    return end - x->n_context;
}

static bool is_greedy(const struct kv_answer *x)
{
    return greedy_tokens(x) == x->made - x->n_context;
}

static int put_fields(const struct kvgen_run *r, const struct kv_out *out,
                      const struct kv_answer *x, const struct kv_answer *base,
                      struct kv_err *e)
{
    json_t *each = json_array();

    (void)r;
    (void)base;
    (void)e;
    for (size_t i = x->n_context; i < x->made; i++)
        json_array_append_new(each, json_real(x->log_prob[i]));
    kvgen_put_real(out, "log_likelihood", log_likelihood(x));
    kvgen_put_json(out, "is_greedy", json_boolean(is_greedy(x)));
    fprintf(out->file, ", \"greedy_tokens\": %zu", greedy_tokens(x));
    fputs(", \"log_probs\": ", out->file);
    json_dumpf(each, out->file, JSON_REAL_PRECISION(9));
    json_decref(each);
    return 0;
}

/* Reads a line's results.  Instead of the most probable tokens it has only the
 * number of leading tokens that are the most probable. */
static bool take_fields(const json_t *line, struct kv_answer *x)
{
    const json_t *each = json_object_get(line, "log_probs"), *one;
    const json_t *greedy = json_object_get(line, "greedy_tokens");
    size_t i;

    if (json_array_size(each) != x->made - x->n_context ||
        !json_is_integer(greedy))
        return false;
    x->log_prob = kv_alloc(x->made, sizeof(*x->log_prob));
    x->top = kv_alloc(x->made, x->n_top * sizeof(*x->top));
    json_array_foreach(each, i, one)
    {
        if (!json_is_number(one) || !(json_number_value(one) <= 0))
            return false;
        const size_t at = x->n_context + i;

        x->log_prob[at] = (float)json_number_value(one);
        x->top[at * x->n_top].id =
            (json_int_t)i < json_integer_value(greedy) ? x->ids[at] : -1;
    }
    return true;
}

/* ---- rows ---------------------------------------------------------------- */

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      KV_BITS_COLUMNS,
                                      "kept",
                                      "shard",
                                      "batch",
                                      "prompts",
                                      "prompt_tokens",
                                      "tokens",
                                      "log_likelihood",
                                      "log_likelihood_se",
                                      "d_log_likelihood",
                                      "d_log_likelihood_se",
                                      "ppl",
                                      "greedy",
                                      "greedy_se",
                                      "prompt_seconds",
                                      "seconds",
                                      "tokens_s",
                                      NULL};

void kvgen_about_scores(void)
{
    kv_columns_about("kvgen --score", columns);
}

struct summary {
    struct kv_window_mean likelihood, difference, greedy, prompt, tokens,
        before, seconds, speed;
};

static void summarize(const struct kvgen_run *r, const struct kvgen_args *a,
                      size_t spec, struct summary *s)
{
    *s = (struct summary){0};
    for (size_t i = 0; i < r->n_mine; i++) {
        const struct kv_answer *x = kvgen_answer(r, a, i, spec, 0);
        const struct kv_answer *base = kvgen_reference(r, a, i, 0);
        const double own = log_likelihood(x);

        kvgen_mean_add(&s->likelihood, own);
        kvgen_mean_add(&s->difference,
                       base && base != x ? own - log_likelihood(base) : NAN);
        kvgen_mean_add(&s->greedy, is_greedy(x));
        kvgen_mean_add(&s->prompt, (double)(x->n_prompt + x->n_context));
        kvgen_mean_add(&s->tokens, (double)(x->made - x->n_context));
        kvgen_mean_add(&s->before, x->prompt_seconds);
        kvgen_mean_add(&s->seconds, x->seconds);
        kvgen_mean_add(&s->speed, kvgen_speed(x));
    }
}

static void put_cells(const struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t, size_t spec)
{
    struct summary s;

    summarize(r, a, spec, &s);
    kv_results_real(t, "prompt_tokens", kv_window_mean_value(&s.prompt));
    kv_results_real(t, "tokens", kv_window_mean_value(&s.tokens));
    kv_results_real(t, "log_likelihood", kv_window_mean_value(&s.likelihood));
    kv_results_real(t, "log_likelihood_se", kv_window_mean_se(&s.likelihood));
    kv_results_real(t, "d_log_likelihood", kv_window_mean_value(&s.difference));
    kv_results_real(t, "d_log_likelihood_se", kv_window_mean_se(&s.difference));
    kv_results_real(t, "ppl", exp(-s.likelihood.sum / s.tokens.sum));
    kv_results_real(t, "greedy", kv_window_mean_value(&s.greedy));
    kv_results_real(t, "greedy_se", kv_window_mean_se(&s.greedy));
    kv_results_real(t, "prompt_seconds", kv_window_mean_value(&s.before));
    kv_results_real(t, "seconds", kv_window_mean_value(&s.seconds));
    kv_results_real(t, "tokens_s", kv_window_mean_value(&s.speed));
}

const struct kvgen_job kvgen_scores = {fields, columns, put_fields, take_fields,
                                       put_cells};
