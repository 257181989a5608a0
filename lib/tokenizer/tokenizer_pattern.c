#define PCRE2_CODE_UNIT_WIDTH 8
#include "lib/tokenizer/tokenizer_pattern.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/tokenizer/tokenizer_json.h"

#include <limits.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kv_pattern {
    char *source;
    pcre2_code *code; /* NULL: look for the source itself */
};

/* MATCH_LIMIT: maximum steps of one match from one position, at most a tenth of
 * a second.  HEAP_LIMIT: maximum heap in KiB, used if the JIT's own stack is
 * too small. */
enum { MATCH_LIMIT = 10000000, HEAP_LIMIT = 64 << 10 };

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void kv_watch_init(struct kv_watch *w, size_t n_bytes)
{
    *w = (struct kv_watch){
        .n_bytes = n_bytes, .cpu = cpu_seconds(), .looked = kv_seconds()};
}

/* The limit counts the thread's CPU time, so a busy machine or a stopped
 * process does no harm.  Reading CPU time is slower than reading the clock, so
 * the clock decides when to look. */
int kv_watch_look(struct kv_watch *w, const char *source, struct kv_err *e)
{
    const double now = kv_seconds();

    if (now - w->looked < 0.01)
        return 0;
    w->looked = now;
    if (kv_interrupted(e))
        return -1;
    if (source && cpu_seconds() - w->cpu > 1 + 1e-5 * (double)w->n_bytes)
        return kv_fail(e, "regular expression \"%s\" takes too long", source);
    return 0;
}

int kv_watch_made(struct kv_watch *w, size_t n, struct kv_err *e)
{
    enum { TIMES = 64, MORE = 1 << 20 };

    w->n_made += n;
    if (w->n_made / TIMES > w->n_bytes + MORE / TIMES)
        return kv_fail(e,
                       "normalizer and pre_tokenizer make more than %d times "
                       "its %zu bytes out of the text",
                       TIMES, w->n_bytes);
    return 0;
}

static int compile(struct kv_pattern *p, struct kv_err *e)
{
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    struct kv_text text = {0};
    PCRE2_UCHAR why[256];
    PCRE2_SIZE where;
    int number, rc = -1;

    if (kv_regex_translate(p->source, &text, e))
        goto out;
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)(text.n ? text.s : ""), text.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                PCRE2_USE_OFFSET_LIMIT,
                            &number, &where, cc);
    if (!p->code) {
        pcre2_get_error_message(number, why, sizeof(why));
        kv_fail(e, "regular expression \"%s\": %s", p->source,
                (const char *)why);
        goto out;
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* if this fails, the code
                                                     * is interpreted */
    rc = 0;
out:
    kv_text_clear(&text);
    pcre2_compile_context_free(cc);
    return rc;
}

int kv_pattern_new(struct kv_pattern **p, const char *source, bool regex,
                   struct kv_err *e)
{
    struct kv_pattern *x = kv_alloc(1, sizeof(*x));

    x->source = kv_strdup(source);
    if (regex ? compile(x, e)
              : !*source && kv_fail(e, "an empty string to look for")) {
        kv_pattern_free(x);
        return -1;
    }
    *p = x;
    return 0;
}

int kv_pattern_parse(struct kv_pattern **p, const json_t *j, struct kv_err *e)
{
    const char *string, *regex;

    if (kv_field_string_or(j, "String", NULL, &string, e) ||
        kv_field_string_or(j, "Regex", NULL, &regex, e) ||
        kv_field_only(j, "String Regex", e))
        return kv_fail_in(e, "\"pattern\"");
    if (!string == !regex)
        return kv_fail(e, "\"pattern\" needs \"String\" or \"Regex\"");
    return kv_pattern_new(p, string ? string : regex, regex != NULL, e);
}

void kv_pattern_free(struct kv_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p->source);
    free(p);
}

void kv_scan_init(struct kv_scan *x, const struct kv_pattern *p, const char *s,
                  size_t n, struct kv_watch *w)
{
    *x = (struct kv_scan){.p = p, .s = s, .n = n, .watch = w};
    if (!p->code)
        return;
    x->match_data = pcre2_match_data_create(1, NULL);
    x->context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(x->context, MATCH_LIMIT);
    pcre2_set_heap_limit(x->context, HEAP_LIMIT);
}

