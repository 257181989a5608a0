#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 8, MAX_NAME = 64, MAX_DEPTH = 32 };

static void skip_space(struct kv_chat_reader *r)
{
    while (r->at < r->end && isspace((unsigned char)*r->at))
        r->at++;
}

bool kv_chat_at_end(struct kv_chat_reader *r)
{
    skip_space(r);
    return r->at == r->end;
}

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

bool kv_chat_accept(struct kv_chat_reader *r, const char *word)
{
    const size_t n = strlen(word);

    skip_space(r);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0 ||
        (in_name(*word) && r->at + n < r->end && in_name(r->at[n])))
        return false;
    r->at += n;
    return true;
}

static void expect(struct kv_chat_reader *r, const char *word)
{
    if (!kv_chat_accept(r, word) && !r->c->failed)
        kv_chat_fail(r->c, "expected '%s' before '%.*s'", word,
                     (int)(r->end - r->at > 20 ? 20 : r->end - r->at), r->at);
}

bool kv_chat_name(struct kv_chat_reader *r, char *name, size_t size)
{
    size_t n = 0;

    skip_space(r);
    while (r->at + n < r->end && in_name(r->at[n]))
        n++;
    if (!n || n >= size || isdigit((unsigned char)*r->at)) {
        kv_chat_fail(r->c, "expected a name before '%.*s'",
                     (int)(r->end - r->at > 20 ? 20 : r->end - r->at), r->at);
        return false;
    }
    memcpy(name, r->at, n);
    name[n] = 0;
    r->at += n;
    return true;
}

/* ---- what an expression begins with -------------------------------------- */

static json_t *quoted(struct kv_chat_reader *r)
{
    static const char escapes[] = "ntr\\'\"", meant[] = "\n\t\r\\'\"";
    const char quote = *r->at++, *end = r->at;
    char *text;
    size_t n = 0;
    json_t *x;

    while (end < r->end && *end != quote)
        end += *end == '\\' && end + 1 < r->end ? 2 : 1;
    text = kv_alloc((size_t)(end - r->at) + 1, 1);
    while (r->at < end) {
        const char *found;

        if (*r->at != '\\' || r->at + 1 == r->end) {
            text[n++] = *r->at++;
            continue;
        }
        found = strchr(escapes, r->at[1]);
        if (found)
            text[n++] = meant[found - escapes];
        else
            kv_chat_fail(r->c, "'\\%c' in a text is not implemented", r->at[1]);
        r->at += 2;
    }
    if (r->at == r->end)
        kv_chat_fail(r->c, "a text has no end");
    else
        r->at++;
    x = json_stringn(text, n);
    free(text);
    return x ? x : kv_chat_fail(r->c, "a text is not UTF-8");
}

static json_t *number(struct kv_chat_reader *r)
{
    json_int_t x = 0;

    while (r->at < r->end && isdigit((unsigned char)*r->at)) {
        if (x > 1000000000)
            return kv_chat_fail(r->c, "a number is too large");
        x = 10 * x + (*r->at++ - '0');
    }
    if (r->at < r->end && *r->at == '.')
        return kv_chat_fail(r->c, "real numbers are not implemented");
    return json_integer(x);
}

static json_t *list(struct kv_chat_reader *r, const char *close, bool live)
{
    json_t *x = json_array();

    while (!r->c->failed && !kv_chat_accept(r, close)) {
        if (json_array_append_new(x, kv_chat_expression(r, live)) && live)
            kv_chat_fail(r->c, "an undefined value in a list");
        if (!kv_chat_accept(r, ",")) {
            expect(r, close);
            break;
        }
    }
    return x;
}

