/* Prints values as Python's repr() does. */
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static void add(struct kv_text *t, const char *s)
{
    kv_text_add(t, s, strlen(s));
}

/* Python's str.isprintable() for one character. */
static bool is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

static void add_character(struct kv_text *t, const char *s, size_t n,
                          char quote)
{
    static const char plain[] = "\\\n\r\t", short_for[] = "\\nrt";
    size_t bytes;
    const uint32_t x = kv_utf8_get(s, &bytes);
    const char *found = strchr(plain, *s);
    char code[16];

    if (found)
        snprintf(code, sizeof(code), "\\%c", short_for[found - plain]);
    else if (*s == quote)
        snprintf(code, sizeof(code), "\\%c", quote);
    else if (is_printable(x))
        snprintf(code, sizeof(code), "%.*s", (int)n, s);
    else
        snprintf(code, sizeof(code),
                 x < 0x100     ? "\\x%02x"
                 : x < 0x10000 ? "\\u%04x"
                               : "\\U%08x",
                 x);
    add(t, code);
}

static void add_text(struct kv_chat *c, struct kv_text *t, const char *s)
{
    const char quote = strchr(s, '\'') && !strchr(s, '"') ? '"' : '\'';

    kv_chat_step(c, strlen(s));
    kv_text_add(t, &quote, 1);
    for (; *s; s += kv_utf8_bytes(s))
        add_character(t, s, kv_utf8_bytes(s), quote);
    kv_text_add(t, &quote, 1);
}

static void add_value(struct kv_chat *c, struct kv_text *t, const json_t *x);

static void add_list(struct kv_chat *c, struct kv_text *t, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++) {
        add(t, i ? ", " : "");
        add_value(c, t, json_array_get(list, i));
    }
}

static void add_object(struct kv_chat *c, struct kv_text *t, const json_t *x)
{
    const char *key, *between = "";
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)x, key, value)
    {
        json_t *name = kv_chat_key_value(key);

        add(t, between);
        add_value(c, t, name);
        add(t, ": ");
        add_value(c, t, value);
        json_decref(name);
        between = ", ";
    }
}

static void add_value(struct kv_chat *c, struct kv_text *t, const json_t *x)
{
    const json_t *items = kv_chat_view_items(x);
    char *text;

    kv_chat_step(c, 0);
    if (c->failed)
        return;
    if (json_is_string(x)) {
        add_text(c, t, json_string_value(x));
    } else if (json_is_array(x)) {
        add(t, "[");
        add_list(c, t, x);
        add(t, "]");
    } else if (kv_chat_is_tuple(x)) {
        add(t, "(");
        add_list(c, t, items);
        add(t, json_array_size(items) == 1 ? ",)" : ")");
    } else if (kv_chat_is_undefined(x)) {
        add(t, "Undefined");
    } else if (kv_chat_is_mapping(x)) {
        add(t, "{");
        add_object(c, t, x);
        add(t, "}");
    } else if (json_is_object(x)) {
        kv_chat_fail(c, "a value that is neither a list nor an object nor a "
                        "text is written, which is not implemented");
    } else {
        text = kv_chat_text(c, x);
        add(t, text);
        free(text);
    }
}

char *kv_chat_repr(struct kv_chat *c, const json_t *x)
{
    struct kv_text text = {0};
    char *copy;

    kv_chat_walk(c, x, false);
    if (!c->failed)
        add_value(c, &text, x);
    copy = kv_strndup(text.n ? text.s : "", text.n);
    kv_text_clear(&text);
    return copy;
}
