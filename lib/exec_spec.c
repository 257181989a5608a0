#include "lib/base/alloc.h"
#include "lib/exec.h"
#include "lib/schemes/exec_pool.h"
#include "lib/spec_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_WORDS = 100,   /* characters of the letters and words before cmd= */
    MAX_COMMAND = 200, /* characters of the command */
    MAX_NAME = 24,
    MAX_DIGITS = 15
};

/* The maximum of a parameter is not whole, so that the parameter takes
 * fractions too (struct kv_param). */
static const double most = 1e15 + 0.5, not_given = -1;

/* ---- commands ---------------------------------------------------------- */

const char *kv_exec_command(const char *text, const char **end)
{
    static const char word[] = "cmd=";
    const char *at = text;

    while ((at = strstr(at, word)) &&
           (at == text || (at[-1] != ',' && at[-1] != ':')))
        at++;
    if (!at)
        return NULL;
    at += strlen(word);
    *end = strstr(at, "/V-");
    if (!*end)
        *end = at + strlen(at);
    return at;
}

/* The commands that the command line names, kept until the program ends. */
static struct {
    char **command;
    size_t n;
} allowed;

static bool is_allowed(const char *command)
{
    for (size_t i = 0; i < allowed.n; i++)
        if (!strcmp(allowed.command[i], command))
            return true;
    return false;
}

static void allow(const char *command, size_t n)
{
    allowed.command =
        kv_realloc(allowed.command, allowed.n + 1, sizeof(*allowed.command));
    allowed.command[allowed.n++] = kv_strndup(command, n);
}

void kv_exec_allow(const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (const char *end, *at = kv_exec_command(texts[i], &end); at;
             at = kv_exec_command(end, &end)) {
            allow(at, (size_t)(end - at)); /* the command, if it is one
                                            * side's */
            allow(at, strlen(at));
        }
}

static int check_command(const char *command, struct kv_err *e)
{
    const size_t n = strlen(command);

    if (!n)
        return kv_fail(e, "cmd= names no command");
    if (n > MAX_COMMAND)
        return kv_fail(e,
                       "the command has %zu characters: at most %d (a script "
                       "may hold it)",
                       n, MAX_COMMAND);
    for (size_t i = 0; i < n; i++)
        if (iscntrl((unsigned char)command[i]))
            return kv_fail(e, "the command has a control character");
    if (!is_allowed(command))
        return kv_fail(e,
                       "exec runs a command, and only -s on the command line "
                       "may name it: '%s' is not there",
                       command);
    return 0;
}

/* ---- parameters -------------------------------------------------------- */

struct list {
    struct kv_param p[KV_MAX_PARAMS + 1];
    size_t n;
};

/* Whether this is the parameter that limits the time of a request. */
static bool is_timeout(const char *name, size_t n)
{
    return n == strlen("timeout") && !memcmp(name, "timeout", n);
}

/* Whether every scheme has this parameter. */
static bool is_common(const char *name, size_t n)
{
    return kv_spec_index(&kv_scheme_exec, name, n) <
           kv_spec_n_params(&kv_scheme_exec);
}

static bool is_name(const char *text, size_t n)
{
    bool is = n && n <= MAX_NAME && isalpha((unsigned char)*text);

    for (size_t i = 0; is && i < n; i++)
        is =
            isalnum((unsigned char)text[i]) || text[i] == '_' || text[i] == '-';
    return is;
}

static bool is_number(const char *text, size_t n)
{
    size_t points = 0;

    for (size_t i = 0; i < n; i++) {
        points += text[i] == '.';
        if (text[i] != '.' && !isdigit((unsigned char)text[i]))
            return false;
    }
    return n && n <= MAX_DIGITS && points < 2 && points < n;
}

/* The parameter of this name, added if it is new. */
static struct kv_param *find(struct list *l, const char *name, size_t n,
                             struct kv_err *e)
{
    const size_t room = KV_MAX_PARAMS - kv_spec_n_params(&kv_scheme_exec);

