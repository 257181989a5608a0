/* Tests: "x is name". */
#include "lib/tokenizer/chat_impl.h"

#include <stdint.h>
#include <string.h>

static bool is_text(const json_t *x)
{
    return json_is_string(x) || kv_chat_safe_text(x);
}

/* Whether a value has a length and items; undefined counts as empty. */
static bool is_sequence(const json_t *x)
{
    x = kv_chat_sequence((json_t *)(uintptr_t)x);
    return !x || json_is_array(x) || is_text(x) || kv_chat_is_mapping(x);
}

static bool has_items(const json_t *x)
{
    return is_sequence(x) || kv_chat_is_iterator(x);
}

static bool is_integer(const json_t *x)
{
    return json_is_integer(x);
}

static bool is_number(const json_t *x)
{
    return json_is_number(x) || json_is_boolean(x);
}

static bool is_real(const json_t *x)
{
    return json_is_real(x);
}

static bool is_boolean(const json_t *x)
{
    return json_is_boolean(x);
}

static bool is_true(const json_t *x)
{
    return json_is_true(x);
}

static bool is_false(const json_t *x)
{
    return json_is_false(x);
}

static bool is_none(const json_t *x)
{
    return json_is_null(x);
}

static bool is_defined(const json_t *x)
{
    return x;
}

static bool is_undefined(const json_t *x)
{
    return !x;
}

static const struct {
    const char *name;
    bool (*is)(const json_t *x);
} plain[] = {{"boolean", is_boolean},
             {"defined", is_defined},
             {"false", is_false},
             {"float", is_real},
             {"integer", is_integer},
             {"iterable", has_items},
             {"mapping", kv_chat_is_mapping},
             {"none", is_none},
             {"number", is_number},
             {"sequence", is_sequence},
             {"string", is_text},
             {"true", is_true},
             {"undefined", is_undefined}};

/* Tests that are comparisons, and their operators. */
static const struct {
    const char *name, *op;
} operators[] = {
    {"eq", "=="},         {"equalto", "=="}, {"ne", "!="}, {"lt", "<"},
    {"lessthan", "<"},    {"gt", ">"},       {"le", "<="}, {"ge", ">="},
    {"greaterthan", ">"}, {"in", "in"},      {"==", "=="}, {"!=", "!="},
    {"<", "<"},           {">", ">"},        {"<=", "<="}, {">=", ">="},
};

static const char *operator_of(const char *name)
{
    for (size_t i = 0; i < sizeof(operators) / sizeof(*operators); i++)
        if (!strcmp(operators[i].name, name))
            return operators[i].op;
    return NULL;
}

bool kv_chat_test_takes(const char *name)
{
    return operator_of(name) || !strcmp(name, "divisibleby");
}

/* Whether x % by is rest; fails unless x and by are whole numbers. */
static bool leaves(struct kv_chat *c, const json_t *x, const json_t *by,
                   json_int_t rest)
{
    const json_int_t n = json_integer_value(by);

    if (!json_is_integer(x) || !json_is_integer(by) || n <= 0) {
        kv_chat_fail(c, "a test of division of what is no whole number");
        return false;
    }
    return (json_integer_value(x) % n + n) % n == rest;
}

bool kv_chat_test(struct kv_chat *c, const char *name, const json_t *x,
                  const struct kv_chat_args *a)
{
    const char *op = operator_of(name);
    const bool odd = !strcmp(name, "odd"), alone = !a->n;
    bool is;

    if (json_object_size(a->named) || a->n > 1) {
        kv_chat_fail(c,
                     "the test 'is %s' of these arguments is not "
                     "implemented",
                     name);
        return false;
    }
    for (size_t i = 0; alone && i < sizeof(plain) / sizeof(*plain); i++)
        if (!strcmp(plain[i].name, name))
            return plain[i].is(x);
    if (op && !alone)
        return kv_chat_compare(c, op, x, a->value[0]);
    if (!strcmp(name, "divisibleby") && !alone)
        return leaves(c, x, a->value[0], 0);
    if (alone && (odd || !strcmp(name, "even"))) {
        json_t *two = json_integer(2);

        is = leaves(c, x, two, odd);
        json_decref(two);
        return is;
    }
    kv_chat_fail(c, "the test 'is %s' is not implemented", name);
    return false;
}
