/* Filters: "x | name(arguments)". */
#include "lib/tokenizer/chat_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* arg: the arguments in the order of the filter's parameters, NULL if not
 * given.  Returns NULL if the filter does not apply to this value. */
typedef json_t *filter(struct kv_chat *c, json_t *x, json_t *const *arg);

/* x converted to text. */
static json_t *text_of(struct kv_chat *c, const json_t *x)
{
    char *text = kv_chat_text(c, x);
    json_t *y = json_string(text);

    free(text);
    return y;
}

static json_t *with_case(struct kv_chat *c, const json_t *x,
                         enum kv_chat_case wanted)
{
    char *text = kv_chat_text(c, x);
    json_t *y = kv_chat_with_case(text, wanted);

    free(text);
    return y;
}

static json_t *upper(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return with_case(c, x, KV_CHAT_UPPER);
}

static json_t *lower(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return with_case(c, x, KV_CHAT_LOWER);
}

static json_t *title(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return with_case(c, x, KV_CHAT_JINJA_TITLE);
}

static json_t *capitalize(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return with_case(c, x, KV_CHAT_CAPITALIZE);
}

static json_t *string(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return text_of(c, x);
}

static json_t *trim(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *set = json_string_value(arg[0]);
    json_t *text, *y;

    if (arg[0] && !json_is_null(arg[0]) && !set)
        return NULL;
    text = text_of(c, x);
    y = kv_chat_strip(c, text, KV_CHAT_LEFT | KV_CHAT_RIGHT, set);
    json_decref(text);
    return y;
}

static json_t *replace(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *old = json_string_value(arg[0]);
    const char *new = json_string_value(arg[1]);
    json_t *text, *y;

    if (!old || !*old || !new)
        return NULL;
    text = text_of(c, x);
    y = kv_chat_replace(c, text, old, new);
    json_decref(text);
    return y;
}

static json_t *length(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    (void)arg;
    if (json_is_string(x))
        return json_integer(
            (json_int_t)kv_chat_characters(json_string_value(x)));
    if (kv_chat_view_items(x))
        x = kv_chat_view_items(x);
    if (x && !json_is_array(x) && !kv_chat_is_mapping(x))
        return NULL;
    return json_integer((json_int_t)(json_array_size(x) + json_object_size(x)));
}

static json_t *list(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return kv_chat_list(c, x);
}

static json_t *end_of(struct kv_chat *c, json_t *x, bool last)
{
    const bool once = kv_chat_is_iterator(x) && !kv_chat_view_items(x);
    json_t *all, *y;
    size_t n;

    if (once && last) /* an iterator is read only forwards */
        return NULL;
    if (once) {
        y = kv_chat_next(c, x);
        return y ? y : kv_chat_undefined();
    }
    all = kv_chat_list(c, x);
    n = json_array_size(all);
    if (!all)
        return NULL;
    y = n ? json_incref(json_array_get(all, last ? n - 1 : 0))
          : kv_chat_undefined();
    json_decref(all);
    return y;
}

static json_t *first(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return end_of(c, x, false);
}

static json_t *last(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return end_of(c, x, true);
}

static json_t *reverse(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    json_t *step = json_integer(-1), *const bound[3] = {NULL, NULL, step};
    json_t *y = kv_chat_slice(c, x, bound), *list;

    (void)arg;
    json_decref(step);
    if (!y || json_is_string(y))
        return y;
    list = json_incref(kv_chat_sequence(y));
    json_decref(y);
    return kv_chat_iterator(list);
}

static json_t *items(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return !x                      ? kv_chat_iterator(json_array())
           : kv_chat_is_mapping(x) ? kv_chat_iterator(kv_chat_items(c, x))
                                   : NULL;
}

static json_t *integer(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *s = json_string_value(x);
    char *end;
    json_int_t y;

    (void)c;
    (void)arg;
    if (json_is_integer(x))
        return json_incref(x);
    if (json_is_boolean(x))
        return json_integer(json_is_true(x));
    if (!s || !strchr("+-0123456789", *s))
        return NULL;
    errno = 0;
    y = strtoll(s, &end, 10);
    return end == s || *end || errno ? NULL : json_integer(y);
}

