/* Methods of texts and objects. */
#include "lib/tokenizer/chat_text.h"

#include <string.h>

/* arg: the arguments; each is NULL if it is not given. */
typedef json_t *method(struct kv_chat *c, json_t *x, json_t *const *arg);

static const char *text_of(const json_t *x)
{
    return json_string_value(x);
}

/* Sets *set to the characters given to strip(); false if arg is no text. */
static bool set_of(const json_t *arg, const char **set)
{
    *set = text_of(arg);
    return !arg || json_is_null(arg) || *set;
}

static json_t *stripped(struct kv_chat *c, json_t *x, const json_t *arg,
                        int sides)
{
    const char *set;

    return set_of(arg, &set) ? kv_chat_strip(c, x, sides, set) : NULL;
}

static json_t *strip(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return stripped(c, x, arg[0], KV_CHAT_LEFT | KV_CHAT_RIGHT);
}

static json_t *lstrip(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return stripped(c, x, arg[0], KV_CHAT_LEFT);
}

static json_t *rstrip(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return stripped(c, x, arg[0], KV_CHAT_RIGHT);
}

static json_t *upper(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    (void)arg;
    return kv_chat_with_case(text_of(x), KV_CHAT_UPPER);
}

static json_t *lower(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    (void)arg;
    return kv_chat_with_case(text_of(x), KV_CHAT_LOWER);
}

static json_t *title(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    (void)arg;
    return kv_chat_with_case(text_of(x), KV_CHAT_TITLE);
}

static json_t *capitalize(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    (void)arg;
    return kv_chat_with_case(text_of(x), KV_CHAT_CAPITALIZE);
}

static json_t *split(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *by;

    if (!set_of(arg[0], &by) || (by && !*by) ||
        (arg[1] && !json_is_integer(arg[1])))
        return NULL;
    return kv_chat_split(c, text_of(x), by,
                         arg[1] ? json_integer_value(arg[1]) : -1);
}

static json_t *splitlines(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return kv_chat_splitlines(c, text_of(x));
}

static json_t *replace(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *old = text_of(arg[0]), *new = text_of(arg[1]);

    return old && *old && new ? kv_chat_replace(c, x, old, new) : NULL;
}

static bool has(const json_t *x, const json_t *part, bool at_end)
{
    const size_t n = json_string_length(x), m = json_string_length(part);

    return m <= n &&
           !memcmp(text_of(x) + (at_end ? n - m : 0), text_of(part), m);
}

/* Whether x begins, or ends, with arg.  arg: a text, or a tuple of texts; one
 * of them must match. */
static json_t *has_one(struct kv_chat *c, const json_t *x, const json_t *arg,
                       bool at_end)
{
    bool found = false;

    if (json_is_string(arg))
        return json_boolean(has(x, arg, at_end));
    if (!kv_chat_is_tuple(arg))
        return NULL;
    arg = kv_chat_view_items(arg);
    for (size_t i = 0; i < json_array_size(arg); i++) {
        const json_t *one = json_array_get(arg, i);

        kv_chat_step(c, json_string_length(one));
        if (!json_is_string(one))
            return NULL;
        found |= has(x, one, at_end);
    }
    return json_boolean(found);
}

static json_t *startswith(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return has_one(c, x, arg[0], false);
}

static json_t *endswith(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return has_one(c, x, arg[0], true);
}

static json_t *removeprefix(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    if (!json_is_string(arg[0]))
        return NULL;
    return json_string(
        text_of(x) + (has(x, arg[0], false) ? json_string_length(arg[0]) : 0));
}

static json_t *removesuffix(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)c;
    if (!json_is_string(arg[0]))
        return NULL;
    return json_stringn(
        text_of(x),
        json_string_length(x) -
            (has(x, arg[0], true) ? json_string_length(arg[0]) : 0));
}

