#include "tools/serve/fields.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = 1, CHAT = 2, BOTH = 3 };

/* Fields that request.c reads, and fields that change no answer. */
static const struct {
    const char *name;
    int where;
} taken[] = {
    {"model", BOTH},
    {"prompt", TEXT},
    {"messages", CHAT},
    {"max_tokens", BOTH},
    {"max_completion_tokens", CHAT},
    {"min_tokens", BOTH},
    {"temperature", BOTH},
    {"top_p", BOTH},
    {"top_k", BOTH},
    {"repetition_penalty", BOTH},
    {"n", BOTH},
    {"stop", BOTH},
    {"seed", BOTH},
    {"logprobs", BOTH},
    {"top_logprobs", CHAT},
    {"echo", TEXT},
    {"stream", BOTH},
    {"stream_options", BOTH},
    {"chat_template", CHAT},
    {"user", BOTH},
    {"metadata", BOTH},
    {"safety_identifier", BOTH},
    {"prompt_cache_key", BOTH},
    {"service_tier", BOTH},
    {NULL, 0},
};

/* Fields that are not implemented, and the value with which they have no
 * effect. */
static const struct {
    const char *name, *none;
} idle[] = {
    {"logit_bias", "{}"},
    {"presence_penalty", "0"},
    {"frequency_penalty", "0"},
    {"tools", "[]"},
    {"functions", "[]"},
    {"tool_choice", "\"none\""},
    {"suffix", "\"\""},
    {"response_format", "{\"type\": \"text\"}"},
    {"min_p", "0"},
    {"ignore_eos", "false"},
    {"store", "false"},
    {NULL, NULL},
};

static bool is_taken(const char *name, int where)
{
    size_t i = 0;

    while (taken[i].name && strcmp(taken[i].name, name) != 0)
        i++;
    return taken[i].name && taken[i].where & where;
}

static bool is_same(const json_t *x, const json_t *y)
{
    return json_is_number(x) && json_is_number(y)
               ? json_number_value(x) == json_number_value(y)
               : json_equal(x, y);
}

/* The value with which a field has no effect; NULL: there is none. */
static const char *none_of(const char *name)
{
    size_t i = 0;

    while (idle[i].name && strcmp(idle[i].name, name) != 0)
        i++;
    return idle[i].none;
}

static bool is_none(const char *none, const json_t *x)
{
    json_t *y = none ? json_loads(none, JSON_DECODE_ANY, NULL) : NULL;
    const bool is = y && is_same(x, y);

    json_decref(y);
    return is;
}

/* best_of must equal n, so that no answer is discarded. */
static bool is_best_of_all(const json_t *body, const char *name,
                           const json_t *x)
{
    const json_t *n = json_object_get(body, "n");

    return !strcmp(name, "best_of") &&
           (n ? is_same(x, n) : json_integer_value(x) == 1);
}

int kv_fields_known(json_t *body, bool chat, struct kv_request_fault *f)
{
    const char *name;
    json_t *x;

    json_object_foreach(body, name, x)
    {
        const char *none = none_of(name);

        if (json_is_null(x) || is_taken(name, chat ? CHAT : TEXT) ||
            is_none(none, x) || is_best_of_all(body, name, x))
            continue;
        snprintf(f->field, sizeof(f->field), "%s", name);
        return kv_fail(&f->e, "%s is not supported here%s%s", f->field,
                       none ? ": expected none, or " : "", none ? none : "");
    }
    return 0;
}

json_t *kv_field(const json_t *body, const char *name,
                 struct kv_request_fault *f)
{
    json_t *x = json_object_get(body, name);

    snprintf(f->field, sizeof(f->field), "%s", name);
    return json_is_null(x) ? NULL : x;
}

int kv_field_bool(const json_t *body, const char *name, bool *x,
                  struct kv_request_fault *f)
{
    const json_t *v = kv_field(body, name, f);

    if (v && !json_is_boolean(v))
        return kv_fail(&f->e, "%s: expected true or false", name);
    *x = v ? json_is_true(v) : *x;
    return 0;
}

int kv_field_size(const json_t *body, const char *name, size_t least,
                  size_t most, size_t *x, struct kv_request_fault *f)
{
    const json_t *v = kv_field(body, name, f);
    const json_int_t n = json_integer_value(v);

    if (!v)
        return 0;
    if (!json_is_integer(v) || n < (json_int_t)least || n > (json_int_t)most)
        return kv_fail(&f->e, "%s: expected a whole number from %zu to %zu",
                       name, least, most);
    *x = (size_t)n;
    return 0;
}

int kv_field_real(const json_t *body, const char *name, double least,
                  double most, double *x, struct kv_request_fault *f)
{
    const json_t *v = kv_field(body, name, f);

    if (!v)
        return 0;
    if (!json_is_number(v) || !(json_number_value(v) >= least) ||
        !(json_number_value(v) <= most))
        return kv_fail(&f->e, "%s: expected a number from %g to %g", name,
                       least, most);
    *x = json_number_value(v);
    return 0;
}
