#include "lib/tokenizer/tokenizer_json.h"

#include <string.h>

static int member(const json_t *o, const char *key, json_t **value,
                  struct kv_err *e)
{
    if (!json_is_object(o))
        return kv_fail(e, "expected an object with \"%s\"", key);
    *value = json_object_get(o, key);
    return 0;
}

static bool is_word_of(const char *names, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = names; *p; p += *p == ' ') {
        const size_t here = strcspn(p, " ");

        if (here == n && !memcmp(p, word, n))
            return true;
        p += here;
    }
    return false;
}

int kv_field_only(const json_t *o, const char *names, struct kv_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)o, key, value)
    {
        if (!json_is_null(value) && !is_word_of(names, key))
            return kv_fail(e, "\"%s\" is not supported", key);
    }
    return 0;
}

int kv_field_string_or(const json_t *o, const char *key, const char *otherwise,
                       const char **value, struct kv_err *e)
{
    json_t *v;

    if (member(o, key, &v, e))
        return -1;
    if (v && !json_is_null(v) && !json_is_string(v))
        return kv_fail(e, "\"%s\" is not a string", key);
    *value = v && json_is_string(v) ? json_string_value(v) : otherwise;
    return 0;
}

int kv_field_string(const json_t *o, const char *key, const char **value,
                    struct kv_err *e)
{
    if (kv_field_string_or(o, key, NULL, value, e))
        return -1;
    return *value ? 0 : kv_fail(e, "no \"%s\"", key);
}

int kv_field_array(const json_t *o, const char *key, json_t **value,
                   struct kv_err *e)
{
    if (member(o, key, value, e))
        return -1;
    if (!json_is_array(*value))
        return kv_fail(e, *value ? "\"%s\" is not an array" : "no \"%s\"", key);
    return 0;
}

int kv_field_object(const json_t *o, const char *key, json_t **value,
                    struct kv_err *e)
{
    if (member(o, key, value, e))
        return -1;
    if (!json_is_object(*value))
        return kv_fail(e, *value ? "\"%s\" is not an object" : "no \"%s\"",
                       key);
    return 0;
}

int kv_field_flag(const json_t *o, const char *key, bool otherwise, bool *value,
                  struct kv_err *e)
{
    json_t *v;

    if (member(o, key, &v, e))
        return -1;
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return kv_fail(e, "\"%s\" is neither true nor false", key);
    *value = v && json_is_boolean(v) ? json_is_true(v) : otherwise;
    return 0;
}

int kv_field_count(const json_t *o, const char *key, size_t limit,
                   size_t *value, struct kv_err *e)
{
    json_t *v;

    if (member(o, key, &v, e))
        return -1;
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        (json_int_t)limit <= json_integer_value(v))
        return kv_fail(e, "\"%s\" is not an integer from 0 to %zu", key,
                       limit - 1);
    *value = (size_t)json_integer_value(v);
    return 0;
}
