/* Translates Oniguruma's syntax to PCRE2's.  Accepts only syntax that means the
 * same in both, or that can be rewritten so that it does. */
#include "lib/tokenizer/tokenizer_pattern.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Unicode's White_Space; PCRE2's own \s also takes U+180E. */
#define SPACES "\\p{Z}\\t-\\r\\x{85}"

struct translator {
    const char *at;
    struct kv_text *out;
    bool in_class;
};

static void put(struct translator *x, const char *s)
{
    kv_text_add(x->out, s, strlen(s));
}

static void copy(struct translator *x, size_t n)
{
    kv_text_add(x->out, x->at, n);
    x->at += n;
}

/* Copies \p{L}, \P{Lu}, \p{^L} or \x{2581}; PCRE2 checks the name. */
static int braced(struct translator *x, struct kv_err *e)
{
    const char *end = strchr(x->at, '}');

    if (x->at[2] != '{' || !end)
        return kv_fail(e, "\\%c without {...} is not supported", x->at[1]);
    copy(x, (size_t)(end - x->at) + 1);
    return 0;
}

/* Rewrites \u2581 as \x{2581}. */
static int four_digits(struct translator *x, struct kv_err *e)
{
    for (size_t i = 2; i < 6; i++)
        if (!isxdigit((unsigned char)x->at[i]))
            return kv_fail(e, "\\u without four hex digits");
    put(x, "\\x{");
    x->at += 2;
    copy(x, 4);
    put(x, "}");
    return 0;
}

static int escape(struct translator *x, struct kv_err *e)
{
    const char c = x->at[1];

    switch (c) {
    case 'p':
    case 'P':
    case 'x':
        return braced(x, e);
    case 'u':
        return four_digits(x, e);
    case 's':
        put(x, x->in_class ? SPACES : "[" SPACES "]");
        break;
    case 'S':
        if (x->in_class)
            return kv_fail(e, "\\S between [ and ] is not supported");
        put(x, "[^" SPACES "]");
        break;
    case 'v':
        put(x, "\\x{0b}");
        break;
    case 'A':
    case 'z':
        if (x->in_class)
            return kv_fail(e, "\\%c between [ and ] is not supported", c);
        copy(x, 2);
        return 0;
    case 'd':
    case 'D':
    case 'r':
    case 'n':
    case 't':
    case 'f':
        copy(x, 2);
        return 0;
    default:
        if (!ispunct((unsigned char)c))
            return c ? kv_fail(e, "\\%c is not supported", c)
                     : kv_fail(e, "a \\ at the end");
        copy(x, 2);
        return 0;
    }
    x->at += 2;
    return 0;
}

static int class_member(struct translator *x, struct kv_err *e)
{
    if (*x->at == '[' || !strncmp(x->at, "&&", 2))
        return kv_fail(e, "%c inside [ and ] is not supported", *x->at);
    x->in_class = *x->at != ']';
    copy(x, 1);
    return 0;
}

/* Accepts options only for one group, as in (?i:..), since Ruby and Perl
 * disagree on how far a bare (?i) reaches. */
static int group(struct translator *x, struct kv_err *e)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!",
                                        "(?>", "(?<=", "(?<!"};

    if (x->at[1] != '?') {
        copy(x, 1);
        return 0;
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (!strncmp(x->at, known[i], strlen(known[i]))) {
            copy(x, strlen(known[i]));
            return 0;
        }
    }
    return kv_fail(e, "(?%.1s is not supported", x->at + 2);
}

/* Copies {n}, {n,} or {n,m}.  Refuses a ? or + after it, which is lazy or
 * possessive in one syntax and not in the other. */
static int interval(struct translator *x, struct kv_err *e)
{
    const size_t n = strspn(x->at + 1, "0123456789,");

    if (!isdigit((unsigned char)x->at[1]) || x->at[n + 1] != '}' ||
        x->at[n + 2] == '?' || x->at[n + 2] == '+')
        return kv_fail(e, "only {n}, {n,} and {n,m} are supported as counts");
    copy(x, n + 2);
    return 0;
}

static int translate(struct translator *x, struct kv_err *e)
{
    while (*x->at) {
        const char c = *x->at;
        int rc = 0;

        if (c == '\\') {
            rc = escape(x, e);
        } else if (x->in_class) {
            rc = class_member(x, e);
        } else if (c == '[') {
            x->in_class = true;
            /* a ] in the first position is an ordinary character */
            copy(x, x->at[1] == '^' ? 2 : 1);
            if (*x->at == ']')
                copy(x, 1);
        } else if (c == '(') {
            rc = group(x, e);
        } else if (c == '{') {
            rc = interval(x, e);
        } else {
            copy(x, 1);
        }
        if (rc)
            return -1;
    }
    return 0;
}

int kv_regex_translate(const char *source, struct kv_text *out,
                       struct kv_err *e)
{
    struct translator x = {.at = source, .out = out};

    if (translate(&x, e))
        return kv_fail_in(e, "regular expression \"%s\"", source);
    return 0;
}
