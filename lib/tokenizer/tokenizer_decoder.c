#include "lib/tokenizer/tokenizer_decoder.h"
#include "lib/base/alloc.h"
#include "lib/base/utf8.h"
#include "lib/tokenizer/tokenizer_bytes.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_pattern.h"
#include "lib/tokenizer/tokenizer_split.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct stage {
    int (*run)(const struct stage *x, const struct kv_token_list *in,
               struct kv_token_list *out, struct kv_watch *w, struct kv_err *e);
    struct kv_pattern *pattern;
    char *text;
    size_t start, stop;      /* Strip: maximum to remove at each end */
    enum kv_prepend prepend; /* Metaspace */
};

struct kv_decoder {
    struct stage *stage;
    size_t n;
};

void kv_token_list_add(struct kv_token_list *x, const char *s, size_t n)
{
    if (x->n == x->capacity) {
        x->capacity = 2 * x->capacity + 64;
        x->end = kv_realloc(x->end, x->capacity, sizeof(*x->end));
    }
    kv_text_add(&x->text, s, n);
    x->end[x->n++] = x->text.n;
}

void kv_token_list_clear(struct kv_token_list *x)
{
    kv_text_clear(&x->text);
    free(x->end);
    *x = (struct kv_token_list){0};
}

static const char *string_at(const struct kv_token_list *x, size_t i, size_t *n)
{
    const size_t start = i ? x->end[i - 1] : 0;

    *n = x->end[i] - start;
    return *n ? x->text.s + start : "";
}

static int join_spaced(const struct stage *x, const struct kv_token_list *in,
                       struct kv_token_list *out, struct kv_watch *w,
                       struct kv_err *e)
{
    (void)x;
    (void)w;
    (void)e;
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = string_at(in, i, &n);

        if (i)
            kv_token_list_add(out, " ", 1);
        kv_token_list_add(out, s, n);
    }
    return 0;
}

static int byte_level(const struct stage *x, const struct kv_token_list *in,
                      struct kv_token_list *out, struct kv_watch *w,
                      struct kv_err *e)
{
    struct kv_byte_alphabet a;
    struct kv_text bytes = {0};
    size_t text_bytes;
    char *text;

    (void)x;
    (void)w;
    (void)e;
    kv_byte_alphabet_init(&a);
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = string_at(in, i, &n);

        kv_byte_decode(&a, s, n, &bytes);
    }
    text = kv_utf8_repair(bytes.s, bytes.n, &text_bytes);
    kv_token_list_add(out, text, text_bytes);
    kv_text_clear(&bytes);
    free(text);
    return 0;
}

static int replace(const struct stage *x, const struct kv_token_list *in,
                   struct kv_token_list *out, struct kv_watch *w,
                   struct kv_err *e)
{
    struct kv_text made = {0};
    int rc = 0;

    for (size_t i = 0; i < in->n && !rc; i++) {
        size_t n;
        const char *s = string_at(in, i, &n);

        made.n = 0;
        rc = kv_pattern_replace(x->pattern, s, n, x->text, &made, w, e);
        kv_token_list_add(out, made.s, made.n);
    }
    kv_text_clear(&made);
    return rc;
}

/* The byte of a token such as "<0x0A>"; -1 for other tokens. */
static int byte_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>' ||
        !isxdigit((unsigned char)s[3]) || !isxdigit((unsigned char)s[4]))
        return -1;
    return (int)strtoul((char[]){s[3], s[4], 0}, NULL, 16);
}

/* Ends a run of byte tokens: adds it as a string or, if it is not UTF-8, one
 * U+FFFD for each byte. */
static void end_bytes(struct kv_text *bytes, struct kv_token_list *out)
{
    if (bytes->n && kv_utf8_valid(bytes->s, bytes->n) == bytes->n)
        kv_token_list_add(out, bytes->s, bytes->n);
    else
        for (size_t i = 0; i < bytes->n; i++)
            kv_token_list_add(out, KV_UTF8_REPLACEMENT,
                              strlen(KV_UTF8_REPLACEMENT));
    bytes->n = 0;
}

static int byte_fallback(const struct stage *x, const struct kv_token_list *in,
                         struct kv_token_list *out, struct kv_watch *w,
                         struct kv_err *e)
{
    struct kv_text bytes = {0};

    (void)x;
    (void)w;
    (void)e;
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = string_at(in, i, &n);
        const int b = byte_token(s, n);
        const char byte = (char)b;

        if (b >= 0) {
            kv_text_add(&bytes, &byte, 1);
        } else {
            end_bytes(&bytes, out);
            kv_token_list_add(out, s, n);
        }
    }
    end_bytes(&bytes, out);
    kv_text_clear(&bytes);
    return 0;
}

static int fuse(const struct stage *x, const struct kv_token_list *in,
                struct kv_token_list *out, struct kv_watch *w, struct kv_err *e)
{
    (void)x;
    (void)w;
    (void)e;
    kv_token_list_add(out, in->text.s, in->text.n);
    return 0;
}

static int strip(const struct stage *x, const struct kv_token_list *in,
                 struct kv_token_list *out, struct kv_watch *w,
                 struct kv_err *e)
{
    const size_t m = strlen(x->text);

    (void)w;
    (void)e;
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = string_at(in, i, &n);

        for (size_t k = 0; k < x->start && n >= m && !memcmp(s, x->text, m);
             k++, s += m)
            n -= m;
        for (size_t k = 0;
             k < x->stop && n >= m && !memcmp(s + n - m, x->text, m); k++)
            n -= m;
        kv_token_list_add(out, s, n);
    }
    return 0;
}

/* Replaces Metaspace's marks by spaces, and removes them from the first
 * token. */