static json_t *fallback(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const bool there = kv_chat_truth(arg[1]) ? kv_chat_truth(x) : x != NULL;

    (void)c;
    if (there)
        return json_incref(x);
    return arg[0] ? json_incref(arg[0]) : json_string("");
}

/* The attribute of a value; the name must be a text without dots. */
json_t *kv_chat_attribute(struct kv_chat *c, json_t *x, const json_t *name)
{
    json_t *y;

    if (!json_is_string(name) || strchr(json_string_value(name), '.'))
        return kv_chat_fail(c, "an attribute that is no plain name is not "
                               "implemented");
    y = kv_chat_item(c, x, name);
    return y || c->failed ? y : kv_chat_undefined();
}

static json_t *attributes(struct kv_chat *c, json_t *x, const json_t *name,
                          json_t *otherwise)
{
    json_t *all = kv_chat_list(c, x), *out = json_array();

    for (size_t i = 0; i < json_array_size(all) && !c->failed; i++) {
        json_t *y =
            kv_chat_resolve(kv_chat_attribute(c, json_array_get(all, i), name));

        if (!y && !c->failed)
            y = otherwise ? json_incref(otherwise)
                          : kv_chat_fail(c, "an undefined value in a list");
        json_array_append_new(out, y);
    }
    json_decref(all);
    return out;
}

static json_t *join(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    char *between = kv_chat_text(c, arg[0]);
    json_t *all = arg[1] ? attributes(c, x, arg[1], NULL) : kv_chat_list(c, x);
    json_t *y = all ? kv_chat_joined(c, all, between) : NULL;

    json_decref(all);
    free(between);
    return y;
}

static const struct {
    const char *name;
    const char *param[4];
    filter *call;
} filters[] = {
    {"capitalize", {NULL}, capitalize},
    {"count", {NULL}, length},
    {"d", {"default_value", "boolean"}, fallback},
    {"default", {"default_value", "boolean"}, fallback},
    {"dictsort", {"case_sensitive", "by", "reverse"}, kv_chat_dictsort},
    {"e", {NULL}, kv_chat_escape},
    {"escape", {NULL}, kv_chat_escape},
    {"first", {NULL}, first},
    {"int", {NULL}, integer},
    {"items", {NULL}, items},
    {"join", {"d", "attribute"}, join},
    {"last", {NULL}, last},
    {"length", {NULL}, length},
    {"list", {NULL}, list},
    {"lower", {NULL}, lower},
    {"max", {"case_sensitive", "attribute"}, kv_chat_max},
    {"min", {"case_sensitive", "attribute"}, kv_chat_min},
    {"replace", {"old", "new"}, replace},
    {"reverse", {NULL}, reverse},
    {"safe", {NULL}, kv_chat_safe},
    {"sort", {"reverse", "case_sensitive", "attribute"}, kv_chat_sort},
    {"string", {NULL}, string},
    {"title", {NULL}, title},
    {"tojson",
     {"ensure_ascii", "indent", "separators", "sort_keys"},
     kv_chat_json},
    {"trim", {"chars"}, trim},
    {"unique", {"case_sensitive", "attribute"}, kv_chat_unique},
    {"upper", {NULL}, upper},
};

enum { N_FILTERS = sizeof(filters) / sizeof(*filters) };

/* Sets arg to the arguments in the order of filter f's parameters. */
static bool bind(struct kv_chat *c, size_t f, const struct kv_chat_args *a,
                 json_t *arg[4])
{
    size_t n_named = 0, most = 0;
    bool twice = false;

    for (size_t i = 0; i < 4; i++) {
        const char *name = filters[f].param[i];
        json_t *named = name ? json_object_get(a->named, name) : NULL;

        arg[i] = name && i < a->n ? a->value[i] : named;
        most += name != NULL;
        n_named += named != NULL;
        twice |= named && i < a->n;
    }
    if (a->n > most || n_named != json_object_size(a->named) || twice)
        kv_chat_fail(c, "the filter %s with these arguments is not implemented",
                     filters[f].name);
    return !c->failed;
}

/* Runs selectattr("x", "test", arg) or select("test", arg): returns the items
 * of a list that pass the test.  A false value has no items. */
