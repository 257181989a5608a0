#include "lib/base/decimal.h"
#include "lib/exec.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/spec_engines.h"
#include "lib/spec_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int fail_spec(const char *text, struct kv_err *e)
{
    const size_t n = strlen(text);

    return kv_fail_in(e, "spec '%.*s%s'", KV_SHOWN(text, n));
}

/* The edit distance of two names, ignoring case, for "did you mean". */
static size_t distance(const char *a, size_t na, const char *b)
{
    enum { MAX = 64 };
    const size_t nb = strlen(b);
    size_t row[MAX + 1];

    if (na > MAX || nb > MAX)
        return MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (tolower((unsigned char)a[i - 1]) !=
                                      tolower((unsigned char)b[j - 1]));

            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[nb];
}

static int unknown_scheme(const char *name, size_t n, struct kv_err *e)
{
    const char *hint = kv_spec_hint(name, n);
    const struct kv_scheme *best = NULL;
    size_t nearest = 3;

    if (hint)
        return kv_fail(e, "unknown scheme '%.*s': write %s", (int)n, name,
                       hint);
    for (size_t i = 0; kv_schemes[i]; i++) {
        const size_t d = distance(name, n, kv_schemes[i]->name);

        if (d < nearest) {
            nearest = d;
            best = kv_schemes[i];
        }
    }
    if (!n)
        return kv_fail(e, "a spec is missing: expected a scheme and its "
                          "parameters, as in kivi:b2g32");
    if (best)
        return kv_fail(e, "unknown scheme '%.*s': did you mean '%s'?", (int)n,
                       name, best->name);
    return kv_fail(e, "unknown scheme '%.*s%s' (--list shows them all)",
                   KV_SHOWN(name, n));
}

/* Writes "b (1 to 8), g (1 to 1024), round (stochastic|nearest)". */
static void known_params(const struct kv_scheme *k, char *text, size_t capacity)
{
    size_t n = 0;

    text[0] = 0;
    for (size_t i = 0; i < kv_spec_n_params(k) && n + 1 < capacity; i++) {
        const struct kv_param *p = kv_spec_param(k, i);

        if (p->choices)
            n += (size_t)snprintf(text + n, capacity - n, "%s%s (%s)",
                                  i ? ", " : "", p->name, p->choices);
        else
            n += (size_t)snprintf(
                text + n, capacity - n, "%s%s (%s to %s)", i ? ", " : "",
                p->name, kv_decimal(p->min).text, kv_decimal(p->max).text);
    }
}

static int unknown_param(const struct kv_scheme *k, const char *what, size_t n,
                         struct kv_err *e)
{
    char known[512];
    const char *best = NULL;
    size_t nearest = n < 3 ? n : 3; /* at least one letter in common */

    for (size_t i = 0; i < kv_spec_n_params(k); i++) {
        const size_t d = distance(what, n, kv_spec_param(k, i)->name);

        if (d < nearest) {
            nearest = d;
            best = kv_spec_param(k, i)->name;
        }
    }
    if (best)
        return kv_fail(e, "%s has no '%.*s': did you mean '%s'?", k->name,
                       (int)n, what, best);
    known_params(k, known, sizeof(known));
    return kv_fail(e, "%s has no '%.*s%s'; it has %s", k->name,
                   KV_SHOWN(what, n), known);
}

/* Whether the text is a word of the scheme, with any value. */
static bool is_word(const struct kv_scheme *k, const char *text, size_t n)
{
    const char *eq = memchr(text, '=', n);
    const struct kv_param *p =
        kv_spec_param(k, kv_spec_index(k, text, eq ? (size_t)(eq - text) : n));

    if (p && !kv_is_letter(p))
        return true;
    for (size_t i = 0; !eq && (p = kv_spec_param(k, i)); i++)
        if (p->choices && kv_choice_find(p->choices, text, n) >= 0)
            return true;
    return false;
}

/* Whether the text after ':' is a word, as allowed for a scheme without
 * letters. */
static bool word_first(const struct kv_scheme *k, const char *text, size_t n)
{
    for (size_t i = 0; i < kv_spec_n_own(k); i++)
        if (kv_is_letter(&k->params[i]))
            return false;
    return is_word(k, text, n);
}

static int wants_comma(const struct kv_scheme *k, const char *text, size_t n,
                       struct kv_err *e)
{
    return kv_fail(e, "words come after a comma, not after ':': %s,%.*s%s",
                   k->name, KV_SHOWN(text, n));
}

struct reading {
    struct kv_spec *s;
    bool given[KV_SIDES][KV_MAX_PARAMS];
};

/* Sets parameter i.  sides: bit 0 means K, bit 1 means V. */
static int assign(struct reading *r, int sides, size_t i, double value,
                  struct kv_err *e)
{
    const struct kv_param *p = kv_spec_param(r->s->scheme, i);