static json_t *object(struct kv_chat_reader *r, bool live)
{
    json_t *x = json_object();

    while (!r->c->failed && !kv_chat_accept(r, "}")) {
        json_t *key = kv_chat_expression(r, live);

        expect(r, ":");
        if (live && !json_is_string(key))
            kv_chat_fail(r->c, "the key of an object is no text");
        kv_chat_step(r->c, json_string_length(key));
        json_object_set_new(x, live ? json_string_value(key) : "",
                            kv_chat_expression(r, live));
        json_decref(key);
        if (!kv_chat_accept(r, ",")) {
            expect(r, "}");
            break;
        }
    }
    return x;
}

static json_t *variable(struct kv_chat *c, const char *name)
{
    json_t *x = NULL;

    for (size_t i = c->n_scopes; i-- > 0 && !x;)
        x = json_object_get(c->scope[i], name);
    return json_incref(x);
}

/* ---- calls --------------------------------------------------------------- */

struct args {
    json_t *value[MAX_ARGS];
    size_t n;
    json_t *named; /* name=value */
};

static bool is_named(struct kv_chat_reader *r)
{
    const char *p;

    skip_space(r);
    for (p = r->at; p < r->end && in_name(*p);)
        p++;
    while (p < r->end && isspace((unsigned char)*p))
        p++;
    return p > r->at && p + 1 < r->end && *p == '=' && p[1] != '=';
}

/* After "("; names: whether there may be named ones. */
static void read_args(struct kv_chat_reader *r, bool live, bool names,
                      struct args *a)
{
    char name[MAX_NAME];

    *a = (struct args){.named = json_object()};
    while (!r->c->failed && !kv_chat_accept(r, ")")) {
        if (is_named(r) && kv_chat_name(r, name, sizeof(name))) {
            if (live && !names)
                kv_chat_fail(r->c, "the argument '%s=' is not implemented",
                             name);
            expect(r, "=");
            json_object_set_new(a->named, name, kv_chat_expression(r, live));
        } else if (a->n == MAX_ARGS) {
            kv_chat_fail(r->c, "a call has more than %d arguments", MAX_ARGS);
        } else {
            a->value[a->n++] = kv_chat_expression(r, live);
        }
        if (!kv_chat_accept(r, ",")) {
            expect(r, ")");
            break;
        }
    }
}

static void clear_args(struct args *a)
{
    for (size_t i = 0; i < a->n; i++)
        json_decref(a->value[i]);
    json_decref(a->named);
}

static json_t *range(struct kv_chat *c, const struct args *a)
{
    const json_int_t from = a->n > 1 ? json_integer_value(a->value[0]) : 0;
    const json_int_t to = json_integer_value(a->value[a->n > 1]);
    json_t *x = json_array();

    for (json_int_t i = from; i < to && !c->failed; i++) {
        kv_chat_step(c, 0);
        json_array_append_new(x, json_integer(i));
    }
    return x;
}

static json_t *new_namespace(struct kv_chat *c, json_t *named)
{
    kv_chat_walk(c, named, true);
    json_object_set_new(named, KV_CHAT_NAMESPACE, json_true());
    return json_incref(named);
}

static json_t *call_function(struct kv_chat *c, const char *name,
                             const struct args *a)
{
    if (!strcmp(name, "namespace") && !a->n)
        return new_namespace(c, a->named);
    if (!strcmp(name, "range") && (a->n == 1 || a->n == 2))
        return range(c, a);
    if (!strcmp(name, "raise_exception") && a->n == 1)
        return kv_chat_fail(c, "%s",
                            json_is_string(a->value[0])
                                ? json_string_value(a->value[0])
                                : "an exception is raised");
    return kv_chat_fail(c, "the function %s() is not implemented", name);
}

