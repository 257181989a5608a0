#include "lib/base/alloc.h"
#include "lib/exec.h"
#include "lib/spec_impl.h"

#include <stdint.h>
#include <stdlib.h>

static int fail_brace(const char *text, const char *what, struct kv_err *e)
{
    return kv_fail(e, "spec '%.*s%s': %s", KV_SHOWN(text, strlen(text)), what);
}

/* The next brace outside commands; NULL if there is none. */
static const char *next_brace(const char *at)
{
    const char *brace, *command, *end;

    while ((brace = strpbrk(at, "{}")) &&
           (command = kv_exec_command(at, &end)) && command < brace)
        at = end;
    return brace;
}

/* SIZE_MAX represents every larger number. */
static size_t times(size_t a, size_t b)
{
    return b && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

/* Counts the specs that one text expands to. */
static int count_one(const char *text, size_t *n, struct kv_err *e)
{
    *n = 1;
    for (const char *at = text; (at = next_brace(at)); at++) {
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
    if (*n > KV_MAX_SPECS)
        return kv_fail(e, "the specs expand to %s%zu rows: at most %d",
                       *n == SIZE_MAX ? "more than " : "", *n, KV_MAX_SPECS);
    return 0;
}

/* Writes the i-th of the n specs that a counted text expands to.  one: as long
 * as text. */
static void choose(const char *text, size_t i, size_t n, char *one)
{
    for (const char *open; (open = next_brace(text));) {
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
