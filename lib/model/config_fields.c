#include "lib/model/config_fields.h"
#include "lib/base/progress.h"

#include <float.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of the field of exactly this name; NULL if it is absent or null. */
static const json_t *find(const struct kv_fields *f, const char *name)
{
    const json_t *j = json_object_get(f->json, name);

    return json_is_null(j) ? NULL : j;
}

static bool is_alias(const struct kv_own_field *o, const char *name)
{
    return o->means && o->only != kv_unread && !strcmp(o->means, name);
}

const char *kv_fields_name(const struct kv_fields *f, const char *name)
{
    const char *own = NULL;

    for (const struct kv_own_field *o = f->own; o && o->name; o++)
        if (is_alias(o, name) && (!own || (!find(f, own) && find(f, o->name))))
            own = o->name;
    return own ? own : name;
}

/* Whether this architecture lacks the field, though other architectures have
 * it. */
static bool is_foreign(const struct kv_fields *f, const char *name)
{
    const struct kv_own_field *o = f->own;

    while (o && o->name && strcmp(o->name, name) != 0)
        o++;
    return o && o->name && o->means && !*o->means;
}

bool kv_fields_has(const struct kv_fields *f, const char *name)
{
    const char *called = kv_fields_name(f, name);

    return !is_foreign(f, called) && json_object_get(f->json, called);
}

const json_t *kv_fields_get(const struct kv_fields *f, const char *name)
{
    return kv_fields_has(f, name) ? find(f, kv_fields_name(f, name)) : NULL;
}

static int missing(const struct kv_fields *f, const char *name,
                   struct kv_err *e)
{
    return kv_fail(e, "%s: field %s%s is missing", f->path, f->in,
                   kv_fields_name(f, name));
}

int kv_fields_size(const struct kv_fields *f, const char *name, size_t min,
                   size_t max, size_t *out, struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, name);

    if (!j)
        return missing(f, name, e);
    if (!json_is_integer(j) || json_integer_value(j) < (json_int_t)min ||
        json_integer_value(j) > (json_int_t)max)
        return kv_fail(e,
                       "%s: field %s%s is not a whole number from %zu to "
                       "%zu",
                       f->path, f->in, kv_fields_name(f, name), min, max);
    *out = (size_t)json_integer_value(j);
    return 0;
}

int kv_fields_size_if(const struct kv_fields *f, const char *name, size_t min,
                      size_t max, size_t *out, struct kv_err *e)
{
    return kv_fields_get(f, name) ? kv_fields_size(f, name, min, max, out, e)
                                  : 0;
}

int kv_fields_real(const struct kv_fields *f, const char *name, double *out,
                   struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, name);
    const double x = json_number_value(j);

    if (!j)
        return missing(f, name, e);
    if (!(x >= (double)FLT_MIN && x <= (double)FLT_MAX))
        return kv_fail(e,
                       "%s: field %s%s is not a number above 0 that f32 holds",
                       f->path, f->in, kv_fields_name(f, name));
    *out = x;
    return 0;
}

int kv_fields_flag_if(const struct kv_fields *f, const char *name, bool *out,
                      struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, name);

    if (j && !json_is_boolean(j))
        return kv_fail(e, "%s: field %s%s is neither true nor false", f->path,
                       f->in, kv_fields_name(f, name));
    if (j)
        *out = json_is_true(j);
    return 0;
}

/* Whether two values are equal; 1 and 1.0 are. */
static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* A value as text for an error sentence. */
struct shown {
    char text[64];
};

static struct shown show(const json_t *value)
{
    struct shown s;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII |
                                       JSON_REAL_PRECISION(15));
    const int n = snprintf(s.text, sizeof(s.text), "%s", text);

    if (n >= (int)sizeof(s.text))
        memcpy(s.text + sizeof(s.text) - 4, "...", 4);
    free(text);
    return s;
}

static int check_value(const struct kv_fields *f, const char *name,
                       const char *only_text, const json_t *value,
                       struct kv_err *e)
{
    json_t *only = json_loads(only_text, JSON_DECODE_ANY, NULL);
    const bool is_only = equal(value, only);

