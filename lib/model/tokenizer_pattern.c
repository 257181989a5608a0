#define PCRE2_CODE_UNIT_WIDTH 8
#include "lib/model/tokenizer_pattern.h"
#include "lib/base/alloc.h"
#include "lib/model/tokenizer_json.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct kv_pattern {
    char *source;
    pcre2_code *code; /* NULL: look for the source itself */
    pcre2_match_context *context;
};

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
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &number,
                            &where, cc);
    if (!p->code) {
        pcre2_get_error_message(number, why, sizeof(why));
        kv_fail(e, "regular expression \"%s\": %s", p->source,
                (const char *)why);
        goto out;
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* else interpreted */
    p->context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(p->context, UINT32_MAX);
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
    pcre2_match_context_free(p->context);
    pcre2_code_free(p->code);
    free(p->source);
    free(p);
}

void kv_scan_init(struct kv_scan *x, const struct kv_pattern *p, const char *s,
                  size_t n)
{
    *x = (struct kv_scan){.p = p, .s = s, .n = n};
    if (p->code)
        x->match_data = pcre2_match_data_create(1, NULL);
}

void kv_scan_clear(struct kv_scan *x)
{
    pcre2_match_data_free(x->match_data);
}

static int find_regex(struct kv_scan *x, struct kv_err *e)
{
    const struct kv_pattern *p = x->p;
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    PCRE2_UCHAR why[256];
    int rc;

    rc = pcre2_match(p->code, (PCRE2_SPTR)x->s, x->n, x->at, options,
                     x->match_data, p->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter uses the heap */
        rc = pcre2_match(p->code, (PCRE2_SPTR)x->s, x->n, x->at,
                         options | PCRE2_NO_JIT, x->match_data, p->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        pcre2_get_error_message(rc, why, sizeof(why));
        return kv_fail(e, "regular expression \"%s\": %s", p->source,
                       (const char *)why);
    }

    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(x->match_data);

    if (at[0] >= at[1])
        return kv_fail(e, "regular expression \"%s\" matches an empty string",
                       p->source);
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
                       const char *by, struct kv_text *out, struct kv_err *e)
{
    struct kv_scan x;
    struct kv_part part;
    int rc;

    kv_scan_init(&x, p, s, n);
    while ((rc = kv_scan_next(&x, &part, e)) > 0) {
        if (part.is_match)
            kv_text_add(out, by, strlen(by));
        else
            kv_text_add(out, s + part.start, part.end - part.start);
    }
    kv_scan_clear(&x);
    return rc;
}
