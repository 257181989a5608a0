#include "lib/model/json_file.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool begins(const void *data, size_t bytes, const char *with)
{
    return bytes >= strlen(with) && !memcmp(data, with, strlen(with));
}

int kv_lfs_check(const char *path, const void *data, size_t bytes,
                 struct kv_err *e)
{
    if (begins(data, bytes, "version https://git-lfs.github.com/spec/"))
        return kv_fail(e,
                       "%s is a Git LFS pointer, not the file itself: fetch "
                       "it with `git lfs pull`",
                       path);
    return 0;
}

/* Running out of it is the end, not an error of the text. */
static void *json_memory(size_t bytes)
{
    return kv_realloc(NULL, bytes, 1);
}

static json_t *parse(const char *path, const char *text, size_t bytes,
                     struct kv_err *e)
{
    static const char mark[] = "\xef\xbb\xbf";
    const size_t skip = begins(text, bytes, mark) ? strlen(mark) : 0;
    json_error_t why;
    json_t *json;

    if (kv_lfs_check(path, text, bytes, e))
        return NULL;
    if (begins(text, bytes, "\xff\xfe") || begins(text, bytes, "\xfe\xff")) {
        kv_fail(e, "%s is UTF-16; UTF-8 expected", path);
        return NULL;
    }
    json_set_alloc_funcs(json_memory, free);
    json = json_loadb(text + skip, bytes - skip, JSON_REJECT_DUPLICATES, &why);
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

    if (kv_file_read(path, &text, &bytes, e))
        return NULL;
    json = parse(path, text, bytes, e);
    free(text);
    return json;
}
