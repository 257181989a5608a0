#include "lib/json_file.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Running out of memory ends the program; it is no error of the text. */
static void *json_memory(size_t bytes)
{
    return kv_realloc(NULL, bytes, 1);
}

static char *after_string(char *p)
{
    for (p++; *p && *p != '"'; p++)
        p += *p == '\\' && p[1];
    return p + (*p == '"');
}

static bool is_too_big(const char *number, size_t n)
{
    char *end;

    errno = 0;
    strtoll(number, &end, 10);
    return errno == ERANGE && end == number + n;
}

/* Python writes int(1e30) for "no limit".  An integer that no json_int_t holds
 * becomes a real number of the same length in place: its last two digits, which
 * are beyond a double's precision, become the exponent "e2".  Then the file can
 * be read, and a reader that expects an integer refuses the field by name. */
static void make_real(char *text)
{
    for (char *p = text; *p;) {
        const size_t n = strspn(p, "-+.0123456789eE");

        if (n && is_too_big(p, n))
            memcpy(p + n - 2, "e2", 2);
        p = n ? p + n : *p == '"' ? after_string(p) : p + 1;
    }
}

static json_t *load(char *text, size_t bytes, json_error_t *why)
{
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, why);

    if (json || json_error_code(why) != json_error_numeric_overflow)
        return json;
    make_real(text);
    return json_loadb(text, bytes, JSON_REJECT_DUPLICATES, why);
}

json_t *kv_json_line(const char *path, size_t line, char *text, size_t bytes,
                     struct kv_err *e)
{
    json_error_t why;
    json_t *json;

    json_set_alloc_funcs(json_memory, free);
    json = load(text, bytes, &why);
    if (json)
        return json;
    if (json_error_code(&why) == json_error_null_character ||
        json_error_code(&why) == json_error_null_byte_in_key)
        kv_fail(e,
                "%s: line %zu: a string with the zero character (\\u0000) in "
                "it, which is not supported",
                path, line + (size_t)why.line - 1);
    else
        kv_fail(e, "%s: line %zu: %s", path, line + (size_t)why.line - 1,
                why.text);
    return NULL;
}

/* Python writes Infinity, which is not JSON, for "no limit".  Replaces it by a
 * number of the same length that is beyond the range of f32. */
static void end_infinity(char *text)
{
    static const char word[] = "Infinity", number[] = "1.0e+308";
    const size_t n = sizeof(word) - 1;

    for (char *p = strstr(text, word) ? text : ""; *p;)
        if (!strncmp(p, word, n))
            p = (char *)memcpy(p, number, n) + n;
        else
            p = *p == '"' ? after_string(p) : p + 1;
}

json_t *kv_json_read(const char *path, struct kv_err *e)
{
    char *text;
    size_t bytes;
    json_t *json;

    if (kv_text_read(path, KV_FILE_MAX, &text, &bytes, e))
        return NULL;
    end_infinity(text);
    json = kv_json_line(path, 1, text, bytes, e);
    free(text);
    return json;
}
