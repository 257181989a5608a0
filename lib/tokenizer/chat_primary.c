/* The beginnings of expressions: texts, numbers, lists, names and calls. */
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <ctype.h>
#include <string.h>

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

void kv_chat_expect(struct kv_chat_reader *r, const char *word)
{
    if (!kv_chat_accept(r, word) && !r->c->failed)
        kv_chat_fail(r->c, "expected '%s' before '%.*s'", word,
                     (int)(r->end - r->at > 20 ? 20 : r->end - r->at), r->at);
}

bool kv_chat_name(struct kv_chat_reader *r, char *name)
{
    size_t n = 0;

    skip_space(r);
    while (r->at + n < r->end && in_name(r->at[n]))
        n++;
    if (!n || n >= KV_CHAT_NAME || isdigit((unsigned char)*r->at)) {
        kv_chat_fail(r->c, "expected a name before '%.*s'",
                     (int)(r->end - r->at > 20 ? 20 : r->end - r->at), r->at);
        return false;
    }
    memcpy(name, r->at, n);
    name[n] = 0;
    r->at += n;
    return true;
}

/* ---- texts and numbers --------------------------------------------------- */

/* Adds the character that n hexadecimal digits give, as in \x41, \u0041 or
 * \U00000041. */
static void put_code(struct kv_chat_reader *r, const char *digits, size_t n,
                     struct kv_text *text)
{
    uint32_t x = 0;
    char s[4];
    size_t i = 0;

    for (; i < n && digits + i < r->end; i++) {
        const char d = (char)tolower((unsigned char)digits[i]);

        if (!isxdigit((unsigned char)d))
            break;
        x = x << 4 | (uint32_t)(d <= '9' ? d - '0' : d - 'a' + 10);
    }
    if (i < n || !x || x > 0x10ffff || (x >= 0xd800 && x <= 0xdfff))
        kv_chat_fail(r->c, "'\\%c' in a text names no character", digits[-1]);
    else
        kv_text_add(text, s, kv_utf8_put(x, s));
}

/* Parses an escape after "\"; returns the position after it.  Like Python,
 * keeps both characters of an unknown escape. */
static const char *put_escape(struct kv_chat_reader *r, struct kv_text *text)
{
    static const char escapes[] = "ntr\\'\"abfv",
                      meant[] = "\n\t\r\\'\"\a\b\f\v";
    const char *at = r->at + 1, *found = strchr(escapes, *at);
    const size_t digits = *at == 'x' ? 2 : *at == 'u' ? 4 : *at == 'U' ? 8 : 0;

    if (found)
        kv_text_add(text, meant + (found - escapes), 1);
    else if (digits)
        put_code(r, at + 1, digits, text);
    else if (isdigit((unsigned char)*at) || *at == 'N')
        kv_chat_fail(r->c, "'\\%c' in a text is not implemented", *at);
    else if (*at != '\n')
        kv_text_add(text, at - 1, 2);
    return at + 1 + (found ? 0 : digits);
}

static void quoted(struct kv_chat_reader *r, struct kv_text *text)
{
    const char quote = *r->at++;

    while (r->at < r->end && *r->at != quote && !r->c->failed) {
        if (*r->at == '\\' && r->at + 1 < r->end) {
            r->at = put_escape(r, text);
            continue;
        }
        kv_text_add(text, r->at++, 1);
    }
    if (r->at >= r->end)
        kv_chat_fail(r->c, "a text has no end");
    else
        r->at++;
}

static bool at_quote(struct kv_chat_reader *r)
{
    skip_space(r);
    return r->at < r->end && (*r->at == '\'' || *r->at == '"');
}

/* Parses a text; adjacent texts are concatenated. */
static json_t *texts(struct kv_chat_reader *r)
{
    struct kv_text text = {0};
    json_t *x = NULL;

    while (!r->c->failed && at_quote(r))
        quoted(r, &text);
    if (!r->c->failed)
        x = json_stringn(text.n ? text.s : "", text.n);
    kv_text_clear(&text);
    return x || r->c->failed ? x : kv_chat_fail(r->c, "a text is not UTF-8");
}

bool kv_chat_at_number(struct kv_chat_reader *r)
{
    return !kv_chat_at_end(r) && isdigit((unsigned char)*r->at);
}

json_t *kv_chat_number(struct kv_chat_reader *r)
{
    json_int_t x = 0;

    while (r->at < r->end && isdigit((unsigned char)*r->at)) {
        if (x > 1000000000)
            return kv_chat_fail(r->c, "a number is too large");
        x = 10 * x + (*r->at++ - '0');
    }
    if (r->at < r->end &&
        (in_name(*r->at) || (*r->at == '.' && r->at + 1 < r->end &&
                             isdigit((unsigned char)r->at[1]))))
        return kv_chat_fail(r->c, "numbers other than plain whole ones are not "
                                  "implemented");
    return json_integer(x);
}

/* ---- lists and objects --------------------------------------------------- */

/* Parses the rest of a list, up to close. */
static void append_rest(struct kv_chat_reader *r, json_t *x, const char *close,
                        bool live)
{
    while (!r->c->failed && !kv_chat_accept(r, close)) {
        if (json_array_append_new(x, kv_chat_expression(r, live)) && live)
            kv_chat_fail(r->c, "an undefined value in a list");
        if (!kv_chat_accept(r, ",")) {
            kv_chat_expect(r, close);
            break;
        }
    }
}

