/* The operators + - * // % ~, comparisons and "in". */
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Division, rounded down as in Python. */
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

static json_t *extended(struct kv_chat *c, const json_t *a, const json_t *b)
{
    json_t *both = json_copy((json_t *)(uintptr_t)a);

    kv_chat_step(c, kv_chat_bytes(a) + kv_chat_bytes(b));
    json_array_extend(both, (json_t *)(uintptr_t)b);
    return both;
}

static bool is_text(const json_t *x)
{
    return json_is_string(x) || kv_chat_safe_text(x);
}

/* Repeats a text n times. */
static json_t *repeated(struct kv_chat *c, const json_t *x, json_int_t n)
{
    struct kv_text text = {0};
    json_t *y = NULL;

    for (json_int_t i = 0; i < n && !c->failed; i++) {
        kv_chat_step(c, json_string_length(x));
        kv_text_add(&text, json_string_value(x), json_string_length(x));
    }
    if (!c->failed)
        y = json_stringn(text.n ? text.s : "", text.n);
    kv_text_clear(&text);
    return y;
}

json_t *kv_chat_add(struct kv_chat *c, char op, const json_t *a,
                    const json_t *b)
{
    kv_chat_step(c, kv_chat_bytes(a) + kv_chat_bytes(b));
    if (c->failed)
        return NULL;
    if (op == '~' || (op == '+' && json_is_string(a) && json_is_string(b)))
        return join(c, a, b);
    if (op == '+' && json_is_array(a) && json_is_array(b))
        return extended(c, a, b);
    if (op == '+' && kv_chat_is_tuple(a) && kv_chat_is_tuple(b))
        return kv_chat_tuple(
            extended(c, kv_chat_view_items(a), kv_chat_view_items(b)));
    if (op == '+' && (kv_chat_safe_text(a) || kv_chat_safe_text(b)) &&
        is_text(a) && is_text(b))
        return kv_chat_add_safe(c, a, b);
    if (op == '*' && json_is_string(a) && json_is_integer(b))
        return repeated(c, a, json_integer_value(b));
    if (json_is_integer(a) && json_is_integer(b))
        return calculate(c, op, json_integer_value(a), json_integer_value(b));
    return kv_chat_fail(c, "'%c' between these values is not implemented", op);
}

static bool is_in(struct kv_chat *c, const json_t *a, const json_t *b)
{
    kv_chat_step(c, kv_chat_bytes(a) + kv_chat_bytes(b));
    if (json_is_string(a) && json_is_string(b))
        return strstr(json_string_value(b), json_string_value(a));
    if ((json_is_string(a) || json_is_integer(a)) && kv_chat_is_mapping(b))
        return kv_chat_member(b, a);
    if (kv_chat_view_items(b))
        b = kv_chat_view_items(b);
    if (json_is_array(b)) {
        for (size_t i = 0; i < json_array_size(b) && !c->failed; i++)
            if (kv_chat_equal(c, a, json_array_get(b, i)))
                return true;
        return false;
    }
    if (!b)
        return false;
    kv_chat_fail(c, "'in' between these values is not implemented");
    return false;
}

static bool ordered(struct kv_chat *c, const char *op, const json_t *a,
                    const json_t *b)
{
    int sign;

    kv_chat_step(c, json_string_length(a));
    if (json_is_integer(a) && json_is_integer(b))
        sign = (json_integer_value(a) > json_integer_value(b)) -
               (json_integer_value(a) < json_integer_value(b));
    else if (json_is_number(a) && json_is_number(b))
        sign = (json_number_value(a) > json_number_value(b)) -
               (json_number_value(a) < json_number_value(b));
    else if (json_is_string(a) && json_is_string(b))
        sign = strcmp(json_string_value(a), json_string_value(b));
    else
        return kv_chat_fail(c, "'%s' between these values is not implemented",
                            op);
    return op[1] == '=' && !sign ? true : *op == '<' ? sign < 0 : sign > 0;
}

bool kv_chat_compare(struct kv_chat *c, const char *op, const json_t *a,
                     const json_t *b)
{
    if (!strcmp(op, "=="))
        return kv_chat_equal(c, a, b);
    if (!strcmp(op, "!="))
        return !kv_chat_equal(c, a, b);
    if (!strcmp(op, "in"))
        return is_in(c, a, b);
    return ordered(c, op, a, b);
}
