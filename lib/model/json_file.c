#include "lib/model/json_file.h"
#include "lib/base/alloc.h"
#include "lib/base/text.h"

#include <stdlib.h>

/* Running out of it is the end, not an error of the text. */
static void *json_memory(size_t bytes)
{
    return kv_realloc(NULL, bytes, 1);
}

static json_t *parse(const char *path, const char *text, size_t bytes,
                     struct kv_err *e)
{
    json_error_t why;
    json_t *json;

    json_set_alloc_funcs(json_memory, free);
    json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (json)
        return json;
    if (json_error_code(&why) == json_error_null_character ||
        json_error_code(&why) == json_error_null_byte_in_key)
        kv_fail(e,
                "%s: line %d: a string with the zero character (\\u0000) in "
                "it, which is not supported",
                path, why.line);
    else
        kv_fail(e, "%s: line %d: %s", path, why.line, why.text);
    return NULL;
}

json_t *kv_json_read(const char *path, struct kv_err *e)
{
    char *text;
    size_t bytes;
    json_t *json;

    if (kv_text_read(path, &text, &bytes, NULL, e))
        return NULL;
    json = parse(path, text, bytes, e);
    free(text);
    return json;
}
