/* The method format() of a text: "{}", "{0}", "{name}". */
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { BY_NONE, BY_TURN, BY_NUMBER };

struct format {
    struct kv_chat *c;
    const struct kv_chat_args *a;
    struct kv_text text;
    size_t turn; /* index of the next "{}" */
    int places;  /* BY_TURN or BY_NUMBER: Python does not allow both */
};

static json_t *at_place(struct format *f, size_t i, int places)
{
    if (f->places && f->places != places)
        return kv_chat_fail(f->c, "format() counts its places and has numbers");
    f->places = places;
    if (i >= f->a->n)
        return kv_chat_fail(f->c, "format() has no value for place %zu", i);
    return f->a->value[i];
}

/* The argument that a field names, not a new reference.  field: the text
 * between "{" and "}". */
static json_t *value_of(struct format *f, const char *field)
{
    json_t *named;

    if (!*field)
        return at_place(f, f->turn++, BY_TURN);
    if (isdigit((unsigned char)*field) && !field[1])
        return at_place(f, (size_t)(*field - '0'), BY_NUMBER);
    if (strspn(field, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                      "0123456789_") < strlen(field))
        return kv_chat_fail(f->c, "format() of '{%s}' is not implemented",
                            field);
    named = json_object_get(f->a->named, field);
    if (!named)
        return kv_chat_fail(f->c, "format() has no value for '{%s}'", field);
    return kv_chat_is_undefined(named) ? NULL : named;
}

/* Writes the field that begins after "{"; returns the text after its "}". */
static const char *put_field(struct format *f, const char *s)
{
    const size_t n = strcspn(s, "{}");
    char field[KV_CHAT_NAME];
    char *text;

    if (s[n] != '}' || n >= sizeof(field)) {
        kv_chat_fail(f->c, "format() of '{%.20s' is not implemented", s);
        return s;
    }
    memcpy(field, s, n);
    field[n] = 0;
    text = kv_chat_text(f->c, value_of(f, field));
    kv_chat_step(f->c, strlen(text));
    kv_text_add(&f->text, text, strlen(text));
    free(text);
    return s + n + 1;
}

json_t *kv_chat_format(struct kv_chat *c, const json_t *x,
                       const struct kv_chat_args *a)
{
    struct format f = {.c = c, .a = a};
    json_t *y = NULL;

    for (const char *s = json_string_value(x); *s && !c->failed;) {
        if (*s == '{' && s[1] != '{') {
            s = put_field(&f, s + 1);
        } else if (*s == '}' && s[1] != '}') {
            kv_chat_fail(c, "a '}' in format() has no '{'");
        } else {
            kv_text_add(&f.text, s, 1);
            s += *s == '{' || *s == '}' ? 2 : 1;
        }
    }
    if (!c->failed)
        y = json_stringn(f.text.n ? f.text.s : "", f.text.n);
    kv_text_clear(&f.text);
    return y;
}
