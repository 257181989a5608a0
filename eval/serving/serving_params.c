#include "eval/serving/serving_params.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value: its name, its offset in the struct, and its range; counts and flags
 * are whole numbers. */
struct value {
    const char *name;
    size_t at;
    double least, most;
    bool whole;
};

/* V is a real value, N a whole one; in settings S is a real value, F a flag. */
#define V(type, name, least, most)                             \
    {                                                          \
#name, offsetof(struct type, name), least, most, false \
    }
#define N(type, name, least, most)                            \
    {                                                         \
#name, offsetof(struct type, name), least, most, true \
    }
#define S(part, name, least, most)                                           \
    {                                                                        \
#name, offsetof(struct kv_serving_settings, part.name), least, most, \
            false                                                            \
    }
#define F(part, name)                                                      \
    {                                                                      \
#name, offsetof(struct kv_serving_settings, part.name), 0, 1, true \
    }

static const struct value gpu_values[] = {
    V(kv_serving_gpu, fp16_tflops, 1e-9, 1e15),
    V(kv_serving_gpu, int8_tops, 0, 1e15),
    V(kv_serving_gpu, memory_gbs, 1e-9, 1e15),
    V(kv_serving_gpu, memory_gib, 1e-9, 1e15),
    V(kv_serving_gpu, nic_gbits, 1e-9, 1e15),
    N(kv_serving_gpu, gpus, 1, 1e4),
    N(kv_serving_gpu, instances, 1, 1e4),
    V(kv_serving_gpu, nic_share, 1e-9, 1),
    {0}};
static const struct value model_values[] = {
    V(kv_serving_model, parameters, 1, 1e15),
    N(kv_serving_model, layers, 1, 1e4),
    N(kv_serving_model, heads, 1, 1e5),
    N(kv_serving_model, kv_heads, 1, 1e5),
    N(kv_serving_model, head_dim, 1, 1e5),
    N(kv_serving_model, longest, 2, 1e9),
    {0}};
static const struct value parallel_values[] = {
    N(kv_serving_parallel, tp, 1, 64), N(kv_serving_parallel, pp, 1, 64), {0}};
static const struct value dataset_values[] = {
    V(kv_serving_dataset, input_mean, 1, 1e9),
    N(kv_serving_dataset, input_least, 1, 1e9),
    N(kv_serving_dataset, input_most, 1, 1e9),
    V(kv_serving_dataset, output_mean, 1, 1e9),
    N(kv_serving_dataset, output_least, 1, 1e9),
    N(kv_serving_dataset, output_most, 1, 1e9),
    {0}};
static const struct value scheme_values[] = {
    V(kv_serving_scheme, bits, 0, 64),
    V(kv_serving_scheme, dequantize, 0, 1e6),
    N(kv_serving_scheme, partition, 0, 1 << 20),
    N(kv_serving_scheme, se, 0, 1),
    N(kv_serving_scheme, rqe, 0, 1),
    {0}};
static const struct value prefill_values[] = {S(prefill, efficiency, 1e-9, 1),
                                              S(prefill, attention, 1e-9, 1e3),
                                              F(prefill, causal),
                                              S(prefill, fixed_s, 0, 1e6),
                                              S(prefill, int8_linear, 0, 1e3),
                                              F(prefill, overlap),
                                              S(prefill, quantize, 0, 1e6),
                                              {0}};
static const struct value transfer_values[] = {S(transfer, fixed_s, 0, 1e6),
                                               S(transfer, sink_share, 1e-9, 1),
                                               F(transfer, by_instance),
                                               F(transfer, pipelined),
                                               {0}};
static const struct value decode_values[] = {
    S(decode, weights_share, 1e-9, 1),   S(decode, step_s, 0, 1e6),
    S(decode, kv_share, 1e-9, 1),        S(decode, side_by_side, 1, 1e6),
    S(decode, attention_share, 1e-9, 1), S(decode, dequantize, 0, 1e6),
    S(decode, rqe_operations, 0, 1e6),   {0}};
static const struct value memory_values[] = {
    S(memory, activations, 0, 1),
    S(memory, activations_a_token, 0, 1),
    S(memory, limit, 1e-9, 1),
    F(memory, gate),
    {0}};
