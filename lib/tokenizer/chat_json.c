/* The filter tojson, as transformers has it: Python's json.dumps(). */
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dump {
    struct kv_chat *c;
    struct kv_text text;
    const char *indent; /* NULL: all in one line */
    const char *between, *after_key;
    bool ascii, sorted;
    size_t depth;
};

static void add(struct dump *d, const char *s)
{
    kv_text_add(&d->text, s, strlen(s));
}

/* Writes x with the digits of Python's repr(): the fewest that read back as
 * x. */
char *kv_chat_real(double x)
{
    char digits[32], *out = kv_alloc(48, 1);
    int n = 0, power;

    do
        snprintf(digits, sizeof(digits), "%.*e", n, x);
    while (strtod(digits, NULL) != x && ++n < 17);
    power = atoi(strchr(digits, 'e') + 1);
    if (power < -4 || power >= 16)
        snprintf(out, 48, "%s", digits);
    else
        snprintf(out, 48, "%.*f", n > power + 1 ? n - power : 1, x);
    return out;
}

static void add_text(struct dump *d, const char *s)
{
    static const char plain[] = "\"\\\n\r\t\f\b", short_for[] = "\"\\nrtfb";
    char code[16];
    size_t n;

    kv_chat_step(d->c, strlen(s));
    add(d, "\"");
    for (; *s && !d->c->failed; s += n) {
        const uint32_t x = kv_utf8_get(s, &n);
        const char *found = x < 0x80 ? strchr(plain, (int)x) : NULL;

        if (found)
            snprintf(code, sizeof(code), "\\%c", short_for[found - plain]);
        else if (x > 0xffff && d->ascii)
            snprintf(code, sizeof(code), "\\u%04x\\u%04x",
                     0xd800 + ((x - 0x10000) >> 10),
                     0xdc00 + ((x - 0x10000) & 0x3ff));
        else if (x < 0x20 || (x >= 0x7f && d->ascii))
            snprintf(code, sizeof(code), "\\u%04x", x);
        else
            snprintf(code, sizeof(code), "%.*s", (int)n, s);
        add(d, code);
    }
    add(d, "\"");
}

static void new_line(struct dump *d)
{
    if (!d->indent)
        return;
    add(d, "\n");
    kv_chat_step(d->c, d->depth * strlen(d->indent));
    for (size_t i = 0; i < d->depth && !d->c->failed; i++)
        add(d, d->indent);
}

static void add_value(struct dump *d, const json_t *x);

static void add_list(struct dump *d, const json_t *x)
{
    const size_t n = json_array_size(x);

    add(d, "[");
    d->depth++;
    for (size_t i = 0; i < n; i++) {
        if (i)
            add(d, d->between);
        new_line(d);
        add_value(d, json_array_get(x, i));
    }
    d->depth--;
    if (n)
        new_line(d);
    add(d, "]");
}

static int by_name(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y); /* bytes of UTF-8 sort as their code points */
}

/* Writes a key; a number becomes a text in quotes. */
static void add_key(struct dump *d, const char *key)
{
    json_t *value = kv_chat_key_value(key);
    char *text = kv_chat_text(d->c, value);

    add_text(d, text);
    free(text);
    json_decref(value);
}

static void add_object(struct dump *d, const json_t *x)
{
    const size_t n = json_object_size(x);
    const char **keys = kv_alloc(n + 1, sizeof(*keys)), *key;
    json_t *value;
    size_t i = 0;

    json_object_foreach((json_t *)(uintptr_t)x, key, value)
    {
        if (d->sorted && kv_chat_is_number_key(key))
            kv_chat_fail(d->c, "tojson of sorted keys that are numbers is not "
                               "implemented");
        keys[i++] = key;
    }
    if (d->sorted)
        qsort(keys, n, sizeof(*keys), by_name);
    add(d, "{");
    d->depth++;
    for (i = 0; i < n; i++) {
        if (i)
            add(d, d->between);
        new_line(d);
        add_key(d, keys[i]);
        add(d, d->after_key);
        add_value(d, json_object_get(x, keys[i]));
    }
    d->depth--;
    if (n)
        new_line(d);
    add(d, "}");
    free(keys);
}

static void add_value(struct dump *d, const json_t *x)
{
    char *text = NULL;

    kv_chat_step(d->c, 0);
    if (kv_chat_is_tuple(x))
        x = kv_chat_view_items(x);
    if (kv_chat_is_undefined(x))
        kv_chat_fail(d->c, "tojson of an undefined value");
    if (kv_chat_is_iterator(x))
        kv_chat_fail(d->c, "tojson of what is no list is not implemented");
    if (kv_chat_safe_text(x))
        kv_chat_fail(d->c, "the filter tojson after safe is not implemented");
    if (d->c->failed)
        return;
    switch (json_typeof(x)) {
    case JSON_OBJECT:
        add_object(d, x);
        break;
    case JSON_ARRAY:
        add_list(d, x);
        break;
    case JSON_STRING:
        add_text(d, json_string_value(x));
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        text = kv_chat_text(d->c, x);
        add(d, text);
        break;
    case JSON_TRUE:
        add(d, "true");
        break;
    case JSON_FALSE:
        add(d, "false");
        break;
    case JSON_NULL:
        add(d, "null");
        break;
    }
    free(text);
}

/* The text of one level of indentation, the caller's to free.  indent: a number
 * of spaces, or a text. */
static char *indent_of(struct kv_chat *c, const json_t *indent)
{
    const json_int_t n = json_integer_value(indent);
    char *spaces;

    if (!indent || json_is_null(indent))
        return NULL;
    if (json_is_string(indent))
        return kv_strdup(json_string_value(indent));
    if (!json_is_integer(indent) || n > 64) {
        kv_chat_fail(c, "tojson's indent is neither a text nor a whole number "
                        "up to 64");
        return NULL;
    }
    spaces = kv_alloc(n > 0 ? (size_t)n + 1 : 1, 1);
    memset(spaces, ' ', n > 0 ? (size_t)n : 0);
    return spaces;
}

/* Sets the separators.  pair: None, or two texts. */
static void set_separators(struct dump *d, json_t *pair)
{
    pair = kv_chat_sequence(pair);
    d->between = d->indent ? "," : ", ";
    d->after_key = ": ";
    if (!pair || json_is_null(pair))
        return;
    if (json_array_size(pair) != 2 ||
        !json_is_string(json_array_get(pair, 0)) ||
        !json_is_string(json_array_get(pair, 1))) {
        kv_chat_fail(d->c, "tojson's separators are not two texts");
        return;
    }
    d->between = json_string_value(json_array_get(pair, 0));
    d->after_key = json_string_value(json_array_get(pair, 1));
}

json_t *kv_chat_json(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    char *indent = indent_of(c, arg[1]);
    struct dump d = {.c = c,
                     .indent = indent,
                     .ascii = kv_chat_truth(arg[0]),
                     .sorted = kv_chat_truth(arg[3])};
    json_t *y = NULL;

    set_separators(&d, arg[2]);
    kv_chat_walk(c, x, true);
    if (!c->failed)
        add_value(&d, x);
    if (!c->failed)
        y = json_stringn(d.text.s, d.text.n);
    kv_text_clear(&d.text);
    free(indent);
    return y;
}
