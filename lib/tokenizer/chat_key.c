/* Keys of objects: texts, and whole numbers, which JSON keeps as texts with a
 * mark before them. */
#include "lib/tokenizer/chat_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char mark[] = " number ";
enum { MARK = sizeof(mark) - 1 };

/* The form in which JSON holds a key.  number: room for a whole number's. */
static const char *stored(const json_t *key, char number[48])
{
    if (!json_is_integer(key))
        return json_string_value(key);
    snprintf(number, 48, "%s%" JSON_INTEGER_FORMAT, mark,
             json_integer_value(key));
    return number;
}

json_t *kv_chat_member(const json_t *x, const json_t *key)
{
    char number[48];
    const char *name = stored(key, number);

    return name ? json_object_get(x, name) : NULL;
}

void kv_chat_set_member(struct kv_chat *c, json_t *x, const json_t *key,
                        json_t *value)
{
    char number[48];
    const char *name = stored(key, number);

    if (name) {
        kv_chat_step(c, strlen(name));
        json_object_set_new(x, name, value);
        return;
    }
    json_decref(value);
    kv_chat_fail(c,
                 "the key of an object is neither a text nor a whole number");
}

bool kv_chat_is_number_key(const char *key)
{
    return !strncmp(key, mark, MARK);
}

json_t *kv_chat_key_value(const char *key)
{
    return kv_chat_is_number_key(key)
               ? json_integer(strtoll(key + MARK, NULL, 10))
               : json_string(key);
}
