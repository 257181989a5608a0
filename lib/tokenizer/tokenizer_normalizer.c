#include "lib/tokenizer/tokenizer_normalizer.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/tokenizer_charsmap.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_pattern.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum kind { FORM, MAP, PREPEND, REPLACE };

struct stage {
    enum kind kind;
    int form;                   /* FORM: utf8proc's options */
    char *text;                 /* PREPEND: the prefix; REPLACE: the new text */
    struct kv_pattern *pattern; /* REPLACE */
    struct kv_charsmap *map;    /* MAP */
    bool longest;
};

struct kv_normalizer {
    struct stage *stage;
    size_t n;
};

static const struct form {
    const char *type;
    int options;
} views[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

static int parse_one(struct stage *x, const char *type, const json_t *j,
                     struct kv_err *e)
{
    const char *text;

    for (size_t i = 0; i < sizeof(views) / sizeof(*views); i++) {
        if (!strcmp(type, views[i].type)) {
            x->kind = FORM;
            x->form = views[i].options;
            return kv_field_only(j, "type", e);
        }
    }
    if (!strcmp(type, "Prepend")) {
        if (kv_field_only(j, "type prepend", e) ||
            kv_field_string(j, "prepend", &text, e))
            return -1;
        x->kind = PREPEND;
        x->text = kv_strdup(text);
        return 0;
    }
    if (!strcmp(type, "Replace")) {
        if (kv_field_only(j, "type pattern content", e) ||
            kv_field_string(j, "content", &text, e))
            return -1;
        x->kind = REPLACE;
        x->text = kv_strdup(text);
        return kv_pattern_parse(&x->pattern, json_object_get(j, "pattern"), e);
    }
    if (!strcmp(type, "Precompiled")) {
        x->kind = MAP;
        if (kv_field_only(j, "type precompiled_charsmap longest_match", e) ||
            kv_field_string(j, "precompiled_charsmap", &text, e) ||
            kv_field_flag(j, "longest_match", false, &x->longest, e))
            return -1;
        return kv_charsmap_new(&x->map, text, e);
    }
    return kv_fail(e, "this type is not supported");
}

static int parse(struct kv_normalizer *z, const json_t *j, struct kv_err *e)
{
    const char *type;
    json_t *list;

    if (kv_field_string(j, "type", &type, e))
        return -1;
    if (!strcmp(type, "Sequence")) {
        if (kv_field_only(j, "type normalizers", e) ||
            kv_field_array(j, "normalizers", &list, e))
            return kv_fail_in(e, "Sequence");
        for (size_t i = 0; i < json_array_size(list); i++)
            if (parse(z, json_array_get(list, i), e))
                return -1;
        return 0;
    }
    if (z->n >= KV_TOKENIZER_STAGES)
        return kv_fail(e, "more than %d steps", KV_TOKENIZER_STAGES);
    z->stage = kv_realloc(z->stage, z->n + 1, sizeof(*z->stage));
    z->stage[z->n] = (struct stage){0};
    if (parse_one(&z->stage[z->n++], type, j, e))
        return kv_fail_in(e, "%s", type);
    return 0;
}

int kv_normalizer_new(struct kv_normalizer **z, const json_t *j,
                      struct kv_err *e)
{
    struct kv_normalizer *x = kv_alloc(1, sizeof(*x));

    if (j && !json_is_null(j) && parse(x, j, e)) {
        kv_normalizer_free(x);
        return kv_fail_in(e, "normalizer");
    }
    *z = x;
    return 0;
}

void kv_normalizer_free(struct kv_normalizer *z)
{
    if (!z)
        return;
    for (size_t i = 0; i < z->n; i++) {
        free(z->stage[i].text);
        kv_pattern_free(z->stage[i].pattern);
        kv_charsmap_free(z->stage[i].map);
    }
    free(z->stage);
    free(z);
}

bool kv_normalizer_prepends(const struct kv_normalizer *z)
{
    for (size_t i = 0; i < z->n; i++)
        if (z->stage[i].kind == PREPEND)
            return true;
    return false;
}

/* Normalizes to one of the four forms.  ASCII is the same in all of them, and
 * never changes the text before it, so only other stretches need the tables.  A
 * stretch includes the ASCII character before it, with which it may compose. */
static int normalize_form(int form, const char *s, size_t n,
                          struct kv_text *out, struct kv_watch *w,
                          struct kv_err *e)
{
    for (size_t at = 0; at < n;) {
        size_t start = at, end;
        utf8proc_uint8_t *made;

        while (start < n && (unsigned char)s[start] < 0x80)
            start++;
        end = start;
        while (end < n && (unsigned char)s[end] >= 0x80)
            end++;
        if (start == n) {
            kv_text_add(out, s + at, n - at);
            break;
        }
        start -= start > at;
        kv_text_add(out, s + at, start - at);

        const utf8proc_ssize_t rc = utf8proc_map(
            (const utf8proc_uint8_t *)s + start,
            (utf8proc_ssize_t)(end - start), &made, (utf8proc_option_t)form);

        if (rc < 0)
            return kv_fail(e, "cannot normalize the text: %s",
                           utf8proc_errmsg(rc));
        kv_text_add(out, (const char *)made, (size_t)rc);
        free(made);
        if (kv_watch_look(w, NULL, e))
            return -1;
        at = end;
    }
    return 0;
}

static int apply(const struct stage *x, const char *s, size_t n, bool prefix,
                 struct kv_text *out, struct kv_watch *w, struct kv_err *e)
{
    switch (x->kind) {
    case FORM:
        return normalize_form(x->form, s, n, out, w, e) ||
                       kv_watch_made(w, out->n, e)
                   ? -1
                   : 0;
    case MAP:
        return kv_charsmap_run(x->map, x->longest, s, n, out, w, e);
    case REPLACE:
        return kv_pattern_replace(x->pattern, s, n, x->text, out, w, e);
    case PREPEND:
        if (n && prefix)
            kv_text_add(out, x->text, strlen(x->text));
        kv_text_add(out, s, n);
        return kv_watch_made(w, out->n, e);
    }
    return 0;
}

int kv_normalizer_run(const struct kv_normalizer *z, const char *s, size_t n,
                      bool prefix, struct kv_text *out, struct kv_watch *w,
                      struct kv_err *e)
{
    struct kv_text made = {0};
    int rc = 0;

    out->n = 0;
    kv_text_add(out, s, n);
    for (size_t i = 0; i < z->n && !rc; i++) {
        const struct kv_text before = *out;

        made.n = 0;
        rc = apply(&z->stage[i], before.s, before.n, prefix, &made, w, e);
        *out = made;
        made = before;
    }
    kv_text_clear(&made);
    return rc;
}