static json_t *chosen(struct kv_chat *c, bool wanted, json_t *x,
                      const struct kv_chat_args *a, bool by_attribute)
{
    struct kv_chat_args rest = {.n = 0};
    const size_t skip = by_attribute ? 1 : 0;
    const char *test = NULL;
    json_t *all, *kept;

    if (a->n < skip || (a->n > skip && !json_is_string(a->value[skip])) ||
        json_object_size(a->named))
        return NULL;
    if (a->n > skip)
        test = json_string_value(a->value[skip]);
    for (size_t i = skip + 1; i < a->n; i++)
        rest.value[rest.n++] = a->value[i];
    all = kv_chat_truth(x) ? kv_chat_list(c, x) : json_array();
    kept = json_array();
    for (size_t i = 0; i < json_array_size(all) && !c->failed; i++) {
        json_t *one = json_array_get(all, i);
        json_t *y = kv_chat_resolve(by_attribute
                                        ? kv_chat_attribute(c, one, a->value[0])
                                        : json_incref(one));

        kv_chat_step(c, 0);
        if ((test ? kv_chat_test(c, test, y, &rest) : kv_chat_truth(y)) ==
            wanted)
            json_array_append(kept, one);
        json_decref(y);
    }
    json_decref(all);
    return kv_chat_iterator(kept);
}

/* Runs map(attribute="x") or map("filter", arguments). */
static json_t *mapped(struct kv_chat *c, json_t *x,
                      const struct kv_chat_args *a)
{
    const char *name = a->n ? json_string_value(a->value[0]) : NULL;
    json_t *by = json_object_get(a->named, "attribute");
    json_t *otherwise = json_object_get(a->named, "default"), *all, *out;
    struct kv_chat_args rest = {.named = a->named};

    if (!kv_chat_truth(x)) /* map() of a false value gives no items */
        return kv_chat_iterator(json_array());
    if (by && !a->n && json_object_size(a->named) == 1u + (otherwise != NULL))
        return kv_chat_iterator(attributes(c, x, by, otherwise));
    if (!name)
        return NULL;
    for (size_t i = 1; i < a->n; i++)
        rest.value[rest.n++] = a->value[i];
    all = kv_chat_list(c, x);
    out = json_array();
    for (size_t i = 0; i < json_array_size(all) && !c->failed; i++)
        if (json_array_append_new(
                out, kv_chat_filter(c, name, json_array_get(all, i), &rest)))
            kv_chat_fail(c, "an undefined value in a list");
    json_decref(all);
    return kv_chat_iterator(out);
}

static json_t *call(struct kv_chat *c, const char *name, json_t *x,
                    const struct kv_chat_args *a)
{
    json_t *arg[4];

    if (!strcmp(name, "selectattr") || !strcmp(name, "rejectattr"))
        return chosen(c, *name == 's', x, a, true);
    if (!strcmp(name, "select") || !strcmp(name, "reject"))
        return chosen(c, *name == 's', x, a, false);
    if (!strcmp(name, "map"))
        return mapped(c, x, a);
    for (size_t i = 0; i < N_FILTERS; i++)
        if (!strcmp(filters[i].name, name))
            return bind(c, i, a, arg) ? filters[i].call(c, x, arg) : NULL;
    return NULL;
}

static bool keeps_safe(const char *name)
{
    return !strcmp(name, "safe") || !strcmp(name, "e") ||
           !strcmp(name, "escape");
}

json_t *kv_chat_filter(struct kv_chat *c, const char *name, json_t *x,
                       const struct kv_chat_args *a)
{
    json_t *y;

    kv_chat_step(c, kv_chat_bytes(x));
    for (size_t i = 0; i < a->n; i++)
        kv_chat_step(c, kv_chat_bytes(a->value[i]));
    if (kv_chat_is_namespace(x))
        return kv_chat_fail(c, "the filter %s of a namespace", name);
    if (kv_chat_safe_text(x) && !keeps_safe(name))
        return kv_chat_fail(c, "the filter %s after safe is not implemented",
                            name);
    y = call(c, name, x, a);
    if (!y && !c->failed)
        return kv_chat_fail(c, "the filter %s of this value is not implemented",
                            name);
    return kv_chat_resolve(y);
}