/* "name(" or a variable. */
static json_t *named(struct kv_chat_reader *r, bool live)
{
    static const struct {
        const char *name[2];
        json_t *(*make)(void);
    } words[] = {{{"true", "True"}, json_true},
                 {{"false", "False"}, json_false},
                 {{"none", "None"}, json_null}};
    char name[MAX_NAME];
    struct args a;
    json_t *x = NULL;

    if (!kv_chat_name(r, name, sizeof(name)))
        return NULL;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (!strcmp(name, words[i].name[0]) || !strcmp(name, words[i].name[1]))
            return words[i].make();
    if (!kv_chat_accept(r, "("))
        return live ? variable(r->c, name) : NULL;
    read_args(r, live, !strcmp(name, "namespace"), &a);
    if (live && !r->c->failed)
        x = call_function(r->c, name, &a);
    clear_args(&a);
    return x;
}

static json_t *primary(struct kv_chat_reader *r, bool live)
{
    json_t *x;

    if (kv_chat_at_end(r))
        return kv_chat_fail(r->c, "an expression is missing");
    if (*r->at == '\'' || *r->at == '"')
        return quoted(r);
    if (isdigit((unsigned char)*r->at))
        return number(r);
    if (kv_chat_accept(r, "["))
        return list(r, "]", live);
    if (kv_chat_accept(r, "{"))
        return object(r, live);
    if (!kv_chat_accept(r, "("))
        return named(r, live);
    x = kv_chat_expression(r, live);
    expect(r, ")");
    return x;
}

/* ---- what follows it ----------------------------------------------------- */

/* After "x.": an attribute or a method. */
static json_t *attribute(struct kv_chat_reader *r, json_t *x, bool live)
{
    char name[MAX_NAME];
    json_t *y = NULL, *key;
    struct args a;

    if (!kv_chat_name(r, name, sizeof(name)))
        return NULL;
    if (kv_chat_accept(r, "(")) {
        read_args(r, live, false, &a);
        if (live && !r->c->failed)
            y = kv_chat_method(r->c, name, x, a.value, a.n);
        clear_args(&a);
        return y;
    }
    key = json_string(name);
    if (live)
        y = kv_chat_item(r->c, x, key);
    json_decref(key);
    return y;
}

/* After "x[:", before ":-1]". */
static json_t *reversed(struct kv_chat_reader *r, json_t *from, json_t *x,
                        bool live)
{
    const bool whole = !from && kv_chat_accept(r, ":") &&
                       kv_chat_accept(r, "-") && kv_chat_accept(r, "1") &&
                       kv_chat_accept(r, "]");

    json_decref(from);
    if (!whole)
        return kv_chat_fail(r->c, "slices with a step are not implemented");
    return live ? kv_chat_reverse(r->c, x) : NULL;
}

/* After "x[": an item or a slice. */
static json_t *item(struct kv_chat_reader *r, json_t *x, bool live)
{
    json_t *from = NULL, *to = NULL, *y = NULL;
    bool slice;

    skip_space(r);
    if (r->at < r->end && *r->at != ':')
        from = kv_chat_expression(r, live);
    slice = kv_chat_accept(r, ":");
    skip_space(r);
    if (slice && r->at < r->end && *r->at == ':')
        return reversed(r, from, x, live);
    if (slice && r->at < r->end && *r->at != ']')
        to = kv_chat_expression(r, live);
    expect(r, "]");
    if (live && !r->c->failed)
        y = slice ? kv_chat_slice(r->c, x, from, to)
                  : kv_chat_item(r->c, x, from);
    json_decref(from);
    json_decref(to);
    return y;
}

static json_t *filter(struct kv_chat_reader *r, json_t *x, bool live)
{
    char name[MAX_NAME];
    struct args a = {.n = 0};
    json_t *y = NULL;

    if (!kv_chat_name(r, name, sizeof(name)))
        return NULL;
    if (kv_chat_accept(r, "("))
        read_args(r, live, false, &a);
    if (live && !r->c->failed)
        y = kv_chat_filter(r->c, name, x, a.value, a.n);
    clear_args(&a);
    return y;
}