void kv_scan_clear(struct kv_scan *x)
{
    pcre2_match_data_free(x->match_data);
    pcre2_match_context_free(x->context);
}

/* Searches for a match that starts in [from, last]. */
static int match(struct kv_scan *x, size_t from, size_t last)
{
    const pcre2_code *code = x->p->code;
    const PCRE2_SPTR s = (PCRE2_SPTR)x->s;
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc;

    pcre2_set_offset_limit(x->context, last);
    rc = pcre2_match(code, s, x->n, from, options, x->match_data, x->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter uses the heap */
        rc = pcre2_match(code, s, x->n, from, options | PCRE2_NO_JIT,
                         x->match_data, x->context);
    return rc;
}

/* No error code of PCRE2, which count down from -1. */
enum { GIVEN_UP = INT_MIN };

/* Tries some positions at a time and checks the limits after each call, since
 * PCRE2's limits hold for one position only.  Usually the first position is a
 * match.  It tries few positions at a time if they take long.  Otherwise it
 * tries many, since each call may search the whole rest for a letter that a
 * match must begin with. */
static int search(struct kv_scan *x, struct kv_err *e)
{
    enum { FEW = 4, MANY = 1 << 16 };
    size_t places = FEW, from = x->at, last;
    int rc;

    for (;;) {
        const double before = x->watch->looked;

        last = x->n - from > places ? from + places - 1 : x->n;
        rc = match(x, from, last);
        if (kv_watch_look(x->watch, x->p->source, e))
            return GIVEN_UP;
        if (rc != PCRE2_ERROR_NOMATCH || last == x->n)
            return rc;
        if (x->watch->looked > before)
            places = FEW;
        else if (places < MANY)
            places *= 2;
        from = last + 1;
        while (from < x->n && ((unsigned char)x->s[from] & 0xc0) == 0x80)
            from++;
    }
}

static int find_regex(struct kv_scan *x, struct kv_err *e)
{
    const char *source = x->p->source;
    PCRE2_UCHAR why[256];
    const int rc = search(x, e);

    if (rc == GIVEN_UP)
        return -1;
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        pcre2_get_error_message(rc, why, sizeof(why));
        return kv_fail(e, "regular expression \"%s\": %s", source,
                       (const char *)why);
    }

    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(x->match_data);

    if (at[0] >= at[1])
        return kv_fail(e, "regular expression \"%s\" matches an empty string",
                       source);
    x->next_start = at[0];
    x->next_end = at[1];
    return 1;
}

static int find(struct kv_scan *x, struct kv_err *e)
{
    if (x->p->code)
        return find_regex(x, e);

    const size_t n = strlen(x->p->source);
    const char *hit = memmem(x->s + x->at, x->n - x->at, x->p->source, n);

    if (!hit)
        return 0;
    x->next_start = (size_t)(hit - x->s);
    x->next_end = x->next_start + n;
    return 1;
}

int kv_scan_next(struct kv_scan *x, struct kv_part *part, struct kv_err *e)
{
    if (x->at == x->n)
        return 0;
    if (!x->found) {
        const int rc = find(x, e);

        if (rc < 0)
            return -1;
        if (!rc)
            x->next_start = x->n;
        x->found = rc;
    }
    part->start = x->at;
    part->is_match = x->at == x->next_start;
    part->end = part->is_match ? x->next_end : x->next_start;
    if (part->is_match)
        x->found = false;
    x->at = part->end;
    return 1;
}

int kv_pattern_replace(const struct kv_pattern *p, const char *s, size_t n,
                       const char *by, struct kv_text *out, struct kv_watch *w,
                       struct kv_err *e)
{
    const size_t n_by = strlen(by);
    struct kv_scan x;
    struct kv_part part;
    int rc;

    kv_scan_init(&x, p, s, n, w);
    while ((rc = kv_scan_next(&x, &part, e)) > 0) {
        const size_t n_part = part.is_match ? n_by : part.end - part.start;

        rc = kv_watch_made(w, n_part, e);
        if (rc)
            break;
        kv_text_add(out, part.is_match ? by : s + part.start, n_part);
    }
    kv_scan_clear(&x);
    return rc;
}