    for (size_t i = 0; i < l->n; i++)
        if (strlen(l->p[i].name) == n && !memcmp(l->p[i].name, name, n))
            return &l->p[i];
    if (!is_name(name, n)) {
        kv_fail(e,
                "'%.*s%s' is no name: expected a letter with a number, or a "
                "word of at most %d letters",
                KV_SHOWN(name, n), MAX_NAME);
        return NULL;
    }
    if (l->n == room) {
        kv_fail(e, "more than %zu letters and words", room);
        return NULL;
    }
    l->p[l->n] = (struct kv_param){.name = kv_strndup(name, n),
                                   .fallback = not_given,
                                   .calib = !is_timeout(name, n),
                                   .help = "the process's own"};
    return &l->p[l->n++];
}

static int add_number(struct list *l, const char *name, size_t n,
                      struct kv_err *e)
{
    struct kv_param *p = is_common(name, n) ? NULL : find(l, name, n, e);

    if (p && p->choices)
        return kv_fail(e, "%s is a number and a text", p->name);
    if (p)
        p->max = most;
    return p || is_common(name, n) ? 0 : -1;
}

static int add_choice(struct list *l, const char *name, size_t n,
                      const char *value, size_t bytes, struct kv_err *e)
{
    struct kv_param *p = is_common(name, n) ? NULL : find(l, name, n, e);
    const size_t had = p && p->choices ? strlen(p->choices) : 0;
    char *choices;

    if (!p)
        return is_common(name, n) ? 0 : -1;
    if (p->max > 0)
        return kv_fail(e, "%s is a number and a text", p->name);
    if (is_timeout(name, n))
        return kv_fail(e, "%s=%.*s: expected seconds", p->name, (int)bytes,
                       value);
    if (!bytes || memchr(value, '|', bytes))
        return kv_fail(e, "%s=%.*s: expected a text without '|'", p->name,
                       (int)bytes, value);
    if (p->choices && kv_choice_find(p->choices, value, bytes) >= 0)
        return 0;
    choices = kv_alloc(had + bytes + 2, 1);
    memcpy(choices, had ? p->choices : "", had);
    choices[had] = '|';
    memcpy(choices + had + (had > 0), value, bytes);
    free((char *)p->choices);
    p->choices = choices;
    return 0;
}

/* Whether all of the text is letters with numbers. */
static bool are_letters(const char *text, size_t n)
{
    size_t i = 0, digits;

    while (i < n && isalpha((unsigned char)text[i])) {
        for (digits = 0;
             i + 1 + digits < n && strchr("0123456789.", text[i + 1 + digits]);)
            digits++;
        if (!is_number(text + i + 1, digits))
            return false;
        i += 1 + digits;
    }
    return i == n;
}

static int add_letters(struct list *l, const char *text, size_t n,
                       struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (isalpha((unsigned char)text[i]) && add_number(l, text + i, 1, e))
            return -1;
    return 0;
}

static int add_word(struct list *l, const char *text, size_t n,
                    struct kv_err *e)
{
    const char *eq = memchr(text, '=', n);
    size_t name, bytes;

    if (n > 2 && text[1] == '-' && (*text == 'K' || *text == 'V')) {
        text += 2;
        n -= 2;
    }
    if (!eq) {
        const size_t no = n > 3 && !memcmp(text, "no-", 3) ? 3 : 0;

        return add_choice(l, text + no, n - no, "no", 2, e) ||
                       add_choice(l, text + no, n - no, "yes", 3, e)
                   ? -1
                   : 0;
    }
    name = (size_t)(eq - text);
    bytes = n - name - 1;
    return is_number(eq + 1, bytes)
               ? add_number(l, text, name, e)
               : add_choice(l, text, name, eq + 1, bytes, e);
}

/* Reads the text between ':' and the first comma. */
static int add_part(struct list *l, const char *text, size_t n,
                    struct kv_err *e)
{
    const char *slash = memchr(text, '/', n);