    if (!p->choices && (value < p->min || value > p->max))
        return kv_fail(e, "%s=%s is out of range: expected %s to %s", p->name,
                       kv_decimal(value).text, kv_decimal(p->min).text,
                       kv_decimal(p->max).text);
    for (int side = 0; side < KV_SIDES; side++) {
        if (!(sides & 1 << side))
            continue;
        if (r->given[side][i])
            return kv_fail(e, "'%s' is given twice", p->name);
        r->given[side][i] = true;
        r->s->value[side][i] = value;
        r->s->keeps |= !strcmp(p->name, "r") || !strcmp(p->name, "s");
    }
    return 0;
}

/* Parses a plain decimal number, which must be whole if the parameter's range
 * and default are. */
static int number(const struct kv_param *p, const char *text, const char *end,
                  double *value, struct kv_err *e)
{
    const size_t n = (size_t)(end - text);

    if (!n || n > 20 || strspn(text, "0123456789.") < n)
        return kv_fail(e, "'%s' wants a number, not '%.*s%s'", p->name,
                       KV_SHOWN(text, n));

    char copy[24] = "", *stop;

    memcpy(copy, text, n);
    *value = strtod(copy, &stop);
    if (*stop || (p->min == floor(p->min) && p->max == floor(p->max) &&
                  p->fallback == floor(p->fallback) && *value != floor(*value)))
        return kv_fail(e, "'%s' wants a whole number, not '%s'", p->name, copy);
    return 0;
}

static int read_letters(struct reading *r, int sides, const char *text,
                        const char *end, struct kv_err *e)
{
    const struct kv_scheme *k = r->s->scheme;

    while (text < end) {
        const char name[2] = {*text, 0};
        const size_t i = kv_spec_index(k, text, 1);
        const struct kv_param *p = kv_spec_param(k, i);
        const char *digits = text + 1;
        size_t n = 0;
        double value;

        if (is_word(k, text, (size_t)(end - text)))
            return wants_comma(k, text, (size_t)(end - text), e);
        if (!p || !kv_is_letter(p))
            return unknown_param(k, text, 1, e);
        while (digits + n < end &&
               (isdigit((unsigned char)digits[n]) || digits[n] == '.'))
            n++;
        if (!n)
            return kv_fail(e, "'%s' wants a number, not '%.*s%s'", name,
                           KV_SHOWN(digits, (size_t)(end - digits)));
        if (number(p, digits, digits + n, &value, e) ||
            assign(r, sides, i, value, e))
            return -1;
        text = digits + n;
    }
    return 0;
}

static int read_part(struct reading *r, const char *text, const char *end,
                     struct kv_err *e)
{
    const char *slash = memchr(text, '/', (size_t)(end - text));

    if (end - text < 2 || text[1] != '-')
        return read_letters(r, 3, text, end, e);
    if (text[0] != 'K' || !slash || end - slash < 3 ||
        memcmp(slash, "/V-", 3) != 0)
        return kv_fail(e, "expected K-letters/V-letters, not '%.*s%s'",
                       KV_SHOWN(text, (size_t)(end - text)));
    if (read_letters(r, 1, text + 2, slash, e) ||
        read_letters(r, 2, slash + 3, end, e))
        return -1;
    return 0;
}

static int two_mean(const struct kv_scheme *k, size_t i, size_t j,
                    const char *text, size_t n, struct kv_err *e)
{
    return kv_fail(e, "'%.*s' may be %s or %s of %s: write %s=%.*s", (int)n,
                   text, kv_spec_param(k, i)->name, kv_spec_param(k, j)->name,
                   k->name, kv_spec_param(k, i)->name, (int)n, text);
}

/* Parses the value after name=. */
static int read_value(struct reading *r, int sides, size_t i, const char *text,
                      const char *end, struct kv_err *e)
{
    const struct kv_param *p = kv_spec_param(r->s->scheme, i);
    const size_t n = (size_t)(end - text);
    double value;

    if (!p->choices) {
        if (number(p, text, end, &value, e))
            return -1;
    } else {
        value = kv_choice_find(p->choices, text, n);
        if (value < 0)
            return kv_fail(e, "%s=%.*s%s: expected one of %s", p->name,
                           KV_SHOWN(text, n), p->choices);
    }
    return assign(r, sides, i, value, e);
}

/* Parses "se" or "no-se" for a yes/no word. */
static int read_yes_no(struct reading *r, int sides, const char *text, size_t n,
                       struct kv_err *e)
{
    const struct kv_scheme *k = r->s->scheme;
    const bool no = n > 3 && !memcmp(text, "no-", 3);
    const char *name = text + (no ? 3 : 0);
    const size_t i = kv_spec_index(k, name, n - (no ? 3 : 0));
    const struct kv_param *p = kv_spec_param(k, i);

    if (!p || !p->choices || kv_choice_find(p->choices, "no", 2) < 0)
        return unknown_param(k, text, n, e);
    return assign(r, sides, i,
                  kv_choice_find(p->choices, no ? "no" : "yes", no ? 2 : 3), e);
}

static int read_word(struct reading *r, const char *text, const char *end,
                     struct kv_err *e)
{
    const struct kv_scheme *k = r->s->scheme;
    const size_t none = kv_spec_n_params(k);
    size_t found = none;
    int sides = 3;

    if (end - text > 2 && text[1] == '-' && (*text == 'K' || *text == 'V')) {
        sides = *text == 'K' ? 1 : 2;
        text += 2;
    }