static json_t *find(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *s = text_of(x), *part = text_of(arg[0]), *at;
    json_int_t n = 0;

    (void)c;
    if (!part)
        return NULL;
    at = strstr(s, part);
    for (; at && s < at; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return json_integer(at ? n : -1);
}

static json_t *join(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    json_t *all = kv_chat_list(c, arg[0]), *y;
    bool texts = all != NULL;

    for (size_t i = 0; i < json_array_size(all); i++)
        texts = texts && json_is_string(json_array_get(all, i));
    y = texts ? kv_chat_joined(c, all, text_of(x)) : NULL;
    json_decref(all);
    return y;
}

static json_t *items(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return kv_chat_view(kv_chat_items(c, x));
}

static json_t *keys(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    (void)arg;
    return kv_chat_view(kv_chat_list(c, x));
}

static json_t *values(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    json_t *all = json_array(), *value;
    const char *key;

    (void)arg;
    json_object_foreach(x, key, value)
    {
        kv_chat_step(c, 0);
        json_array_append(all, value);
    }
    return kv_chat_view(all);
}

static json_t *get(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    json_t *found;

    (void)c;
    if (!json_is_string(arg[0]) && !json_is_integer(arg[0]))
        return NULL;
    found = kv_chat_member(x, arg[0]);
    return found ? json_incref(found)
                 : (arg[1] ? json_incref(arg[1]) : json_null());
}

static const struct {
    const char *name;
    json_type of;
    size_t least, most; /* arguments */
    method *call;
} methods[] = {
    {"capitalize", JSON_STRING, 0, 0, capitalize},
    {"endswith", JSON_STRING, 1, 1, endswith},
    {"find", JSON_STRING, 1, 1, find},
    {"get", JSON_OBJECT, 1, 2, get},
    {"items", JSON_OBJECT, 0, 0, items},
    {"join", JSON_STRING, 1, 1, join},
    {"keys", JSON_OBJECT, 0, 0, keys},
    {"lower", JSON_STRING, 0, 0, lower},
    {"lstrip", JSON_STRING, 0, 1, lstrip},
    {"removeprefix", JSON_STRING, 1, 1, removeprefix},
    {"removesuffix", JSON_STRING, 1, 1, removesuffix},
    {"replace", JSON_STRING, 2, 2, replace},
    {"rstrip", JSON_STRING, 0, 1, rstrip},
    {"split", JSON_STRING, 0, 2, split},
    {"splitlines", JSON_STRING, 0, 0, splitlines},
    {"startswith", JSON_STRING, 1, 1, startswith},
    {"strip", JSON_STRING, 0, 1, strip},
    {"title", JSON_STRING, 0, 0, title},
    {"upper", JSON_STRING, 0, 0, upper},
    {"values", JSON_OBJECT, 0, 0, values},
};

/* Whether the name is a method of Python that is not implemented above. */
static bool is_other(const json_t *x, const char *name)
{
    static const char *const names[][2] = {
        {"{", "clear"},    {"{", "copy"},       {"{", "fromkeys"},
        {"{", "pop"},      {"{", "popitem"},    {"{", "setdefault"},
        {"{", "update"},   {"[", "append"},     {"[", "clear"},
        {"[", "copy"},     {"[", "count"},      {"[", "extend"},
        {"[", "index"},    {"[", "insert"},     {"[", "pop"},
        {"[", "remove"},   {"[", "reverse"},    {"[", "sort"},
        {"'", "casefold"}, {"'", "center"},     {"'", "count"},
        {"'", "encode"},   {"'", "expandtabs"}, {"'", "format"},
        {"'", "index"},    {"'", "isalnum"},    {"'", "isalpha"},
        {"'", "isdigit"},  {"'", "islower"},    {"'", "isnumeric"},
        {"'", "isspace"},  {"'", "istitle"},    {"'", "isupper"},
        {"'", "ljust"},    {"'", "partition"},  {"'", "rfind"},
        {"'", "rindex"},   {"'", "rjust"},      {"'", "rpartition"},
        {"'", "rsplit"},   {"'", "swapcase"},   {"'", "translate"},
        {"'", "zfill"}};
    const char kind = kv_chat_is_mapping(x) ? '{'
                      : json_is_array(x)    ? '['
                      : json_is_string(x)   ? '\''
                                            : 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (*names[i][0] == kind && !strcmp(names[i][1], name))
            return true;
    return false;
}

bool kv_chat_is_method(const json_t *x, const char *name)
{
    for (size_t i = 0; x && i < sizeof(methods) / sizeof(*methods); i++)
        if (methods[i].of == json_typeof(x) && !strcmp(methods[i].name, name))
            return true;
    return is_other(x, name);
}

json_t *kv_chat_method(struct kv_chat *c, const char *name, json_t *x,
                       const struct kv_chat_args *a)
{
    const bool fits = x && (!json_is_object(x) || kv_chat_is_mapping(x)) &&
                      !json_object_size(a->named);
    json_t *arg[2] = {NULL}, *y = NULL;

    kv_chat_step(c, kv_chat_bytes(x));
    for (size_t i = 0; i < a->n; i++)
        kv_chat_step(c, kv_chat_bytes(a->value[i]));
    if (json_is_string(x) && !strcmp(name, "format"))
        return kv_chat_format(c, x, a);
    for (size_t i = 0; i < a->n && i < 2; i++)
        arg[i] = a->value[i];
    for (size_t i = 0; fits && i < sizeof(methods) / sizeof(*methods); i++)
        if (!strcmp(methods[i].name, name) && methods[i].of == json_typeof(x) &&
            a->n >= methods[i].least && a->n <= methods[i].most)
            y = methods[i].call(c, x, arg);
    return y ? y
             : kv_chat_fail(c,
                            "the method %s() of this value is not "
                            "implemented",
                            name);
}