    if (slash && n > 2 && !memcmp(text, "K-", 2) && text + n - slash >= 3) {
        const size_t k = (size_t)(slash - text) - 2, v = n - k - 5;

        if (are_letters(text + 2, k) && are_letters(slash + 3, v))
            return add_letters(l, text + 2, k, e) ||
                           add_letters(l, slash + 3, v, e)
                       ? -1
                       : 0;
    }
    return are_letters(text, n) ? add_letters(l, text, n, e)
                                : add_word(l, text, n, e);
}

static int add_all(struct list *l, const char *at, struct kv_err *e)
{
    while (*at) {
        const size_t n = strcspn(at + 1, ",");

        if ((*at == ':' ? add_part : add_word)(l, at + 1, n, e))
            return -1;
        at += 1 + n;
    }
    return 0;
}

/* ---- the schemes ------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct kv_param *)a)->name,
                  ((const struct kv_param *)b)->name);
}

static bool same(const struct kv_exec *x, const struct list *l,
                 const char *command)
{
    bool is = !strcmp(x->command, command) && !x->param[l->n].name;

    for (size_t i = 0; is && i < l->n; i++) {
        const struct kv_param *a = &x->param[i], *b = &l->p[i];

        is = a->name && !strcmp(a->name, b->name) &&
             !a->choices == !b->choices &&
             (!a->choices || !strcmp(a->choices, b->choices));
    }
    return is;
}

static void clear(struct list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free((char *)l->p[i].name);
        free((char *)l->p[i].choices);
    }
}

/* The struct kv_exec with this command and these parameters, made if it is new;
 * takes ownership of the list. */
static const struct kv_exec *keep(struct list *l, const char *command)
{
    static struct kv_exec **all;
    static size_t n;
    struct kv_exec *x;

    qsort(l->p, l->n, sizeof(*l->p), by_name);
    for (size_t i = 0; i < n; i++)
        if (same(all[i], l, command)) {
            clear(l);
            return all[i];
        }
    x = kv_alloc(1, sizeof(*x));
    x->scheme = kv_scheme_exec;
    x->command = kv_strdup(command);
    x->pool = kv_exec_pool_of(command);
    memcpy(x->param, l->p, sizeof(l->p));
    x->scheme.params = x->param;
    all = kv_realloc(all, n + 1, sizeof(struct kv_exec *));
    all[n++] = x;
    return x;
}

const struct kv_exec *kv_exec_of(const struct kv_scheme *k)
{
    return k->open == kv_scheme_exec.open && k != &kv_scheme_exec
               ? (const struct kv_exec *)k
               : NULL;
}

int kv_exec_read(const struct kv_scheme **k, const char *rest, char **words,
                 struct kv_err *e)
{
    const char *end, *command = kv_exec_command(rest, &end);
    struct list l = {.n = 0};

    if (!command)
        return kv_fail(e, "expected a command as the last word, as in "
                          "exec:b2,cmd=python3 my.py");
    if (check_command(command, e))
        return -1;
    *words = kv_strndup(rest, (size_t)(command - rest) - strlen(",cmd="));
    if (strlen(*words) > MAX_WORDS)
        kv_fail(e, "%zu characters before cmd=: at most %d", strlen(*words),
                MAX_WORDS);
    else if (!add_all(&l, *words, e)) {
        *k = &keep(&l, command)->scheme;
        return 0;
    }
    clear(&l);
    free(*words);
    return -1;
}

int kv_exec_check(const struct kv_spec *s, struct kv_err *e)
{
    for (size_t i = 0; i < kv_spec_n_own(s->scheme); i++)
        for (int side = 0; side < KV_SIDES; side++)
            if (s->value[side][i] == not_given)
                return kv_fail(e, "%s is missing for %c: both sides have it",
                               s->scheme->params[i].name,
                               kv_side_name((enum kv_side)side));
    return 0;
}
