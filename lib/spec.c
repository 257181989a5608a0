#include "lib/spec.h"
#include "lib/base/alloc.h"
#include "lib/codec.h"
#include "lib/mixed.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A scheme's own parameters, then the two letters every scheme has. */
static const struct kv_param common[] = {
    {"r", NULL, 0, 0, 1 << 20, false, "newest tokens kept in fp16"},
    {"s", NULL, 0, 0, 1 << 20, false, "first tokens kept in fp16 (sinks)"},
};

static size_t n_own(const struct kv_scheme *k)
{
    size_t n = 0;

    while (k->params && k->params[n].name)
        n++;
    assert(n + 2 <= KV_MAX_PARAMS);
    return n;
}

static size_t n_params(const struct kv_scheme *k)
{
    return n_own(k) + 2;
}

static const struct kv_param *param(const struct kv_scheme *k, size_t i)
{
    const size_t own = n_own(k);

    return i < own ? &k->params[i] : &common[i - own];
}

const struct kv_param *kv_spec_param(const struct kv_scheme *k, size_t i)
{
    return i < n_params(k) ? param(k, i) : NULL;
}

static double fallback(const struct kv_scheme *k, size_t i)
{
    const size_t own = n_own(k);

    if (i < own)
        return k->params[i].fallback;
    if (k == &kv_scheme_mixed)
        return KV_AS_PLACED;
    return (double)(i == own ? k->residual : k->sinks);
}

static bool is_letter(const struct kv_param *p)
{
    return !p->name[1] && !p->choices;
}

static size_t index_of(const struct kv_scheme *k, const char *name)
{
    size_t i = 0;

    while (i < n_params(k) && strcmp(param(k, i)->name, name))
        i++;
    return i;
}

double kv_spec_get(const struct kv_spec *s, enum kv_side side, const char *name)
{
    const size_t i = index_of(s->scheme, name);

    if (i == n_params(s->scheme))
        abort(); /* the scheme's own code asks for what it does not have */
    return s->value[side][i];
}

size_t kv_spec_size(const struct kv_spec *s, enum kv_side side,
                    const char *name)
{
    return (size_t)kv_spec_get(s, side, name);
}

void kv_spec_set(struct kv_spec *s, enum kv_side side, const char *name,
                 double value)
{
    const size_t i = index_of(s->scheme, name);

    if (i == n_params(s->scheme))
        abort();
    s->value[side][i] = value;
}

/* The i-th of "a|b|c"; its length in *n, NULL past the end. */
static const char *choice_at(const char *choices, size_t i, size_t *n)
{
    for (; i; i--) {
        choices = strchr(choices, '|');
        if (!choices)
            return NULL;
        choices++;
    }
    *n = strcspn(choices, "|");
    return choices;
}

/* Index of the choice, or -1. */
static int choice_find(const char *choices, const char *text, size_t len)
{
    const char *c;
    size_t n;

    for (size_t i = 0; (c = choice_at(choices, i, &n)); i++)
        if (n == len && !memcmp(c, text, n))
            return (int)i;
    return -1;
}

bool kv_spec_is(const struct kv_spec *s, enum kv_side side, const char *name,
                const char *choice)
{
    const size_t i = index_of(s->scheme, name);

    if (i == n_params(s->scheme) || !param(s->scheme, i)->choices)
        abort();

    const int at =
        choice_find(param(s->scheme, i)->choices, choice, strlen(choice));

    if (at < 0)
        abort();
    return s->value[side][i] == at;
}

/* ---- printing ---------------------------------------------------------- */

struct writer {
    char *text;
    size_t room, n;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w,
                                                      const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);

    const int n = vsnprintf(w->text + w->n, w->room - w->n, fmt, ap);

    va_end(ap);
    assert(n >= 0 && w->n + (size_t)n < w->room);
    w->n += (size_t)n;
}

/* Letters of a mixed spec may be left to its places. */
static bool is_given(const struct kv_spec *s, enum kv_side side, size_t i)
{
    return !s->mixed || s->value[side][i] != KV_AS_PLACED;
}

static void put_letters(struct writer *w, const struct kv_spec *s,
                        enum kv_side side, bool calib)
{
    for (size_t i = 0; i < n_params(s->scheme); i++) {
        const struct kv_param *p = param(s->scheme, i);

        if (is_letter(p) && (!calib || p->calib) && is_given(s, side, i))
            put(w, "%s%.9g", p->name, s->value[side][i]);
    }
}