static int metaspace(const struct stage *x, const struct kv_token_list *in,
                     struct kv_token_list *out, struct kv_watch *w,
                     struct kv_err *e)
{
    struct kv_text made = {0};
    int rc = 0;

    for (size_t i = 0; i < in->n && !rc; i++) {
        const bool drop = !i && x->prepend != KV_PREPEND_NEVER;
        size_t n;
        const char *s = string_at(in, i, &n);

        made.n = 0;
        rc = kv_pattern_replace(x->pattern, s, n, drop ? "" : " ", &made, w, e);
        kv_token_list_add(out, made.s, made.n);
    }
    kv_text_clear(&made);
    return rc;
}

static int parse_replace(struct stage *x, const json_t *j, struct kv_err *e)
{
    const char *text;

    if (kv_field_string(j, "content", &text, e))
        return -1;
    x->text = kv_strdup(text);
    return kv_pattern_parse(&x->pattern, json_object_get(j, "pattern"), e);
}

static int parse_strip(struct stage *x, const json_t *j, struct kv_err *e)
{
    const char *text;

    if (kv_field_string(j, "content", &text, e) ||
        kv_field_count(j, "start", 1 << 20, &x->start, e) ||
        kv_field_count(j, "stop", 1 << 20, &x->stop, e))
        return -1;
    if (!*text || strlen(text) != kv_utf8_bytes(text))
        return kv_fail(e, "\"content\" is not one character");
    x->text = kv_strdup(text);
    return 0;
}

static int parse_metaspace(struct stage *x, const json_t *j, struct kv_err *e)
{
    const char *text;

    if (kv_metaspace_parse(j, &text, &x->prepend, e))
        return -1;
    return kv_pattern_new(&x->pattern, text, false, e);
}

static const struct type {
    const char *name, *fields;
    int (*run)(const struct stage *x, const struct kv_token_list *in,
               struct kv_token_list *out, struct kv_watch *w, struct kv_err *e);
    int (*parse)(struct stage *x, const json_t *j, struct kv_err *e); /* or 0 */
} types[] = {
    {"ByteLevel", "type add_prefix_space trim_offsets use_regex", byte_level,
     NULL},
    {"ByteFallback", "type", byte_fallback, NULL},
    {"Fuse", "type", fuse, NULL},
    {"Replace", "type pattern content", replace, parse_replace},
    {"Strip", "type content start stop", strip, parse_strip},
    {"Metaspace", KV_METASPACE_FIELDS, metaspace, parse_metaspace},
};

static int parse_one(struct stage *x, const char *name, const json_t *j,
                     struct kv_err *e)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        const struct type *t = &types[i];

        if (strcmp(name, t->name))
            continue;
        x->run = t->run;
        return kv_field_only(j, t->fields, e) ? -1
               : t->parse                     ? t->parse(x, j, e)
                                              : 0;
    }
    return kv_fail(e, "this type is not supported");
}

static struct stage *add_stage(struct kv_decoder *d)
{
    d->stage = kv_realloc(d->stage, d->n + 1, sizeof(*d->stage));
    d->stage[d->n] = (struct stage){0};
    return &d->stage[d->n++];
}

static int parse(struct kv_decoder *d, const json_t *j, struct kv_err *e)
{
    const char *type;
    json_t *list;

    if (kv_field_string(j, "type", &type, e))
        return -1;
    if (strcmp(type, "Sequence")) {
        if (d->n >= KV_TOKENIZER_STAGES)
            return kv_fail(e, "more than %d steps", KV_TOKENIZER_STAGES);
        if (parse_one(add_stage(d), type, j, e))
            return kv_fail_in(e, "%s", type);
        return 0;
    }
    if (kv_field_only(j, "type decoders", e) ||
        kv_field_array(j, "decoders", &list, e))
        return kv_fail_in(e, "Sequence");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (parse(d, json_array_get(list, i), e))
            return -1;
    return 0;
}

int kv_decoder_new(struct kv_decoder **d, const json_t *j, struct kv_err *e)
{
    struct kv_decoder *x = kv_alloc(1, sizeof(*x));

    if (!j || json_is_null(j)) {
        add_stage(x)->run = join_spaced;
    } else if (parse(x, j, e)) {
        kv_decoder_free(x);
        return kv_fail_in(e, "decoder");
    }
    *d = x;
    return 0;
}

void kv_decoder_free(struct kv_decoder *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++) {
        kv_pattern_free(d->stage[i].pattern);
        free(d->stage[i].text);
    }
    free(d->stage);
    free(d);
}

bool kv_decoder_bytes(const struct kv_decoder *d, const char *s, size_t n,
                      struct kv_text *bytes)
{
    struct kv_byte_alphabet a;

    if (d->n == 1 && d->stage->run == byte_level) {
        kv_byte_alphabet_init(&a);
        kv_byte_decode(&a, s, n, bytes);
        return true;
    }
    for (size_t i = 0; i < d->n; i++)
        if (d->stage[i].run == byte_fallback && byte_token(s, n) >= 0) {
            kv_text_add(bytes, (char[]){(char)byte_token(s, n)}, 1);
            return true;
        }
    return false;
}

int kv_decoder_run(const struct kv_decoder *d, struct kv_token_list *tokens,
                   struct kv_err *e)
{
    struct kv_token_list made = {0};
    struct kv_watch w;
    int rc = 0;

    kv_watch_init(&w, tokens->text.n);
    for (size_t i = 0; i < d->n && !rc; i++) {
        const struct kv_token_list before = *tokens;

        made.n = made.text.n = 0;
        rc = d->stage[i].run(&d->stage[i], &before, &made, &w, e);
        *tokens = made;
        made = before;
    }
    kv_token_list_clear(&made);
    return rc;
}
