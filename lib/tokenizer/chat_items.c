/* The values that loops iterate over: lists, characters, keys, and the results
 * of map(), items() and the like. */
#include "lib/tokenizer/chat_impl.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <string.h>

#define ITERATOR " iterator"
#define VIEW " view"
#define RANGE " range"
#define TUPLE " tuple"

json_t *kv_chat_iterator(json_t *list)
{
    return json_pack("{s:o}", ITERATOR, list);
}

json_t *kv_chat_view(json_t *list)
{
    return json_pack("{s:o}", VIEW, list);
}

json_t *kv_chat_range(json_t *list)
{
    return json_pack("{s:o,s:b}", VIEW, list, RANGE, 1);
}

json_t *kv_chat_tuple(json_t *list)
{
    return json_pack("{s:o,s:b}", VIEW, list, TUPLE, 1);
}

bool kv_chat_is_tuple(const json_t *x)
{
    return json_object_get(x, TUPLE);
}

json_t *kv_chat_sequence(json_t *x)
{
    return json_object_get(x, RANGE) || kv_chat_is_tuple(x)
               ? kv_chat_view_items(x)
               : x;
}

json_t *kv_chat_as(const json_t *kind, json_t *list)
{
    return kv_chat_is_tuple(kind)         ? kv_chat_tuple(list)
           : json_object_get(kind, RANGE) ? kv_chat_range(list)
                                          : list;
}

json_t *kv_chat_view_items(const json_t *x)
{
    return json_object_get(x, VIEW);
}

bool kv_chat_is_iterator(const json_t *x)
{
    return json_object_get(x, ITERATOR) || kv_chat_view_items(x);
}

json_t *kv_chat_next(struct kv_chat *c, json_t *x)
{
    json_t *items = json_object_get(x, ITERATOR), *y;

    kv_chat_step(c, kv_chat_bytes(items));
    y = json_incref(json_array_get(items, 0));
    json_array_remove(items, 0);
    return y;
}

static json_t *characters(struct kv_chat *c, const json_t *x)
{
    json_t *all = json_array();
    const char *s = json_string_value(x);

    for (; *s && !c->failed; s += kv_utf8_bytes(s)) {
        kv_chat_step(c, 0);
        json_array_append_new(all, json_stringn(s, kv_utf8_bytes(s)));
    }
    return all;
}

static json_t *keys(struct kv_chat *c, json_t *x)
{
    json_t *all = json_array(), *value;
    const char *key;

    json_object_foreach(x, key, value)
    {
        kv_chat_step(c, strlen(key));
        json_array_append_new(all, kv_chat_key_value(key));
    }
    return all;
}

json_t *kv_chat_list(struct kv_chat *c, json_t *x)
{
    json_t *items = json_object_get(x, ITERATOR);

    if (items) {
        json_incref(items);
        json_object_set_new(x, ITERATOR, json_array());
        return items;
    }
    if (kv_chat_view_items(x))
        return json_incref(kv_chat_view_items(x));
    if (!x)
        return json_array();
    if (json_is_array(x))
        return json_incref(x);
    if (json_is_string(x))
        return characters(c, x);
    if (kv_chat_is_mapping(x))
        return keys(c, x);
    return kv_chat_fail(c, "a loop over what has no items");
}

json_t *kv_chat_items(struct kv_chat *c, json_t *x)
{
    json_t *pairs = json_array(), *value;
    const char *key;

    json_object_foreach(x, key, value)
    {
        kv_chat_step(c, strlen(key));
        json_array_append_new(
            pairs,
            kv_chat_tuple(json_pack("[o,O]", kv_chat_key_value(key), value)));
    }
    return pairs;
}