static void put_word(struct writer *w, const struct kv_param *p,
                     const char *prefix, double value)
{
    size_t n = 0;
    const char *c = p->choices ? choice_at(p->choices, (size_t)value, &n) : "";

    if (p->choices)
        put(w, ",%s%s=%.*s", prefix, p->name, (int)n, c);
    else
        put(w, ",%s%s=%.9g", prefix, p->name, value);
}

static void print(const struct kv_spec *s, char *text, bool calib)
{
    const struct kv_scheme *k = s->scheme;
    struct writer w = {text, KV_SPEC_CHARS, 0};
    bool letters = false, differ = false;

    for (size_t i = 0; i < n_params(k); i++) {
        const struct kv_param *p = param(k, i);

        if (is_letter(p) && (!calib || p->calib)) {
            letters |= is_given(s, KV_K, i) || is_given(s, KV_V, i);
            differ |= s->value[KV_K][i] != s->value[KV_V][i];
        }
    }
    put(&w, "%s", k->name);
    if (letters) {
        put(&w, ":%s", differ ? "K-" : "");
        put_letters(&w, s, KV_K, calib);
        if (differ) {
            put(&w, "/V-");
            put_letters(&w, s, KV_V, calib);
        }
    }
    for (size_t i = 0; i < n_params(k); i++) {
        const struct kv_param *p = param(k, i);

        if (is_letter(p) || (calib && !p->calib))
            continue;
        if (s->value[KV_K][i] == s->value[KV_V][i]) {
            put_word(&w, p, "", s->value[KV_K][i]);
        } else {
            put_word(&w, p, "K-", s->value[KV_K][i]);
            put_word(&w, p, "V-", s->value[KV_V][i]);
        }
    }
    if (s->mixed)
        put(&w, ",file=%s@%s", s->mixed->name, s->mixed->hash);
}

void kv_spec_print(struct kv_spec *s)
{
    print(s, s->text, false);
}

void kv_spec_calib_key(const struct kv_spec *s, char key[KV_SPEC_CHARS])
{
    print(s, key, true);
}

/* ---- reading ----------------------------------------------------------- */

/* A text of n bytes for "%.*s%s": as much as leaves room for the sentence. */
enum { LONGEST = 200 };
#define SHOWN(text, n) \
    (int)((n) < LONGEST ? (n) : LONGEST), text, (n) > LONGEST ? "..." : ""

static int fail_spec(const char *text, struct kv_err *e)
{
    const size_t n = strlen(text);

    return kv_fail_in(e, "spec '%.*s%s'", SHOWN(text, n));
}

/* Edit distance, for "did you mean". */
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
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[nb];
}