static const struct value requests_values[] = {
    S(requests, concentration, .1, 1e6),
    S(requests, warm_up, 0, .9),
    S(requests, cool_down, 0, .9),
    {0}};

/* The sections of the file: first sections whose objects have free names, then
 * sections of settings. */
static const struct section {
    const char *name;
    const struct value *values;
    size_t depth; /* levels of names above the values */
} sections[] = {
    {"gpus", gpu_values, 1},          {"models", model_values, 1},
    {"datasets", dataset_values, 1},  {"schemes", scheme_values, 1},
    {"parallel", parallel_values, 2}, {"prefill", prefill_values, 0},
    {"transfer", transfer_values, 0}, {"decode", decode_values, 0},
    {"memory", memory_values, 0},     {"requests", requests_values, 0}};

enum { SECTIONS = sizeof(sections) / sizeof(*sections) };

static const char *const kinds[] = {"exact",  "read",    "external", "derived",
                                    "fitted", "assumed", "measured", "given"};

static bool one_of_kinds(const json_t *kind)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (json_is_string(kind) && !strcmp(json_string_value(kind), kinds[i]))
            return true;
    return false;
}

static int check_value(const json_t *v, const struct value *is,
                       const char *where, struct kv_err *e)
{
    const json_t *number = json_object_get(v, "value");
    const double x = json_number_value(number);

    if (!json_is_number(number) || json_object_size(v) != 3 ||
        !json_is_string(json_object_get(v, "source")) ||
        !one_of_kinds(json_object_get(v, "kind")))
        return kv_fail(e,
                       "%s.%s: expected {\"value\": a number, \"kind\": exact, "
                       "read, external, derived, fitted, assumed, measured or "
                       "given, \"source\": a text}",
                       where, is->name);
    if (!(x >= is->least && x <= is->most))
        return kv_fail(e, "%s.%s is %g: expected %g to %g", where, is->name, x,
                       is->least, is->most);
    if (is->whole && floor(x) != x)
        return kv_fail(e, "%s.%s is %.12g: expected a whole number", where,
                       is->name, x);
    return 0;
}

static const struct value *find(const struct value *values, const char *name)
{
    for (; values->name; values++)
        if (!strcmp(values->name, name))
            return values;
    return NULL;
}

/* Checks an object of values, or with depth > 0 an object of such objects. */
static int check_object(json_t *o, const struct value *values, size_t depth,
                        const char *where, struct kv_err *e)
{
    char inner[256];
    const char *name;
    json_t *v;

    if (!json_is_object(o))
        return kv_fail(e, "%s: expected an object", where);
    json_object_foreach(o, name, v)
    {
        const struct value *is = depth ? NULL : find(values, name);

        snprintf(inner, sizeof(inner), "%s.%s", where, name);
        if (!depth && !is)
            return kv_fail(e, "%s: there is no such parameter", inner);
        if (depth ? check_object(v, values, depth - 1, inner, e)
                  : check_value(v, is, where, e))
            return -1;
    }
    for (; !depth && values->name; values++)
        if (!json_object_get(o, values->name))
            return kv_fail(e, "%s.%s is missing", where, values->name);
    return 0;
}

static double number(const json_t *tree, const char *section, const char *name)
{
    return json_number_value(json_object_get(
        json_object_get(json_object_get(tree, section), name), "value"));
}

static int check_tree(json_t *tree, struct kv_err *e)
{
    const char *name;
    json_t *o;

    if (!json_is_object(tree))
        return kv_fail(e, "expected an object");
    for (size_t i = 0; i < SECTIONS; i++) {
        o = json_object_get(tree, sections[i].name);
        if (!o)
            return kv_fail(e, "%s is missing", sections[i].name);
        if (check_object(o, sections[i].values, sections[i].depth,
                         sections[i].name, e))
            return -1;
    }
    json_object_foreach(tree, name, o)
    {
        size_t i = 0;

        while (i < SECTIONS && strcmp(sections[i].name, name) != 0)
            i++;
        if (i == SECTIONS && strcmp(name, "about") != 0)
            return kv_fail(e, "%s: there is no such section", name);
    }

    const double apart = number(tree, "requests", "warm_up") +
                         number(tree, "requests", "cool_down");

    if (apart >= 1)
        return kv_fail(e,
                       "requests.warm_up + requests.cool_down is %g: expected "
                       "less than 1, or no request counts",
                       apart);
    return 0;
}

