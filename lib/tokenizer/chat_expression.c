/* Expressions: suffixes of a value (items, calls, filters, tests), and
 * operators. */
#include "lib/tokenizer/chat_impl.h"

enum { MAX_DEPTH = 64 };

/* ---- suffixes of a value ------------------------------------------------- */

/* Parses the number after "x.", as in "x.0". */
static json_t *numbered(struct kv_chat_reader *r, json_t *x, bool live)
{
    json_t *key = kv_chat_number(r), *y = NULL;

    if (live && !r->c->failed)
        y = kv_chat_item(r->c, x, key);
    json_decref(key);
    return y;
}

/* Parses an attribute or a method after "x.". */
static json_t *attribute(struct kv_chat_reader *r, json_t *x, bool live)
{
    char name[KV_CHAT_NAME];
    json_t *y = NULL, *key;
    struct kv_chat_args a;

    if (kv_chat_at_number(r))
        return numbered(r, x, live);
    if (!kv_chat_name(r, name))
        return NULL;
    if (kv_chat_accept(r, "(")) {
        kv_chat_read_args(r, live, &a);
        if (live && !r->c->failed)
            y = kv_chat_method(r->c, name, x, &a);
        kv_chat_clear_args(&a);
        return y;
    }
    if (live && kv_chat_is_mapping(x) &&
        kv_chat_is_method(x, name)) /* a method precedes an item of this name */
        return kv_chat_fail(r->c, "'.%s' without a call is not implemented",
                            name);
    key = json_string(name);
    if (live)
        y = kv_chat_item(r->c, x, key);
    json_decref(key);
    return y;
}

/* Parses an item or a slice after "x[". */
static json_t *item(struct kv_chat_reader *r, json_t *x, bool live)
{
    json_t *bound[3] = {NULL}, *y = NULL;
    size_t i = 0;

    for (; i < 3 && !r->c->failed; i++) {
        if (kv_chat_accept(r, ":"))
            continue;
        if (kv_chat_accept(r, "]"))
            break;
        bound[i] = kv_chat_expression(r, live);
        if (kv_chat_accept(r, ":"))
            continue;
        kv_chat_expect(r, "]");
        break;
    }
    if (i == 3)
        kv_chat_expect(r, "]");
    if (live && !r->c->failed)
        y = i ? kv_chat_slice(r->c, x, bound) : kv_chat_item(r->c, x, bound[0]);
    for (i = 0; i < 3; i++)
        json_decref(bound[i]);
    return y;
}

static json_t *filter(struct kv_chat_reader *r, json_t *x, bool live)
{
    char name[KV_CHAT_NAME];
    struct kv_chat_args a = {.n = 0};
    json_t *y = NULL;

    if (!kv_chat_name(r, name))
        return NULL;
    if (kv_chat_accept(r, "("))
        kv_chat_read_args(r, live, &a);
    if (live && !r->c->failed)
        y = kv_chat_filter(r->c, name, x, &a);
    kv_chat_clear_args(&a);
    return y;
}

static json_t *value(struct kv_chat_reader *r, bool live)
{
    json_t *x = kv_chat_primary(r, live), *y;

    while (!r->c->failed) {
        if (kv_chat_accept(r, "."))
            y = attribute(r, x, live);
        else if (kv_chat_accept(r, "["))
            y = item(r, x, live);
        else
            break;
        json_decref(x);
        x = y;
    }
    return x;
}

/* Parses a test after "is": "name", "name(arg)", "name arg". */
static json_t *test(struct kv_chat_reader *r, const json_t *x, bool live)
{
    const bool not = kv_chat_accept(r, "not");
    char name[KV_CHAT_NAME];
    struct kv_chat_args a = {.n = 0};
    bool is = false;

    if (!kv_chat_name(r, name))
        return NULL;
    if (kv_chat_accept(r, "("))
        kv_chat_read_args(r, live, &a);
    else if (kv_chat_test_takes(name))
        a.value[a.n++] = value(r, live);
    else if (kv_chat_at_value(r))
        kv_chat_fail(r->c, "'is %s' is given something", name);
    if (live && !r->c->failed)
        is = kv_chat_test(r->c, name, x, &a);
    kv_chat_clear_args(&a);
    return json_boolean(is != not );
}

static json_t *filters(struct kv_chat_reader *r, json_t *x, bool live)
{
    while (!r->c->failed) {
        json_t *y;

        if (kv_chat_accept(r, "|"))
            y = filter(r, x, live);
        else if (kv_chat_accept(r, "is"))
            y = test(r, x, live);
        else
            break;
        json_decref(x);
        x = y;
    }
    return x;
}

/* ---- operators, the tightest first --------------------------------------- */