static int unknown_scheme(const char *name, size_t n, struct kv_err *e)
{
    const struct kv_scheme *best = NULL;
    size_t least = 3;

    for (size_t i = 0; kv_schemes[i]; i++) {
        const size_t d = distance(name, n, kv_schemes[i]->name);

        if (d < least) {
            least = d;
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
                   SHOWN(name, n));
}

/* "b (1 to 8), g (1 to 1024), round (stochastic|nearest)" */
static void known_params(const struct kv_scheme *k, char *text, size_t room)
{
    size_t n = 0;

    text[0] = 0;
    for (size_t i = 0; i < n_params(k) && n + 1 < room; i++) {
        const struct kv_param *p = param(k, i);

        if (p->choices)
            n += (size_t)snprintf(text + n, room - n, "%s%s (%s)",
                                  i ? ", " : "", p->name, p->choices);
        else
            n += (size_t)snprintf(text + n, room - n, "%s%s (%.9g to %.9g)",
                                  i ? ", " : "", p->name, p->min, p->max);
    }
}

static int unknown_param(const struct kv_scheme *k, const char *what, size_t n,
                         struct kv_err *e)
{
    char known[512];
    const char *best = NULL;
    size_t least = 3;

    for (size_t i = 0; i < n_params(k); i++) {
        const size_t d = distance(what, n, param(k, i)->name);

        if (n > 1 && d < least) {
            least = d;
            best = param(k, i)->name;
        }
    }
    if (best)
        return kv_fail(e, "%s has no '%.*s': did you mean '%s'?", k->name,
                       (int)n, what, best);
    known_params(k, known, sizeof(known));
    return kv_fail(e, "%s has no '%.*s%s'; it has %s", k->name, SHOWN(what, n),
                   known);
}

/* Whether the text is a word of the scheme, whatever it is set to. */
static bool is_word(const struct kv_scheme *k, const char *text, size_t n)
{
    const char *eq = memchr(text, '=', n);
    const size_t len = eq ? (size_t)(eq - text) : n;

    for (size_t i = 0; i < n_params(k); i++) {
        const struct kv_param *p = param(k, i);

        if (!is_letter(p) && strlen(p->name) == len &&
            !memcmp(p->name, text, len))
            return true;
        if (!eq && p->choices && choice_find(p->choices, text, n) >= 0)
            return true;
    }
    return false;
}

/* A scheme without letters of its own takes a word in their place. */
static bool word_first(const struct kv_scheme *k, const char *text, size_t n)
{
    for (size_t i = 0; i < n_own(k); i++)
        if (is_letter(&k->params[i]))
            return false;
    return is_word(k, text, n);
}

static int wants_comma(const struct kv_scheme *k, const char *text, size_t n,
                       struct kv_err *e)
{
    return kv_fail(e, "words come after a comma, not after ':': %s,%.*s%s",
                   k->name, SHOWN(text, n));
}

struct reading {
    struct kv_spec *s;
    bool given[KV_SIDES][KV_MAX_PARAMS];
};

/* sides: bit 0 K, bit 1 V. */
static int assign(struct reading *r, int sides, size_t i, double value,
                  struct kv_err *e)
{
    const struct kv_param *p = param(r->s->scheme, i);

    if (!p->choices && (value < p->min || value > p->max))
        return kv_fail(e, "%s=%.9g is out of range: expected %.9g to %.9g",
                       p->name, value, p->min, p->max);
    for (int side = 0; side < KV_SIDES; side++) {
        if (!(sides & 1 << side))
            continue;
        if (r->given[side][i])
            return kv_fail(e, "'%s' is given twice", p->name);
        r->given[side][i] = true;
        r->s->value[side][i] = value;
    }
    return 0;
}

/* A plain decimal number; letters that are numbers are whole unless their
 * range says otherwise. */
static int number(const struct kv_param *p, const char *text, const char *end,
                  double *value, struct kv_err *e)
{
    const size_t n = (size_t)(end - text);

    if (!n || n > 20 || strspn(text, "0123456789.") < n)
        return kv_fail(e, "'%s' wants a number, not '%.*s%s'", p->name,
                       SHOWN(text, n));

    char copy[24] = "", *stop;

    memcpy(copy, text, n);
    *value = strtod(copy, &stop);
    if (*stop || (p->min == floor(p->min) && p->max == floor(p->max) &&
                  *value != floor(*value)))
        return kv_fail(e, "'%s' wants a whole number, not '%s'", p->name, copy);
    return 0;
}

static int read_letters(struct reading *r, int sides, const char *text,
                        const char *end, struct kv_err *e)
{
    const struct kv_scheme *k = r->s->scheme;

    while (text < end) {
        const char name[2] = {*text, 0};
        const size_t i = index_of(k, name);
        const char *digits = text + 1;
        size_t n = 0;
        double value;

        if (is_word(k, text, (size_t)(end - text)))
            return wants_comma(k, text, (size_t)(end - text), e);
        if (i == n_params(k) || !is_letter(param(k, i)))
            return unknown_param(k, text, 1, e);
        while (digits + n < end &&
               (isdigit((unsigned char)digits[n]) || digits[n] == '.'))
            n++;
        if (!n)
            return kv_fail(e, "'%s' wants a number, not '%.*s%s'", name,
                           SHOWN(digits, (size_t)(end - digits)));
        if (number(param(k, i), digits, digits + n, &value, e) ||
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
                       SHOWN(text, (size_t)(end - text)));
    if (read_letters(r, 1, text + 2, slash, e) ||
        read_letters(r, 2, slash + 3, end, e))
        return -1;
    return 0;
}

static int two_mean(const struct kv_scheme *k, size_t i, size_t j,
                    const char *text, size_t n, struct kv_err *e)
{
    return kv_fail(e, "'%.*s' may be %s or %s of %s: write %s=%.*s", (int)n,
                   text, param(k, i)->name, param(k, j)->name, k->name,
                   param(k, i)->name, (int)n, text);
}

static int read_word(struct reading *r, const char *text, const char *end,
                     struct kv_err *e)
{
    const struct kv_scheme *k = r->s->scheme;
    int sides = 3;

    if (end - text > 2 && text[1] == '-' && (*text == 'K' || *text == 'V')) {
        sides = *text == 'K' ? 1 : 2;
        text += 2;
    }

    const char *eq = memchr(text, '=', (size_t)(end - text));
    const size_t n = (size_t)((eq ? eq : end) - text);
    int found = -1, by_choice = -1;

    for (size_t i = 0; i < n_params(k); i++) {
        const struct kv_param *p = param(k, i);

        if (strlen(p->name) == n && !memcmp(p->name, text, n))
            found = (int)i;
        if (eq || !p->choices || choice_find(p->choices, text, n) < 0)
            continue;
        if (by_choice >= 0)
            return two_mean(k, (size_t)by_choice, i, text, n, e);
        by_choice = (int)i;
    }
    if (eq) {
        const struct kv_param *p;
        double value;

        if (found < 0)
            return unknown_param(k, text, n, e);
        p = param(k, (size_t)found);
        if (!p->choices) {
            if (number(p, eq + 1, end, &value, e))
                return -1;
        } else {
            value = choice_find(p->choices, eq + 1, (size_t)(end - eq - 1));
            if (value < 0)
                return kv_fail(e, "%s=%.*s%s: expected one of %s", p->name,
                               SHOWN(eq + 1, (size_t)(end - eq - 1)),
                               p->choices);
        }
        return assign(r, sides, (size_t)found, value, e);
    }
    if (by_choice >= 0)
        return assign(
            r, sides, (size_t)by_choice,
            choice_find(param(k, (size_t)by_choice)->choices, text, n), e);
    /* "se" and "no-se" for a yes/no word */
    const bool no = n > 3 && !memcmp(text, "no-", 3);

    for (size_t i = 0; i < n_params(k); i++) {
        const struct kv_param *p = param(k, i);
        const char *name = text + (no ? 3 : 0);
        const size_t len = n - (no ? 3 : 0);

        if (p->choices && strlen(p->name) == len &&
            !memcmp(p->name, name, len) &&
            choice_find(p->choices, "no", 2) >= 0)
            return assign(
                r, sides, i,
                choice_find(p->choices, no ? "no" : "yes", no ? 2 : 3), e);
    }
    return unknown_param(k, text, n, e);
}

/* Defaults that follow from what was given. */
static void fill_in(struct reading *r)
{
    const struct kv_scheme *k = r->s->scheme;

    for (int side = 0; side < KV_SIDES; side++)
        for (size_t i = 0; k->fallback && i < n_own(k); i++)
            if (!r->given[side][i])
                r->s->value[side][i] =
                    k->fallback(r->s, (enum kv_side)side, param(k, i));
}

/* What follows the letters of a mixed spec: its file, to the end. */
static int read_file_word(struct kv_spec *s, const char *at, struct kv_err *e)
{
    static const char word[] = ",file=";

    if (strncmp(at, word, strlen(word)) || !at[strlen(word)])
        return kv_fail(e, "expected a layer file, as in mixed,file=layers.txt");
    return kv_mixed_read(&s->mixed, at + strlen(word), e);
}

int kv_spec_parse(struct kv_spec *s, const char *text, struct kv_err *e)
{
    const size_t n = strcspn(text, ":,");
    const char *at = text + n;
    struct reading r = {.s = s};
    char name[32];

    *s = (struct kv_spec){0};
    snprintf(s->given, sizeof(s->given), "%s", text);
    snprintf(name, sizeof(name), "%.*s", (int)(n < 31 ? n : 31), text);
    s->scheme = kv_scheme_find(name);
    if (!s->scheme)
        return unknown_scheme(text, n, e);
    for (int side = 0; side < KV_SIDES; side++)
        for (size_t i = 0; i < n_params(s->scheme); i++)
            s->value[side][i] = fallback(s->scheme, i);
    if (*at == ':') {
        const char *end;

        at++;
        end = at + strcspn(at, ",");
        if (word_first(s->scheme, at, (size_t)(end - at))
                ? read_word(&r, at, end, e)
                : read_part(&r, at, end, e))
            return fail_spec(text, e);
        at = end;
    }
    if (s->scheme == &kv_scheme_mixed) {
        if (read_file_word(s, at, e))
            return fail_spec(text, e);
        at = "";
    }
    while (*at == ',') {
        const char *end;

        at++;
        end = at + strcspn(at, ",");
        if (read_word(&r, at, end, e))
            return fail_spec(text, e);
        at = end;
    }
    fill_in(&r);
    kv_spec_print(s);
    return 0;
}

bool kv_spec_looks_like(const char *operand)
{
    const size_t n = strcspn(operand, ":,");
    char name[32];

    snprintf(name, sizeof(name), "%.*s", (int)(n < 31 ? n : 31), operand);
    return kv_scheme_find(name);
}

int kv_spec_one_side(struct kv_spec *s, enum kv_side side, const char *name,
                     struct kv_err *e)
{
    const enum kv_side other = side == KV_K ? KV_V : KV_K;
    const double x = kv_spec_get(s, side, name);
    const double y = kv_spec_get(s, other, name);

    if (y != x && y != fallback(s->scheme, index_of(s->scheme, name)))
        return kv_fail(e, "%s concerns %s alone: leave %c-%s out", name,
                       side == KV_K ? "keys" : "values", kv_side_name(other),
                       name);
    kv_spec_set(s, other, name, x);
    return 0;
}

int kv_spec_fit(struct kv_spec *s, const struct kv_shape *shape,
                struct kv_err *e)
{
    if (s->mixed && kv_mixed_fit(&s->mixed, s, shape, e))
        return kv_fail_in(e, "spec '%s'", s->text);
    if (s->scheme->check && s->scheme->check(s, shape, e))
        return kv_fail_in(e, "spec '%s'", s->text);
    kv_spec_print(s);
    return 0;
}

/* ---- sweeps ------------------------------------------------------------ */

static int fail_brace(const char *text, const char *what, struct kv_err *e)
{
    return kv_fail(e, "spec '%.*s%s': %s", SHOWN(text, strlen(text)), what);
}

/* SIZE_MAX stands for all that is more. */
static size_t times(size_t a, size_t b)
{
    return b && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

/* How many specs one text is. */
static int count_one(const char *text, size_t *n, struct kv_err *e)
{
    *n = 1;
    for (const char *at = text; (at = strpbrk(at, "{}")); at++) {
        size_t choices = 0;

        if (*at == '}')
            return fail_brace(text, "a brace has no partner", e);
        do {
            const char *choice = at + 1;

            at = choice + strcspn(choice, ",{}");
            choices++;
            if (!*at)
                return fail_brace(text, "a brace has no partner", e);
            if (*at == '{')
                return fail_brace(text, "a brace stands in another's", e);
            if (at == choice)
                return fail_brace(text, "an empty choice in braces", e);
        } while (*at == ',');
        *n = times(*n, choices);
    }
    return 0;
}

int kv_spec_count(const char *const *texts, size_t n_texts, size_t *n,
                  struct kv_err *e)
{
    *n = 0;
    for (size_t i = 0; i < n_texts; i++) {
        size_t one;

        if (count_one(texts[i], &one, e))
            return -1;
        *n += one < SIZE_MAX - *n ? one : SIZE_MAX - *n;
    }
    if (*n > KV_MOST_SPECS)
        return kv_fail(e, "the specs expand to %s%zu rows: at most %d",
                       *n == SIZE_MAX ? "more than " : "", *n, KV_MOST_SPECS);
    return 0;
}

/* The i-th of the n specs that the counted text is; one has its room. */
static void choose(const char *text, size_t i, size_t n, char *one)
{
    for (const char *open; (open = strchr(text, '{'));) {
        const char *close = strchr(open, '}'), *choice = open + 1;
        size_t choices = 1, len;

        for (const char *at = open; at < close; at++)
            choices += *at == ',';
        n /= choices;
        for (size_t skip = i / n; skip; skip--)
            choice += strcspn(choice, ",") + 1;
        i %= n;
        len = strcspn(choice, ",}");
        memcpy(one, text, (size_t)(open - text));
        one += open - text;
        memcpy(one, choice, len);
        one += len;
        text = close + 1;
    }
    strcpy(one, text);
}

/* Parses the n specs of a counted text. */
static int expand(const char *text, size_t n, struct kv_spec *list,
                  struct kv_err *e)
{
    char *one = kv_alloc(strlen(text) + 1, 1);
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++) {
        choose(text, i, n, one);
        rc = kv_spec_parse(&list[i], one, e);
    }
    free(one);
    return rc;
}

int kv_spec_expand(const char *const *texts, size_t n_texts,
                   struct kv_spec **out, size_t *n, struct kv_err *e)
{
    struct kv_spec *list;
    size_t at = 0, one;

    if (kv_spec_count(texts, n_texts, n, e))
        return -1;
    list = kv_alloc(*n, sizeof(*list));
    for (size_t i = 0; i < n_texts; i++, at += one)
        if (count_one(texts[i], &one, e) ||
            expand(texts[i], one, list + at, e)) {
            free(list);
            return -1;
        }
    *out = list;
    return 0;
}
