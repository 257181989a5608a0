/* Functions that templates may call, as transformers defines them. */
#include "lib/tokenizer/chat_impl.h"

#include <string.h>

#define NAMED " function"

json_t *kv_chat_named_function(const char *name)
{
    return json_pack("{s:s}", NAMED, name);
}

bool kv_chat_is_named_function(const json_t *x)
{
    return json_object_get(x, NAMED);
}

static json_t *range(struct kv_chat *c, const struct kv_chat_args *a)
{
    const bool from_zero = a->n == 1;
    const json_int_t to = json_integer_value(a->value[!from_zero]);
    const json_int_t step = a->n == 3 ? json_integer_value(a->value[2]) : 1;
    json_int_t i = from_zero ? 0 : json_integer_value(a->value[0]);
    json_t *x;

    for (size_t k = 0; k < a->n; k++)
        if (!json_is_integer(a->value[k]))
            return kv_chat_fail(c, "range() of what is no whole number");
    if (a->n < 1 || a->n > 3 || !step || step > INT32_MAX || step < -INT32_MAX)
        return kv_chat_fail(c, "range() takes one to three whole numbers, the "
                               "step not 0");
    if (i > INT32_MAX || i < -INT32_MAX || to > INT32_MAX || to < -INT32_MAX)
        return kv_chat_fail(c, "a number is too large");
    x = json_array();
    for (; (step > 0 ? i < to : i > to) && !c->failed; i += step) {
        kv_chat_step(c, 0);
        json_array_append_new(x, json_integer(i));
    }
    return kv_chat_range(x);
}

static json_t *new_namespace(struct kv_chat *c, const struct kv_chat_args *a)
{
    if (a->n)
        return kv_chat_fail(c, "namespace() of an object is not implemented");
    kv_chat_walk(c, a->named, true);
    json_object_set_new(a->named, KV_CHAT_NAMESPACE, json_true());
    return json_incref(a->named);
}

static json_t *new_dict(struct kv_chat *c, const struct kv_chat_args *a)
{
    if (a->n)
        return kv_chat_fail(c, "dict() of an object is not implemented");
    return json_incref(a->named);
}

static json_t *raise_exception(struct kv_chat *c, const struct kv_chat_args *a)
{
    const char *why = a->n ? json_string_value(a->value[0]) : NULL;

    return kv_chat_fail(c, "%s", why ? why : "an exception is raised");
}

static json_t *strftime_now(struct kv_chat *c, const struct kv_chat_args *a)
{
    return kv_chat_strftime(c, a->n == 1 ? a->value[0] : NULL);
}

static const struct {
    const char *name;
    json_t *(*call)(struct kv_chat *c, const struct kv_chat_args *a);
    bool takes_names;
} functions[] = {
    {"dict", new_dict, true},
    {"namespace", new_namespace, true},
    {"raise_exception", raise_exception, false},
    {"range", range, false},
    {"strftime_now", strftime_now, false},
};

enum { N_FUNCTIONS = sizeof(functions) / sizeof(*functions) };

bool kv_chat_is_function(const char *name)
{
    for (size_t i = 0; i < N_FUNCTIONS; i++)
        if (!strcmp(functions[i].name, name))
            return true;
    return false;
}

json_t *kv_chat_function(struct kv_chat *c, const char *name,
                         const struct kv_chat_args *a)
{
    for (size_t i = 0; i < N_FUNCTIONS; i++) {
        if (strcmp(functions[i].name, name))
            continue;
        if (json_object_size(a->named) && !functions[i].takes_names)
            return kv_chat_fail(c,
                                "%s() with named arguments is not "
                                "implemented",
                                name);
        return functions[i].call(c, a);
    }
    return kv_chat_fail(c, "the function %s() is not implemented", name);
}
