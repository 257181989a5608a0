#include "lib/tokenizer/chat_text.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <string.h>

bool kv_chat_is_space(uint32_t c)
{
    return kv_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

size_t kv_chat_characters(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

const char *kv_chat_character(const char *s, size_t i)
{
    while (i-- && *s)
        s += kv_utf8_bytes(s);
    return s;
}

/* Whether the character at s is in set, or is white space if set is NULL. */
static bool goes(struct kv_chat *c, const char *s, size_t n, const char *set)
{
    size_t bytes;
    const char *p = set;

    if (!set)
        return kv_chat_is_space(kv_utf8_get(s, &bytes));
    kv_chat_step(c, strlen(set));
    while (!c->failed && *p && strncmp(p, s, n))
        p += kv_utf8_bytes(p);
    return !c->failed && *p;
}

json_t *kv_chat_strip(struct kv_chat *c, const json_t *x, int sides,
                      const char *set)
{
    const char *s = json_string_value(x);
    const char *end = s + json_string_length(x);

    while (sides & KV_CHAT_LEFT && s < end && goes(c, s, kv_utf8_bytes(s), set))
        s += kv_utf8_bytes(s);
    while (sides & KV_CHAT_RIGHT && s < end) {
        const char *last = end - 1;

        while (((unsigned char)*last & 0xc0) == 0x80)
            last--;
        if (!goes(c, last, (size_t)(end - last), set))
            break;
        end = last;
    }
    return json_stringn(s, (size_t)(end - s));
}

static void add_part(struct kv_chat *c, json_t *parts, const char *s, size_t n)
{
    kv_chat_step(c, n);
    json_array_append_new(parts, json_stringn(s, n));
}

static json_t *split_space(struct kv_chat *c, const char *s, json_int_t max)
{
    json_t *parts = json_array();
    const char *end = s + strlen(s), *stop;
    size_t n;

    for (;;) {
        while (*s && kv_chat_is_space(kv_utf8_get(s, &n)))
            s += n;
        if (!*s || c->failed)
            return parts;
        for (stop = s; *stop && !kv_chat_is_space(kv_utf8_get(stop, &n));)
            stop += n;
        if (!max--) { /* the rest, without white space at its end */
            const json_t *rest = json_string(s);
            json_t *cut = kv_chat_strip(c, rest, KV_CHAT_RIGHT, NULL);

            json_array_append_new(parts, cut);
            json_decref((json_t *)(uintptr_t)rest);
            return parts;
        }
        add_part(c, parts, s, (size_t)(stop - s));
        s = stop < end ? stop : end;
    }
}

json_t *kv_chat_split(struct kv_chat *c, const char *s, const char *by,
                      json_int_t max)
{
    json_t *parts;
    const char *next;

    if (!by)
        return split_space(c, s, max);
    parts = json_array();
    while (!c->failed && max-- && (next = strstr(s, by))) {
        add_part(c, parts, s, (size_t)(next - s));
        s = next + strlen(by);
    }
    add_part(c, parts, s, strlen(s));
    return parts;
}

json_t *kv_chat_splitlines(struct kv_chat *c, const char *s)
{
    json_t *parts = json_array();
    size_t n;

    while (*s && !c->failed) {
        const char *end = s;
        uint32_t x = 0;

        while (*end && !((x = kv_utf8_get(end, &n)) >= '\n' && x <= '\r') &&
               !(x >= 0x1c && x <= 0x1e) && x != 0x85 && x != 0x2028 &&
               x != 0x2029)
            end += n;
        add_part(c, parts, s, (size_t)(end - s));
        s = end;
        if (*s)
            s += x == '\r' && s[1] == '\n' ? 2 : n;
    }
    return parts;
}

json_t *kv_chat_replace(struct kv_chat *c, const json_t *x, const char *old,
                        const char *new)
{
    json_t *parts = kv_chat_split(c, json_string_value(x), old, -1), *y = NULL;
    const size_t n_parts = json_array_size(parts);
    struct kv_text text = {0};

    kv_chat_step(c, json_string_length(x) + n_parts * strlen(new));
    for (size_t i = 0; i < n_parts && !c->failed; i++) {
        const json_t *part = json_array_get(parts, i);

        if (i)
            kv_text_add(&text, new, strlen(new));
        kv_text_add(&text, json_string_value(part), json_string_length(part));
    }
    if (!c->failed)
        y = json_stringn(text.n ? text.s : "", text.n);
    kv_text_clear(&text);
    json_decref(parts);
    return y;
}
