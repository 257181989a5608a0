#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"

#include <ctype.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 }; /* of lists and objects in each other */

bool kv_chat_truth(const json_t *x)
{
    switch (x ? json_typeof(x) : JSON_NULL) {
    case JSON_OBJECT:
        return json_object_size(x) > 0;
    case JSON_ARRAY:
        return json_array_size(x) > 0;
    case JSON_STRING:
        return json_string_length(x) > 0;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(x) != 0;
    case JSON_TRUE:
        return true;
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
    return false;
}

/* true is 1, 1.0 too, as in Python. */
static bool number_of(const json_t *x, double *out)
{
    if (json_is_boolean(x))
        *out = json_is_true(x);
    else if (json_is_number(x))
        *out = json_number_value(x);
    else
        return false;
    return true;
}

/* Of x itself, without what is in it. */
static size_t bytes_of(const json_t *x)
{
    return json_is_string(x)
               ? json_string_length(x)
               : sizeof(x) * (json_array_size(x) + json_object_size(x));
}

static bool is_namespace(const json_t *x)
{
    return json_object_get(x, KV_CHAT_NAMESPACE);
}

/* A step for each value.  No deeper than what frees it goes. */
static void walk(struct kv_chat *c, const json_t *x, bool plain, size_t depth)
{
    const char *key;
    const json_t *y;

    if (depth > MAX_DEPTH)
        kv_chat_fail(c, "values are nested more than %d deep", MAX_DEPTH);
    if (plain && is_namespace(x))
        kv_chat_fail(c, "a namespace in another value is not implemented");
    kv_chat_step(c, bytes_of(x));
    for (size_t i = 0; i < json_array_size(x) && !c->failed; i++)
        walk(c, json_array_get(x, i), plain, depth + 1);
    json_object_foreach((json_t *)(uintptr_t)x, key, y)
    {
        if (c->failed)
            break;
        kv_chat_step(c, strlen(key));
        walk(c, y, plain, depth + 1);
    }
}

void kv_chat_walk(struct kv_chat *c, const json_t *x, bool plain)
{
    walk(c, x, plain, 0);
}

bool kv_chat_equal(struct kv_chat *c, const json_t *a, const json_t *b)
{
    double x, y;

    if (!a || !b)
        return a == b;
    if (number_of(a, &x) && number_of(b, &y))
        return x == y;
    if (json_typeof(a) != json_typeof(b) || bytes_of(a) != bytes_of(b))
        return false;
    kv_chat_walk(c, a, false);
    return !c->failed && json_equal(a, b);
}

char *kv_chat_text(struct kv_chat *c, const json_t *x)
{
    char number[32];

    switch (x ? json_typeof(x) : JSON_STRING) {
    case JSON_STRING:
        return kv_strdup(x ? json_string_value(x) : "");
    case JSON_INTEGER:
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(x));
        return kv_strdup(number);
    case JSON_TRUE:
        return kv_strdup("True");
    case JSON_FALSE:
        return kv_strdup("False");
    case JSON_NULL:
        return kv_strdup("None");
    case JSON_REAL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    kv_chat_fail(c, "a real number, a list or an object is written as text, "
                    "which is not implemented");
    return kv_strdup("");
}

/* Python's index: from the end where it is negative; n where it is out. */
static size_t index_of(json_int_t i, size_t n)
{
    if (i < 0)
        i += (json_int_t)n;
    return i < 0 || i >= (json_int_t)n ? n : (size_t)i;
}

static bool is_ascii(const char *s)
{
    while (*s > 0)
        s++;
    return !*s;
}

static json_t *character(struct kv_chat *c, const json_t *of, json_int_t i)
{
    const char *text = json_string_value(of);
    const size_t n = json_string_length(of), at = index_of(i, n);

    kv_chat_step(c, n);
    if (!is_ascii(text))
        return kv_chat_fail(c, "a character of what is not ASCII text is not "
                               "implemented");
    return at < n ? json_stringn(text + at, 1) : NULL;
}

json_t *kv_chat_item(struct kv_chat *c, json_t *of, const json_t *key)
{
    kv_chat_step(c, bytes_of(key));
    if (json_is_object(of) && json_is_string(key))
        return json_incref(json_object_get(of, json_string_value(key)));
    if (json_is_array(of) && json_is_integer(key))
        return json_incref(json_array_get(
            of, index_of(json_integer_value(key), json_array_size(of))));
    if (json_is_string(of) && json_is_integer(key))
        return character(c, of, json_integer_value(key));
    if (json_is_boolean(key))
        return kv_chat_fail(c, "an item %s of a value is not implemented",
                            json_is_true(key) ? "true" : "false");
    if (!of)
        return kv_chat_fail(c, "something is taken out of an undefined value");
    return NULL;
}

static size_t bound_of(const json_t *x, size_t n, size_t otherwise)
{
    json_int_t i = json_integer_value(x);

    if (!json_is_integer(x))
        return otherwise;
    if (i < 0)
        i += (json_int_t)n;
    return i < 0 ? 0 : (size_t)i > n ? n : (size_t)i;
}

static bool may_bound(const json_t *x)
{
    return !x || json_is_null(x) || json_is_integer(x);
}

json_t *kv_chat_slice(struct kv_chat *c, json_t *of, const json_t *from,
                      const json_t *to)
{
    const bool text = json_is_string(of);
    const size_t n = text ? json_string_length(of) : json_array_size(of);
    const size_t begin = bound_of(from, n, 0), end = bound_of(to, n, n);
    json_t *part;

    kv_chat_step(c, bytes_of(of));
    if (!may_bound(from) || !may_bound(to))
        return kv_chat_fail(c, "a bound of a slice is no whole number");
    if (text ? !is_ascii(json_string_value(of)) : !json_is_array(of))
        return kv_chat_fail(c, "a slice of what is neither a list nor ASCII "
                               "text is not implemented");
    if (text)
        return json_stringn(json_string_value(of) + begin,
                            end > begin ? end - begin : 0);
    part = json_array();
    for (size_t i = begin; i < end; i++)
        json_array_append(part, json_array_get(of, i));
    return part;
}

json_t *kv_chat_reverse(struct kv_chat *c, json_t *of)
{
    json_t *part;

    if (!json_is_array(of))
        return kv_chat_fail(c, "only a list can be reversed");
    kv_chat_step(c, bytes_of(of));
    part = json_array();
    for (size_t i = json_array_size(of); i-- > 0;)
        json_array_append(part, json_array_get(of, i));
    return part;
}

/* ---- text ---------------------------------------------------------------- */

enum { LEFT = 1, RIGHT = 2 };

/* set: the characters that go, ASCII; NULL: space. */
static json_t *strip(const json_t *x, int sides, const char *set)
{
    const char *s = json_string_value(x);
    size_t n = json_string_length(x);
    bool gone[UCHAR_MAX + 1] = {false};

    for (const char *p = set ? set : " \t\n\v\f\r"; *p; p++)
        gone[(unsigned char)*p] = true;
    while (sides & LEFT && n && gone[(unsigned char)*s]) {
        s++;
        n--;
    }
    while (sides & RIGHT && n && gone[(unsigned char)s[n - 1]])
        n--;
    return json_stringn(s, n);
}

static json_t *with_case(const json_t *x, int (*convert)(int))
{
    char *s = kv_strdup(json_string_value(x));
    json_t *y;

    for (char *p = s; *p; p++)
        if ((unsigned char)*p < 128)
            *p = (char)convert((unsigned char)*p);
    y = json_string(s);
    free(s);
    return y;
}

static json_t *split(struct kv_chat *c, const json_t *x, const char *by)
{
    const char *s = json_string_value(x), *next;
    json_t *parts = json_array();

    while (!c->failed && (next = strstr(s, by))) {
        kv_chat_step(c, 0);
        json_array_append_new(parts, json_stringn(s, (size_t)(next - s)));
        s = next + strlen(by);
    }
    json_array_append_new(parts, json_string(s));
    return parts;
}

static json_t *replace(struct kv_chat *c, const json_t *x, const char *old,
                       const char *new)
{
    json_t *parts = split(c, x, old), *y = NULL;
    size_t n = json_string_length(x) + json_array_size(parts) * strlen(new) + 1;

    kv_chat_step(c, n);
    if (!c->failed) {
        char *s = kv_alloc(n, 1), *at = s;

        for (size_t i = 0; i < json_array_size(parts); i++)
            at += sprintf(at, "%s%s", i ? new : "",
                          json_string_value(json_array_get(parts, i)));
        y = json_string(s);
        free(s);
    }
    json_decref(parts);
    return y;
}

static bool begins(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

static bool ends(const char *s, const char *with)
{
    const size_t n = strlen(s), m = strlen(with);

    return m <= n && !strcmp(s + n - m, with);
}

/* [key, value] pairs. */
static json_t *items(struct kv_chat *c, json_t *x)
{
    json_t *pairs = json_array(), *value;
    const char *key;

    json_object_foreach(x, key, value)
    {
        kv_chat_step(c, strlen(key));
        json_array_append_new(pairs, json_pack("[s,O]", key, value));
    }
    return pairs;
}

static json_t *of_text(struct kv_chat *c, const char *name, json_t *x,
                       const char *a, const char *b)
{
    const char *s = json_string_value(x);
    const bool bytes = !a || is_ascii(a); /* a character is one */

    if (!strcmp(name, "strip") && !b && bytes)
        return strip(x, LEFT | RIGHT, a);
    if (!strcmp(name, "lstrip") && !b && bytes)
        return strip(x, LEFT, a);
    if (!strcmp(name, "rstrip") && !b && bytes)
        return strip(x, RIGHT, a);
    if (!strcmp(name, "upper") && !a)
        return with_case(x, toupper);
    if (!strcmp(name, "lower") && !a)
        return with_case(x, tolower);
    if (!strcmp(name, "split") && a && *a && !b)
        return split(c, x, a);
    if (!strcmp(name, "replace") && a && *a && b)
        return replace(c, x, a, b);
    if (!strcmp(name, "startswith") && a && !b)
        return json_boolean(begins(s, a));
    if (!strcmp(name, "endswith") && a && !b)
        return json_boolean(ends(s, a));
    return NULL;
}

json_t *kv_chat_method(struct kv_chat *c, const char *name, json_t *x,
                       json_t *const *arg, size_t n)
{
    const char *a = n > 0 ? json_string_value(arg[0]) : NULL;
    const char *b = n > 1 ? json_string_value(arg[1]) : NULL;
    const bool object = json_is_object(x) && !is_namespace(x);
    json_t *y = NULL;

    kv_chat_step(c, bytes_of(x));
    for (size_t i = 0; i < n; i++)
        kv_chat_step(c, bytes_of(arg[i]));
    if (json_is_string(x) && n <= 2 && (n < 1 || a) && (n < 2 || b))
        y = of_text(c, name, x, a, b);
    if (object && !strcmp(name, "items") && !n)
        y = items(c, x);
    if (object && !strcmp(name, "get") && a) {
        json_t *found = json_object_get(x, a);

        return found    ? json_incref(found)
               : n == 1 ? json_null()
                        : json_incref(arg[1]);
    }
    return y ? y
             : kv_chat_fail(c,
                            "the method %s() of this value is not "
                            "implemented",
                            name);
}

/* selectattr("x"), selectattr("x", "equalto", y): those of a list. */
static json_t *select_by(struct kv_chat *c, bool wanted, const json_t *x,
                         json_t *const *arg, size_t n)
{
    const char *key = n ? json_string_value(arg[0]) : NULL;
    const char *test = n > 1 ? json_string_value(arg[1]) : NULL;
    const bool equal = test && n == 3 &&
                       (!strcmp(test, "equalto") || !strcmp(test, "==") ||
                        !strcmp(test, "eq"));
    json_t *chosen;

    if (!json_is_array(x) || !key || (n != 1 && !equal))
        return kv_chat_fail(c, "selectattr with another test than equalto is "
                               "not implemented");
    chosen = json_array();
    for (size_t i = 0; i < json_array_size(x); i++) {
        const json_t *value = json_object_get(json_array_get(x, i), key);
        const bool is =
            equal ? kv_chat_equal(c, value, arg[2]) : kv_chat_truth(value);

        if (is == wanted)
            json_array_append(chosen, json_array_get(x, i));
    }
    return chosen;
}

static json_t *as_json(struct kv_chat *c, const json_t *x)
{
    char *text;
    json_t *y;

    kv_chat_walk(c, x, true);
    text = c->failed ? NULL : json_dumps(x, JSON_ENCODE_ANY);
    y = text ? json_string(text) : NULL;
    free(text);
    return y;
}

json_t *kv_chat_filter(struct kv_chat *c, const char *name, json_t *x,
                       json_t *const *arg, size_t n)
{
    if (!strcmp(name, "default") && (n == 1 || n == 2))
        return json_incref(
            (n == 2 && kv_chat_truth(arg[1]) ? kv_chat_truth(x) : x != NULL)
                ? x
                : arg[0]);
    kv_chat_step(c, bytes_of(x));
    if (is_namespace(x))
        return kv_chat_fail(c, "the filter %s of a namespace", name);
    if (!strcmp(name, "selectattr") || !strcmp(name, "rejectattr"))
        return select_by(c, *name == 's', x, arg, n);
    if (!x && !strcmp(name, "length"))
        return json_integer(0);
    if (!strcmp(name, "tojson") && x && !n)
        return as_json(c, x);
    if ((!strcmp(name, "length") || !strcmp(name, "count")) && !n &&
        (json_is_array(x) || json_is_object(x) ||
         (json_is_string(x) && is_ascii(json_string_value(x)))))
        return json_integer((json_int_t)(json_is_array(x) ? json_array_size(x)
                                         : json_is_object(x)
                                             ? json_object_size(x)
                                             : json_string_length(x)));
    if (json_is_array(x) && !n &&
        (!strcmp(name, "first") || !strcmp(name, "last")) && json_array_size(x))
        return json_incref(
            json_array_get(x, *name == 'f' ? 0 : json_array_size(x) - 1));
    if (json_is_array(x) && !n && !strcmp(name, "list"))
        return json_incref(x);
    if (json_is_object(x) && !n && !strcmp(name, "items"))
        return items(c, x);
    if (json_is_string(x) && !n && !strcmp(name, "trim"))
        return strip(x, LEFT | RIGHT, NULL);
    if (json_is_string(x) && !n && !strcmp(name, "string"))
        return json_incref(x);
    if (json_is_string(x) && !n &&
        (!strcmp(name, "upper") || !strcmp(name, "lower")))
        return with_case(x, *name == 'u' ? toupper : tolower);
    return kv_chat_fail(c, "the filter %s of this value is not implemented",
                        name);
}

int kv_chat_test(const char *name, const json_t *x)
{
    const bool several = /* or none of them, as Jinja has it */
        !x || json_is_array(x) || json_is_string(x) || json_is_object(x);
    const struct {
        const char *name;
        bool is;
    } tests[] = {
        {"defined", x != NULL},
        {"undefined", !x},
        {"none", x && json_is_null(x)},
        {"string", json_is_string(x)},
        {"number", json_is_number(x) || json_is_boolean(x)},
        {"integer", json_is_integer(x)},
        {"boolean", json_is_boolean(x)},
        {"true", json_is_true(x)},
        {"false", json_is_false(x)},
        {"mapping", json_is_object(x)},
        {"sequence", several},
        {"iterable", several},
    };

    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
        if (!strcmp(tests[i].name, name))
            return tests[i].is;
    return -1;
}

/* ---- operators ----------------------------------------------------------- */

static json_t *join(struct kv_chat *c, const json_t *a, const json_t *b)
{
    char *x = kv_chat_text(c, a), *y = kv_chat_text(c, b);
    char *both = kv_alloc(strlen(x) + strlen(y) + 1, 1);
    json_t *text;

    sprintf(both, "%s%s", x, y);
    text = json_string(both);
    free(both);
    free(x);
    free(y);
    return text;
}

/* Rounded down, as Python does. */
static json_int_t divide(json_int_t a, json_int_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static json_int_t rest(json_int_t a, json_int_t b)
{
    return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}

static json_t *calculate(struct kv_chat *c, char op, json_int_t a, json_int_t b)
{
    json_int_t y = 0;
    bool overflow = false;

    if (op == '+')
        overflow = __builtin_add_overflow(a, b, &y);
    else if (op == '-')
        overflow = __builtin_sub_overflow(a, b, &y);
    else if (op == '*')
        overflow = __builtin_mul_overflow(a, b, &y);
    else if (b == 0 || b == -1)
        return kv_chat_fail(c, "a division by %d", (int)b);
    else
        y = op == '/' ? divide(a, b) : rest(a, b);
    return overflow ? kv_chat_fail(c, "a number is too large")
                    : json_integer(y);
}

json_t *kv_chat_add(struct kv_chat *c, char op, const json_t *a,
                    const json_t *b)
{
    kv_chat_step(c, bytes_of(a) + bytes_of(b));
    if (c->failed)
        return NULL;
    if (op == '~' || (op == '+' && json_is_string(a) && json_is_string(b)))
        return join(c, a, b);
    if (op == '+' && json_is_array(a) && json_is_array(b)) {
        json_t *both = json_copy((json_t *)(uintptr_t)a);

        json_array_extend(both, (json_t *)(uintptr_t)b);
        return both;
    }
    if (json_is_integer(a) && json_is_integer(b))
        return calculate(c, op, json_integer_value(a), json_integer_value(b));
    return kv_chat_fail(c, "'%c' between these values is not implemented", op);
}

bool kv_chat_in(struct kv_chat *c, const json_t *a, const json_t *b)
{
    kv_chat_step(c, bytes_of(a) + bytes_of(b));
    if (json_is_string(a) && json_is_string(b))
        return strstr(json_string_value(b), json_string_value(a));
    if (json_is_string(a) && json_is_object(b))
        return json_object_get(b, json_string_value(a));
    if (json_is_array(b)) {
        for (size_t i = 0; i < json_array_size(b) && !c->failed; i++)
            if (kv_chat_equal(c, a, json_array_get(b, i)))
                return true;
        return false;
    }
    kv_chat_fail(c, "'in' between these values is not implemented");
    return false;
}