static json_t *test(struct kv_chat_reader *r, const json_t *x)
{
    const bool not = kv_chat_accept(r, "not");
    char name[MAX_NAME];
    int is;

    if (!kv_chat_name(r, name, sizeof(name)))
        return NULL;
    is = kv_chat_test(name, x);
    if (is < 0)
        return kv_chat_fail(r->c, "the test 'is %s' is not implemented", name);
    return json_boolean((is != 0) != not );
}

static json_t *postfix(struct kv_chat_reader *r, bool live)
{
    json_t *x = primary(r, live), *y;

    while (!r->c->failed) {
        if (kv_chat_accept(r, "."))
            y = attribute(r, x, live);
        else if (kv_chat_accept(r, "["))
            y = item(r, x, live);
        else if (kv_chat_accept(r, "|"))
            y = filter(r, x, live);
        else if (kv_chat_accept(r, "is"))
            y = test(r, x);
        else
            break;
        json_decref(x);
        x = y;
    }
    return x;
}

/* ---- operators, the tightest first --------------------------------------- */

static json_t *unary(struct kv_chat_reader *r, bool live)
{
    json_t *x, *zero, *y;

    if (!kv_chat_accept(r, "-"))
        return postfix(r, live);
    x = postfix(r, live);
    zero = json_integer(0);
    y = live ? kv_chat_add(r->c, '-', zero, x) : NULL;
    json_decref(zero);
    json_decref(x);
    return y;
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

static bool ordered(struct kv_chat *c, const char *op, const json_t *a,
                    const json_t *b)
{
    int sign;

    kv_chat_step(c, json_string_length(a));
    if (json_is_integer(a) && json_is_integer(b))
        sign = (json_integer_value(a) > json_integer_value(b)) -
               (json_integer_value(a) < json_integer_value(b));
    else if (json_is_string(a) && json_is_string(b))
        sign = strcmp(json_string_value(a), json_string_value(b));
    else
        return kv_chat_fail(c, "'%s' between these values is not implemented",
                            op);
    return op[1] == '=' && !sign ? true : *op == '<' ? sign < 0 : sign > 0;
}

static bool compare(struct kv_chat *c, const char *op, const json_t *a,
                    const json_t *b)
{
    if (!strcmp(op, "=="))
        return kv_chat_equal(c, a, b);
    if (!strcmp(op, "!="))
        return !kv_chat_equal(c, a, b);
    if (!strcmp(op, "in"))
        return kv_chat_in(c, a, b);
    return ordered(c, op, a, b);
}

/* "not in" is told from "not": nothing else may stand there. */
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

static json_t *comparisons(struct kv_chat_reader *r, bool live)
{
    json_t *x = binary(r, live, 0);
    const char *op;
    bool not ;

    if (r->c->failed || !(op = comparison(r, &not )))
        return x;

    json_t *y = binary(r, live, 0);
    const bool is = live && !r->c->failed && compare(r->c, op, x, y) != not ;

    json_decref(x);
    json_decref(y);
    if (!r->c->failed && comparison(r, &not ))
        return kv_chat_fail(r->c, "chains of comparisons are not implemented");
    return json_boolean(is);
}

static json_t *negations(struct kv_chat_reader *r, bool live)
{
    json_t *x;
    bool truth;

    if (!kv_chat_accept(r, "not"))
        return comparisons(r, live);
    x = kv_chat_accept(r, "not") ? kv_chat_fail(r->c, "'not not'")
                                 : comparisons(r, live);
    truth = kv_chat_truth(x);
    json_decref(x);
    return json_boolean(!truth);
}

/* The value that decides, as in Python. */
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

/* "x if y else z": y is read before it is known whether x is live. */
static json_t *choice(struct kv_chat_reader *r, bool live)
{
    struct kv_chat_reader start = *r;
    json_t *x = junction(r, false, true), *y; /* over it */
    bool truth;

    json_decref(x);
    if (r->c->failed)
        return NULL;
    if (!kv_chat_accept(r, "if")) {
        if (!live) /* what is nested is read twice, not twice a level */
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