    const char *eq = memchr(text, '=', (size_t)(end - text));
    const size_t n = (size_t)((eq ? eq : end) - text);

    if (eq) {
        found = kv_spec_index(k, text, n);
        return found == none ? unknown_param(k, text, n, e)
                             : read_value(r, sides, found, eq + 1, end, e);
    }
    for (size_t i = 0; i < none; i++) {
        const struct kv_param *p = kv_spec_param(k, i);

        if (!p->choices || kv_choice_find(p->choices, text, n) < 0)
            continue;
        if (found < none)
            return two_mean(k, found, i, text, n, e);
        found = i;
    }
    return found < none ? read_value(r, sides, found, text, end, e)
                        : read_yes_no(r, sides, text, n, e);
}

/* Fills in defaults that depend on the given parameters. */
static void fill_in(struct reading *r)
{
    const struct kv_scheme *k = r->s->scheme;

    for (int side = 0; side < KV_SIDES; side++)
        for (size_t i = 0; k->fallback && i < kv_spec_n_own(k); i++)
            if (!r->given[side][i])
                r->s->value[side][i] =
                    k->fallback(r->s, (enum kv_side)side, kv_spec_param(k, i));
}

/* Parses the file of a mixed spec, which follows the letters, to the end. */
static int read_file_word(struct kv_spec *s, const char *at, struct kv_err *e)
{
    static const char word[] = ",file=";

    if (strncmp(at, word, strlen(word)) || !at[strlen(word)])
        return kv_fail(e, "expected a layer file, as in mixed,file=layers.txt");
    return kv_mixed_read(&s->mixed, at + strlen(word), e);
}

/* The scheme whose name begins the text and ends at *end, or NULL. */
static const struct kv_scheme *read_name(const char *text, const char **end)
{
    const size_t n = strcspn(text, ":,");
    char name[32];

    snprintf(name, sizeof(name), "%.*s", (int)(n < 31 ? n : 31), text);
    *end = text + n;
    return kv_scheme_find(name);
}

/* Parses the text after the name: [':' part] {',' word}. */
static int read_params(struct kv_spec *s, const char *at, struct kv_err *e)
{
    struct reading r = {.s = s};

    for (int side = 0; side < KV_SIDES; side++)
        for (size_t i = 0; i < kv_spec_n_params(s->scheme); i++)
            s->value[side][i] = kv_spec_fallback(s->scheme, i);
    if (*at == ':') {
        const char *end;

        at++;
        end = at + strcspn(at, ",");
        if (word_first(s->scheme, at, (size_t)(end - at))
                ? read_word(&r, at, end, e)
                : read_part(&r, at, end, e))
            return -1;
        at = end;
    }
    if (s->scheme == &kv_scheme_mixed) {
        if (read_file_word(s, at, e))
            return -1;
        at = "";
    }
    while (*at == ',') {
        const char *end;

        at++;
        end = at + strcspn(at, ",");
        if (read_word(&r, at, end, e))
            return -1;
        at = end;
    }
    fill_in(&r);
    return 0;
}

/* Parses an exec spec.  The command ends the text, and the words before it
 * define the scheme's parameters. */
static int read_exec(struct kv_spec *s, const char *at, struct kv_err *e)
{
    char *words;
    int rc;

    if (kv_exec_read(&s->scheme, at, &words, e))
        return -1;
    rc = read_params(s, words, e) || kv_exec_check(s, e) ? -1 : 0;
    free(words);
    return rc;
}

static int read_rest(struct kv_spec *s, const char *at, struct kv_err *e)
{
    if (s->scheme == &kv_scheme_exec ? read_exec(s, at, e)
                                     : read_params(s, at, e))
        return -1;
    kv_spec_print(s);
    return 0;
}

/* Parses a scheme's name and its parameters.  text: the whole spec, for error
 * messages. */
static int parse_one(struct kv_spec *s, const char *own, const char *text,
                     struct kv_err *e)
{
    const char *rest;

    s->scheme = read_name(own, &rest);
    if (!s->scheme)
        return unknown_scheme(own, (size_t)(rest - own), e);
    return read_rest(s, rest, e) ? fail_spec(text, e) : 0;
}

int kv_spec_parse(struct kv_spec *s, const char *text, struct kv_err *e)
{
    const char *own;
    char *plain;
    int rc;

    *s = (struct kv_spec){0};
    snprintf(s->given, sizeof(s->given), "%s", text);
    if (!(own = kv_policy_parse(&s->policy, text, e)))
        return fail_spec(text, e);
    if (kv_spec_has_sides(own))
        return kv_spec_read_sides(s, own, e) ? fail_spec(text, e) : 0;
    if (kv_spec_of_engine(&plain, own, e))
        return fail_spec(text, e);
    rc = parse_one(s, plain ? plain : own, text, e);
    free(plain);
    return rc;
}

bool kv_spec_looks_like(const char *operand)
{
    struct kv_policy_spec policy;
    const char *spec = kv_policy_parse(&policy, operand, NULL), *end;

    return !spec || read_name(spec, &end) || kv_spec_sides_look_like(spec);
}
