/* Texts marked by the filters safe and escape (markupsafe's Markup).  Texts
 * added to them are escaped. */
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

#define SAFE " safe"

static json_t *marked(const struct kv_text *text)
{
    return json_pack("{s:s%}", SAFE, text->n ? text->s : "", text->n);
}

const char *kv_chat_safe_text(const json_t *x)
{
    return json_string_value(json_object_get(x, SAFE));
}

static void put_escaped(struct kv_text *to, const char *s)
{
    static const char signs[] = "&<>'\"";
    static const char *const codes[] = {"&amp;", "&lt;", "&gt;", "&#39;",
                                        "&#34;"};

    for (; *s; s++) {
        const char *found = strchr(signs, *s);

        if (found)
            kv_text_add(to, codes[found - signs], strlen(codes[found - signs]));
        else
            kv_text_add(to, s, 1);
    }
}

static void put(struct kv_chat *c, struct kv_text *to, const json_t *x,
                bool escaped)
{
    char *text = kv_chat_text(c, x);

    kv_chat_step(c, strlen(text));
    if (escaped && !kv_chat_safe_text(x))
        put_escaped(to, text);
    else
        kv_text_add(to, text, strlen(text));
    free(text);
}

json_t *kv_chat_safe(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    struct kv_text text = {0};
    json_t *y;

    (void)arg;
    put(c, &text, x, false);
    y = marked(&text);
    kv_text_clear(&text);
    return y;
}

json_t *kv_chat_escape(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    struct kv_text text = {0};
    json_t *y;

    (void)arg;
    put(c, &text, x, true);
    y = marked(&text);
    kv_text_clear(&text);
    return y;
}

json_t *kv_chat_add_safe(struct kv_chat *c, const json_t *a, const json_t *b)
{
    struct kv_text text = {0};
    json_t *y;

    put(c, &text, a, true);
    put(c, &text, b, true);
    y = marked(&text);
    kv_text_clear(&text);
    return y;
}