    json_decref(only);
    return is_only ? 0
                   : kv_fail(e, "%s: field %s%s is %s; only %s is implemented",
                             f->path, f->in, name, show(value).text, only_text);
}

int kv_fields_only(const struct kv_fields *f, const struct kv_field *field,
                   struct kv_err *e)
{
    return check_value(f, field->name, field->only,
                       kv_fields_get(f, field->name), e);
}

/* Fails unless an alias has the value of the name that is read. */
static int check_alias(const struct kv_fields *f, const struct kv_own_field *o,
                       struct kv_err *e)
{
    const json_t *is = find(f, o->name);
    const bool means = o->means && *o->means;
    const char *read = means ? kv_fields_name(f, o->means) : NULL;
    const json_t *should = read ? find(f, read) : NULL;

    if (!is || !read || (should && equal(is, should)))
        return 0;
    return should ? kv_fail(e,
                            "%s: field %s is %s, but %s is %s: they contradict "
                            "each other",
                            f->path, o->name, show(is).text, read,
                            show(should).text)
                  : kv_fail(e,
                            "%s: field %s is %s, but this architecture goes by "
                            "%s, which is missing",
                            f->path, o->name, show(is).text, read);
}

int kv_fields_check_aliases(const struct kv_fields *f, struct kv_err *e)
{
    for (const struct kv_own_field *o = f->own; o && o->name; o++)
        if (check_alias(f, o, e))
            return -1;
    return 0;
}

static bool is_own(const struct kv_fields *f, const char *name,
                   const char **only)
{
    const struct kv_own_field *o = f->own;
    const size_t in = f->wrapped ? 0 : strlen(f->in); /* a part's own fields
                                                       * have no prefix */

    while (o && o->name &&
           (strncmp(o->name, f->in, in) || strcmp(o->name + in, name)))
        o++;
    *only = o && o->only != kv_unread ? o->only : NULL;
    return o && o->name;
}

/* Checks an object whose fields the architecture reads. */
static int check_nested(const struct kv_fields *f, const char *name,
                        const json_t *value, const struct kv_field *known,
                        struct kv_err *e)
{
    char in[64];
    const struct kv_fields nested = {
        .path = f->path, .in = in, .json = value, .own = f->own};

    snprintf(in, sizeof(in), "%s.", name);
    for (const struct kv_own_field *o = f->own; o && o->name; o++)
        if (!strncmp(o->name, in, strlen(in)))
            return json_is_object(value)
                       ? kv_fields_check(&nested, known, e)
                       : kv_fail(e, "%s: field %s is not an object", f->path,
                                 name);
    return 0;
}

static bool is_read_elsewhere(const char *name)
{
    char word[128];
    const int n = snprintf(word, sizeof(word), " %s ", name);

    return n < (int)sizeof(word) && strstr(kv_config_elsewhere, word);
}

/* Handles an unknown field: adds its name to ignored [bytes], or fails.
 */
static int ignore(const struct kv_fields *f, const char *name, char *ignored,
                  size_t bytes, struct kv_err *e)
{
    const size_t n = strlen(ignored);

    if (*f->in || f->derived || is_read_elsewhere(name))
        return kv_fail(e,
                       "%s: field %s%s is not known: it could change the "
                       "numbers (where it does not, take it out)",
                       f->path, f->in, name);
    snprintf(ignored + n, bytes - n, "%s%s", n ? ", " : "", name);
    return 0;
}

int kv_fields_check(const struct kv_fields *f, const struct kv_field *known,
                    struct kv_err *e)
{
    char ignored[256] = "";
    const char *name, *only;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)f->json, name, value)
    {
        const struct kv_field *k = known;
        const bool own = is_own(f, name, &only);

        if (json_is_null(value))
            continue;
        while (k->name && strcmp(k->name, name))
            k++;
        only = own ? only : k->only;
        if ((!own && !k->name &&
             ignore(f, name, ignored, sizeof(ignored), e)) ||
            (only && check_value(f, name, only, value, e)) ||
            (own && check_nested(f, name, value, known, e)))
            return -1;
    }
    if (*ignored)
        kv_note("%s: no class of transformers reads %s: ignored", f->path,
                ignored);
    return 0;
}