/* Applies a change such as "decode.kv_share=0.7". */
static int apply(json_t *tree, const char *change, struct kv_err *e)
{
    const char *equals = strrchr(change, '=');
    char path[256], *end;
    json_t *v = tree;

    if (!equals || (size_t)(equals - change) >= sizeof(path))
        return kv_fail(e, "--set %s: expected NAME=NUMBER", change);
    snprintf(path, sizeof(path), "%.*s", (int)(equals - change), change);
    for (char *at = path, *dot; v && at; at = dot) {
        dot = strchr(at, '.');
        if (dot)
            *dot++ = 0;
        v = json_object_get(v, at);
    }
    if (!json_object_get(v, "value"))
        return kv_fail(e, "--set %s: the file has no such parameter", change);

    const double x = strtod(equals + 1, &end);

    if (end == equals + 1 || *end || !isfinite(x))
        return kv_fail(e, "--set %s: expected a number", change);
    json_object_set_new(v, "value", json_real(x));
    json_object_set_new(v, "kind", json_string("given"));
    return 0;
}

json_t *kv_serving_read(const char *path, const char *const *change,
                        size_t n_changes, struct kv_err *e)
{
    json_t *tree = kv_json_read(path, e);

    if (!tree)
        return NULL;
    if (check_tree(tree, e)) {
        kv_fail_in(e, "%s", path);
        goto fail;
    }
    for (size_t i = 0; i < n_changes; i++)
        if (apply(tree, change[i], e))
            goto fail;
    if (!n_changes || !check_tree(tree, e))
        return tree;
    kv_fail_in(e, "--set");
fail:
    json_decref(tree);
    return NULL;
}

static void fill(const json_t *o, const struct value *values, void *to)
{
    for (; values->name; values++)
        *(double *)((char *)to + values->at) = json_number_value(
            json_object_get(json_object_get(o, values->name), "value"));
}

static int pick(const json_t *tree, const char *section, const char *name,
                const struct value *values, void *to, struct kv_err *e)
{
    json_t *all = json_object_get(tree, section);
    const json_t *o = json_object_get(all, name);
    char names[512] = "";
    const char *key;
    json_t *v;

    if (o) {
        fill(o, values, to);
        return 0;
    }
    json_object_foreach(all, key, v)
    {
        const size_t n = strlen(names);

        snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", key);
    }
    return kv_fail(e, "%s has no %s; it has %s", section, name, names);
}

int kv_serving_gpu(const json_t *tree, const char *name,
                   struct kv_serving_gpu *g, struct kv_err *e)
{
    return pick(tree, "gpus", name, gpu_values, g, e);
}

int kv_serving_model(const json_t *tree, const char *name,
                     struct kv_serving_model *m, struct kv_err *e)
{
    return pick(tree, "models", name, model_values, m, e);
}

int kv_serving_dataset(const json_t *tree, const char *name,
                       struct kv_serving_dataset *d, struct kv_err *e)
{
    if (pick(tree, "datasets", name, dataset_values, d, e))
        return -1;
    if (!(d->input_least <= d->input_mean && d->input_mean <= d->input_most &&
          d->output_least <= d->output_mean &&
          d->output_mean <= d->output_most))
        return kv_fail(e, "datasets.%s: a mean is not between least and most",
                       name);
    return 0;
}

int kv_serving_scheme(const json_t *tree, const char *name,
                      struct kv_serving_scheme *s, struct kv_err *e)
{
    return pick(tree, "schemes", name, scheme_values, s, e);
}

int kv_serving_parallel(const json_t *tree, const char *gpu, const char *model,
                        struct kv_serving_parallel *p, struct kv_err *e)
{
    const json_t *o = json_object_get(
        json_object_get(json_object_get(tree, "parallel"), gpu), model);

    if (!o)
        return kv_fail(e, "parallel.%s.%s is missing: tp and pp of %s on %s",
                       gpu, model, model, gpu);
    fill(o, parallel_values, p);
    return 0;
}

void kv_serving_settings(const json_t *tree, struct kv_serving_settings *s)
{
    for (size_t i = 0; i < SECTIONS; i++)
        if (!sections[i].depth)
            fill(json_object_get(tree, sections[i].name), sections[i].values,
                 s);
}