/* Parses "-" and its value.  Filters are applied after the "-". */
static json_t *unary(struct kv_chat_reader *r, bool live)
{
    size_t n = 0;
    json_t *x;

    while (kv_chat_accept(r, "-"))
        n++;
    x = value(r, live);
    for (; n && !r->c->failed && live; n--) {
        json_t *zero = json_integer(0), *y = kv_chat_add(r->c, '-', zero, x);

        json_decref(zero);
        json_decref(x);
        x = y;
    }
    return filters(r, x, live);
}

static json_t *binary(struct kv_chat_reader *r, bool live, int level)
{
    static const char *const ops[][3] = {
        {"+", "-", NULL}, {"~", NULL, NULL}, {"*", "//", "%"}};
    json_t *x = level == 2 ? unary(r, live) : binary(r, live, level + 1);

    for (size_t i = 0; i < 3 && !r->c->failed;) {
        json_t *y, *z;

        if (!ops[level][i] || !kv_chat_accept(r, ops[level][i])) {
            i++;
            continue;
        }
        y = level == 2 ? unary(r, live) : binary(r, live, level + 1);
        z = live && !r->c->failed ? kv_chat_add(r->c, *ops[level][i], x, y)
                                  : NULL;
        json_decref(x);
        json_decref(y);
        x = z;
        i = 0;
    }
    return x;
}

/* Parses a comparison operator, or returns NULL.  "not" is accepted only in
 * "not in". */
static const char *comparison(struct kv_chat_reader *r, bool * not )
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">", "in"};
    const char *begin = r->at;

    *not = kv_chat_accept(r, "not");
    for (size_t i = *not ? 6 : 0; i < 7; i++)
        if (kv_chat_accept(r, ops[i]))
            return ops[i];
    r->at = begin;
    return NULL;
}

/* Parses comparisons; "a < b < c" means "a < b and b < c". */
static json_t *comparisons(struct kv_chat_reader *r, bool live)
{
    json_t *x = binary(r, live, 0);
    const char *op;
    bool is = true, any = false, not ;

    while (!r->c->failed && (op = comparison(r, &not ))) {
        json_t *y = binary(r, live && is, 0);

        if (live && is && !r->c->failed)
            is = kv_chat_compare(r->c, op, x, y) != not ;
        json_decref(x);
        x = y;
        any = true;
    }
    if (!any)
        return x;
    json_decref(x);
    return json_boolean(is);
}

static json_t *negations(struct kv_chat_reader *r, bool live)
{
    size_t n = 0;
    json_t *x;
    bool truth;

    while (kv_chat_accept(r, "not"))
        n++;
    x = comparisons(r, live);
    if (!n)
        return x;
    truth = kv_chat_truth(x);
    json_decref(x);
    return json_boolean(truth == (n % 2 == 0));
}

/* Parses "or" (or "and").  The result is the operand that decides, as in
 * Python. */
static json_t *junction(struct kv_chat_reader *r, bool live, bool or)
{
    json_t *x = or ? junction(r, live, false) : negations(r, live);

    while (!r->c->failed && kv_chat_accept(r, or ? "or" : "and")) {
        const bool decided = kv_chat_truth(x) == or ;
        json_t *y = or ? junction(r, live && !decided, false)
                       : negations(r, live && !decided);

        if (decided) {
            json_decref(y);
        } else {
            json_decref(x);
            x = y;
        }
    }
    return x;
}

json_t *kv_chat_operand(struct kv_chat_reader *r, bool live)
{
    return junction(r, live, true);
}

/* Parses "x if y else z".  First skips x, since only y tells whether x is
 * evaluated. */
static json_t *choice(struct kv_chat_reader *r, bool live)
{
    struct kv_chat_reader start = *r;
    json_t *x = junction(r, false, true), *y; /* skips x */
    bool truth;

    json_decref(x);
    if (r->c->failed)
        return NULL;
    if (!kv_chat_accept(r, "if")) {
        if (!live) /* read nested text twice, not twice per level */
            return NULL;
        *r = start;
        return junction(r, live, true);
    }
    y = junction(r, live, true);
    truth = live && kv_chat_truth(y);
    json_decref(y);
    x = truth ? junction(&start, true, true) : NULL;
    y = kv_chat_accept(r, "else") ? kv_chat_expression(r, live && !truth)
                                  : NULL;
    json_decref(truth ? y : x);
    return truth ? x : y;
}

json_t *kv_chat_expression(struct kv_chat_reader *r, bool live)
{
    const char *begin = r->at;
    json_t *x = NULL;

    if (r->c->depth == MAX_DEPTH)
        return kv_chat_fail(r->c, "expressions are nested more than %d deep",
                            MAX_DEPTH);
    r->c->depth++;
    if (!r->c->failed)
        x = choice(r, live);
    r->c->depth--;
    kv_chat_step(r->c, (size_t)(r->at - begin));
    return x;
}