static json_t *list(struct kv_chat_reader *r, bool live)
{
    json_t *x = json_array();

    append_rest(r, x, "]", live);
    return x;
}

/* Parses an expression or a tuple after "(". */
static json_t *parenthesis(struct kv_chat_reader *r, bool live)
{
    json_t *x, *all;

    if (kv_chat_accept(r, ")"))
        return kv_chat_tuple(json_array());
    x = kv_chat_expression(r, live);
    if (!kv_chat_accept(r, ",")) {
        kv_chat_expect(r, ")");
        return x;
    }
    all = json_array();
    if (json_array_append_new(all, x) && live)
        kv_chat_fail(r->c, "an undefined value in a list");
    append_rest(r, all, ")", live);
    return kv_chat_tuple(all);
}

static json_t *object(struct kv_chat_reader *r, bool live)
{
    json_t *x = json_object();

    while (!r->c->failed && !kv_chat_accept(r, "}")) {
        json_t *key = kv_chat_expression(r, live), *value;

        kv_chat_expect(r, ":");
        value = kv_chat_expression(r, live);
        if (live)
            kv_chat_set_member(r->c, x, key,
                               value ? value : kv_chat_undefined());
        json_decref(key);
        if (!kv_chat_accept(r, ",")) {
            kv_chat_expect(r, "}");
            break;
        }
    }
    return x;
}

/* ---- calls --------------------------------------------------------------- */

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

void kv_chat_read_args(struct kv_chat_reader *r, bool live,
                       struct kv_chat_args *a)
{
    char name[KV_CHAT_NAME];

    *a = (struct kv_chat_args){.named = json_object()};
    while (!r->c->failed && !kv_chat_accept(r, ")")) {
        if (is_named(r) && kv_chat_name(r, name)) {
            json_t *value;

            kv_chat_expect(r, "=");
            value = kv_chat_expression(r, live);
            json_object_set_new(a->named, name,
                                value ? value : kv_chat_undefined());
        } else if (a->n == KV_CHAT_ARGS) {
            kv_chat_fail(r->c, "a call has more than %d arguments",
                         KV_CHAT_ARGS);
        } else {
            a->value[a->n++] = kv_chat_expression(r, live);
        }
        if (!kv_chat_accept(r, ",")) {
            kv_chat_expect(r, ")");
            break;
        }
    }
}

void kv_chat_clear_args(struct kv_chat_args *a)
{
    for (size_t i = 0; i < a->n; i++)
        json_decref(a->value[i]);
    json_decref(a->named);
}

static json_t *call(struct kv_chat_reader *r, const char *name, bool live)
{
    struct kv_chat_args a;
    json_t *x = NULL;
    bool known = false;

    kv_chat_read_args(r, live, &a);
    if (live && !r->c->failed)
        x = r->c->call_macro(r->c, name, &a, &known);
    if (live && !known && !r->c->failed)
        x = kv_chat_function(r->c, name, &a);
    kv_chat_clear_args(&a);
    return x;
}

/* Parses a constant, a call "name(..)" or a variable. */
static json_t *named(struct kv_chat_reader *r, bool live)
{
    static const struct {
        const char *name[2];
        json_t *(*make)(void);
    } words[] = {{{"true", "True"}, json_true},
                 {{"false", "False"}, json_false},
                 {{"none", "None"}, json_null}};
    char name[KV_CHAT_NAME];
    json_t *x;

    if (!kv_chat_name(r, name))
        return NULL;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (!strcmp(name, words[i].name[0]) || !strcmp(name, words[i].name[1]))
            return words[i].make();
    if (kv_chat_accept(r, "("))
        return call(r, name, live);
    if (!live)
        return NULL;
    x = kv_chat_variable(r->c, name);
    if (!x && (!strcmp(name, "self") || !strcmp(name, "cycler") ||
               !strcmp(name, "joiner") || !strcmp(name, "lipsum")))
        return kv_chat_fail(r->c, "Jinja's '%s' is not implemented", name);
    if (!x && kv_chat_is_function(name)) /* "strftime_now is defined" */
        return kv_chat_named_function(name);
    return kv_chat_resolve(json_incref(x));
}

bool kv_chat_at_value(struct kv_chat_reader *r)
{
    static const char *const words[] = {"and", "or", "else"};
    const char *begin = r->at;
    bool other = false;

    for (size_t i = 0; i < 3 && !other; i++)
        other = kv_chat_accept(r, words[i]);
    r->at = begin;
    return !other && !kv_chat_at_end(r) &&
           (in_name(*r->at) || strchr("'\"[{", *r->at));
}

json_t *kv_chat_primary(struct kv_chat_reader *r, bool live)
{
    if (kv_chat_at_end(r))
        return kv_chat_fail(r->c, "an expression is missing");
    if (at_quote(r))
        return texts(r);
    if (kv_chat_at_number(r))
        return kv_chat_number(r);
    if (kv_chat_accept(r, "["))
        return list(r, live);
    if (kv_chat_accept(r, "{"))
        return object(r, live);
    if (kv_chat_accept(r, "("))
        return parenthesis(r, live);
    return named(r, live);
}
