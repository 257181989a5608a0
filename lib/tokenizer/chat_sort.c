/* Filters that put values in order: dictsort, sort, unique, min, max. */
#include "lib/tokenizer/chat_text.h"

#include <string.h>

/* The sort key of a value: the value itself or its attribute, in lower case
 * unless case_sensitive.  A new reference. */
static json_t *order_of(struct kv_chat *c, json_t *x, const json_t *attribute,
                        bool case_sensitive)
{
    json_t *key = !attribute || json_is_null(attribute)
                      ? json_incref(x)
                      : kv_chat_attribute(c, x, attribute);
    json_t *lower;

    if (!json_is_string(key) || case_sensitive)
        return key;
    kv_chat_step(c, json_string_length(key));
    lower = kv_chat_with_case(json_string_value(key), KV_CHAT_LOWER);
    json_decref(key);
    return lower;
}

static json_t *orders_of(struct kv_chat *c, json_t *list,
                         const json_t *attribute, bool case_sensitive)
{
    json_t *keys = json_array();

    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++)
        json_array_append_new(keys, order_of(c, json_array_get(list, i),
                                             attribute, case_sensitive));
    return keys;
}

/* Sorts the values of list by their keys; values with equal keys keep their
 * order. */
static json_t *ordered(struct kv_chat *c, const json_t *list,
                       const json_t *keys, bool reverse)
{
    json_t *out = json_array(), *places = json_array();

    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++) {
        json_t *key = json_array_get(keys, i);
        size_t at = i;

        for (; at > 0 && !c->failed; at--)
            if (!kv_chat_compare(c, reverse ? ">" : "<", key,
                                 json_array_get(places, at - 1)))
                break;
        json_array_insert(places, at, key);
        json_array_insert(out, at, json_array_get(list, i));
    }
    json_decref(places);
    return out;
}

json_t *kv_chat_dictsort(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    const char *by = arg[1] ? json_string_value(arg[1]) : "key";
    json_t *pairs, *part, *keys, *y;

    if (!kv_chat_is_mapping(x) || !by ||
        (strcmp(by, "key") && strcmp(by, "value")))
        return NULL;
    pairs = kv_chat_items(c, x);
    part = json_array();
    for (size_t i = 0; i < json_array_size(pairs); i++)
        json_array_append(
            part, json_array_get(kv_chat_view_items(json_array_get(pairs, i)),
                                 !strcmp(by, "value")));
    keys = orders_of(c, part, NULL, kv_chat_truth(arg[0]));
    y = ordered(c, pairs, keys, kv_chat_truth(arg[2]));
    json_decref(keys);
    json_decref(part);
    json_decref(pairs);
    return y;
}

json_t *kv_chat_sort(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    json_t *list = kv_chat_list(c, x);
    json_t *keys = orders_of(c, list, arg[2], kv_chat_truth(arg[1]));
    json_t *y = ordered(c, list, keys, kv_chat_truth(arg[0]));

    json_decref(keys);
    json_decref(list);
    return y;
}

json_t *kv_chat_unique(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    json_t *list = kv_chat_list(c, x);
    json_t *keys = orders_of(c, list, arg[1], kv_chat_truth(arg[0]));
    json_t *seen = json_array(), *out = json_array();

    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++) {
        json_t *key = json_array_get(keys, i);

        if (json_is_array(key) || json_is_object(key)) {
            kv_chat_fail(c, "the filter unique of lists and objects is not "
                            "implemented");
        } else if (!kv_chat_compare(c, "in", key, seen)) {
            json_array_append(seen, key);
            json_array_append(out, json_array_get(list, i));
        }
    }
    json_decref(seen);
    json_decref(keys);
    json_decref(list);
    return kv_chat_iterator(out);
}

/* Returns the first of the items that op puts first; undefined if there are no
 * items. */
static json_t *extreme(struct kv_chat *c, json_t *x, json_t *const *arg,
                       const char *op)
{
    json_t *list = kv_chat_list(c, x);
    json_t *keys = orders_of(c, list, arg[1], kv_chat_truth(arg[0]));
    json_t *y;
    size_t best = 0;

    for (size_t i = 1; i < json_array_size(list) && !c->failed; i++)
        if (kv_chat_compare(c, op, json_array_get(keys, i),
                            json_array_get(keys, best)))
            best = i;
    y = json_array_size(list) ? json_incref(json_array_get(list, best))
                              : kv_chat_undefined();
    json_decref(keys);
    json_decref(list);
    return y;
}

json_t *kv_chat_min(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return extreme(c, x, arg, "<");
}

json_t *kv_chat_max(struct kv_chat *c, json_t *x, json_t *const *arg)
{
    return extreme(c, x, arg, ">");
}
