#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_text.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 }; /* nested lists and objects */

#define UNDEFINED " undefined"

json_t *kv_chat_undefined(void)
{
    return json_pack("{s:b}", UNDEFINED, 1);
}

bool kv_chat_is_undefined(const json_t *x)
{
    return !x || json_object_get(x, UNDEFINED);
}

json_t *kv_chat_resolve(json_t *x)
{
    if (!x || !kv_chat_is_undefined(x))
        return x;
    json_decref(x);
    return NULL;
}

json_t *kv_chat_variable(const struct kv_chat *c, const char *name)
{
    json_t *x = NULL;

    for (size_t i = c->n_scopes; i-- > c->floor + 1 && !x;)
        x = json_object_get(c->scope[i], name);
    return x ? x : json_object_get(c->scope[0], name);
}

bool kv_chat_is_mapping(const json_t *x)
{
    return json_is_object(x) && !kv_chat_is_namespace(x) &&
           !kv_chat_is_named_function(x) && !kv_chat_is_iterator(x) &&
           !kv_chat_safe_text(x) && !json_object_get(x, KV_CHAT_LOOP);
}

bool kv_chat_truth(const json_t *x)
{
    const char *safe = kv_chat_safe_text(x);
    const json_t *items = kv_chat_view_items(x);

    if (safe)
        return *safe;
    if (items)
        return json_array_size(items) > 0;
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

/* The value of a number; true is 1 and false is 0, as in Python. */
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

/* The bytes to count for reading x itself, without its items. */
size_t kv_chat_bytes(const json_t *x)
{
    return json_is_string(x)
               ? json_string_length(x)
               : sizeof(x) * (json_array_size(x) + json_object_size(x));
}

bool kv_chat_is_namespace(const json_t *x)
{
    return json_object_get(x, KV_CHAT_NAMESPACE);
}

/* Counts a step for each value.  Limits the depth, since freeing x recurses as
 * deep. */
static void walk(struct kv_chat *c, const json_t *x, bool plain, size_t depth)
{
    const char *key;
    const json_t *y;

    if (depth > MAX_DEPTH)
        kv_chat_fail(c, "values are nested more than %d deep", MAX_DEPTH);
    if (plain && kv_chat_is_namespace(x))
        kv_chat_fail(c, "a namespace in another value is not implemented");
    kv_chat_step(c, kv_chat_bytes(x));
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

static bool equal_objects(struct kv_chat *c, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *x;
    bool equal = true;

    json_object_foreach((json_t *)(uintptr_t)a, key, x)
    {
        const json_t *y = json_object_get(b, key);

        kv_chat_step(c, strlen(key));
        equal = equal && !c->failed && y && kv_chat_equal(c, x, y);
    }
    return equal;
}

/* Compares two values of one kind: texts, objects or lists. */
static bool equal_wholes(struct kv_chat *c, const json_t *a, const json_t *b)
{
    bool equal = true;

    if (json_is_string(a))
        return !strcmp(json_string_value(a), json_string_value(b));
    if (json_is_object(a))
        return kv_chat_is_mapping(a) && kv_chat_is_mapping(b) &&
               equal_objects(c, a, b);
    for (size_t i = 0; i < json_array_size(a) && equal && !c->failed; i++)
        equal = kv_chat_equal(c, json_array_get(a, i), json_array_get(b, i));
    return equal;
}

bool kv_chat_equal(struct kv_chat *c, const json_t *a, const json_t *b)
{
    double x, y;

    if (!a || !b || a == b)
        return a == b;
    kv_chat_step(c, kv_chat_bytes(a));
    if (kv_chat_is_tuple(a) && kv_chat_is_tuple(b))
        return kv_chat_equal(c, kv_chat_view_items(a), kv_chat_view_items(b));
    if (kv_chat_is_tuple(a) || kv_chat_is_tuple(b))
        return false;
    if (kv_chat_is_iterator(a) || kv_chat_is_iterator(b) ||
        kv_chat_safe_text(a) || kv_chat_safe_text(b))
        return kv_chat_fail(c, "'==' between these values is not implemented");
    if (number_of(a, &x) && number_of(b, &y))
        return x == y;
    return json_typeof(a) == json_typeof(b) &&
           kv_chat_bytes(a) == kv_chat_bytes(b) && !c->failed &&
           equal_wholes(c, a, b);
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
        return kv_chat_real(json_real_value(x));
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return kv_chat_safe_text(x) ? kv_strdup(kv_chat_safe_text(x))
                                : kv_chat_repr(c, x);
}

/* Converts an index of Python, where a negative index counts from the end; n if
 * it is out of range. */
static size_t index_of(json_int_t i, size_t n)
{
    if (i < 0)
        i += (json_int_t)n;
    return i < 0 || i >= (json_int_t)n ? n : (size_t)i;
}

static json_t *character(struct kv_chat *c, const json_t *of, json_int_t i)
{
    const char *text = json_string_value(of);
    const size_t n = kv_chat_characters(text), at = index_of(i, n);
    const char *s = kv_chat_character(text, at);

    kv_chat_step(c, json_string_length(of));
    return at < n ? json_stringn(s, kv_utf8_bytes(s)) : NULL;
}

json_t *kv_chat_item(struct kv_chat *c, json_t *of, const json_t *key)
{
    const char *name = json_string_value(key);
    json_t *found = NULL;

    kv_chat_step(c, kv_chat_bytes(key));
    if (kv_chat_safe_text(of))
        return kv_chat_fail(c, "an item of a text after safe is not "
                               "implemented");
    of = kv_chat_sequence(of);
    if (kv_chat_is_iterator(of)) /* an iterator has no items to index */
        return NULL;
    if (name)
        found = json_object_get(of, name);
    else if (json_is_integer(key) && kv_chat_is_mapping(of))
        found = kv_chat_member(of, key);
    if (found)
        return kv_chat_resolve(json_incref(found));
    if (name && of && !kv_chat_is_namespace(of) && kv_chat_is_method(of, name))
        return kv_chat_fail(c,
                            "the method %s of a value, without a call, is "
                            "not implemented",
                            name);
    if (json_is_array(of) && json_is_integer(key))
        return kv_chat_resolve(json_incref(json_array_get(
            of, index_of(json_integer_value(key), json_array_size(of)))));
    if (json_is_string(of) && json_is_integer(key))
        return character(c, of, json_integer_value(key));
    if (json_is_boolean(key))
        return kv_chat_fail(c, "an item %s of a value is not implemented",
                            json_is_true(key) ? "true" : "false");
    if (!of)
        return kv_chat_fail(c, "something is taken out of an undefined value");
    return NULL;
}

/* A bound as in Python's slice.indices(), limited to [low, high]. */
static json_int_t bound_of(const json_t *x, json_int_t n, json_int_t low,
                           json_int_t high, json_int_t otherwise)
{
    json_int_t i = json_integer_value(x);

    if (!json_is_integer(x))
        return otherwise;
    if (i < 0)
        i += n;
    return i < low ? low : i > high ? high : i;
}

static bool may_bound(const json_t *x)
{
    return !x || json_is_null(x) || json_is_integer(x);
}

json_t *kv_chat_slice(struct kv_chat *c, json_t *of, json_t *const bound[3])
{
    const json_int_t step =
        json_is_integer(bound[2]) ? json_integer_value(bound[2]) : 1;
    const bool text = json_is_string(of), down = step < 0;
    const json_t *kind = of;
    json_t *all, *part;

    of = kv_chat_sequence(of);
    kv_chat_step(c, kv_chat_bytes(of));
    if (!may_bound(bound[0]) || !may_bound(bound[1]) || !may_bound(bound[2]))
        return kv_chat_fail(c, "a bound of a slice is no whole number");
    if (!text && !json_is_array(of))
        return kv_chat_fail(c, "a slice of what is neither a list nor a text");
    if (!step || step > INT32_MAX || step < -INT32_MAX)
        return kv_chat_fail(c, "a slice has the step %" JSON_INTEGER_FORMAT,
                            step);
    all = kv_chat_list(c, of);

    const json_int_t n = (json_int_t)json_array_size(all);
    const json_int_t low = down ? -1 : 0, high = down ? n - 1 : n;
    const json_int_t end = bound_of(bound[1], n, low, high, down ? low : high);
    json_int_t i = bound_of(bound[0], n, low, high, down ? high : low);

    part = json_array();
    for (; (down ? i > end : i < end) && !c->failed; i += step)
        json_array_append(part, json_array_get(all, (size_t)i));
    json_decref(all);
    if (text) {
        all = part;
        part = kv_chat_joined(c, all, "");
        json_decref(all);
    }
    return kv_chat_as(kind, part);
}

json_t *kv_chat_joined(struct kv_chat *c, const json_t *list,
                       const char *between)
{
    struct kv_text text = {0};
    json_t *y = NULL;

    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++) {
        char *part = kv_chat_text(c, json_array_get(list, i));

        kv_chat_step(c, strlen(between) + strlen(part));
        if (i)
            kv_text_add(&text, between, strlen(between));
        kv_text_add(&text, part, strlen(part));
        free(part);
    }
    if (!c->failed)
        y = json_stringn(text.n ? text.s : "", text.n);
    kv_text_clear(&text);
    return y;
}
