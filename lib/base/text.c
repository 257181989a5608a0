#include "lib/base/text.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"

#include <stdlib.h>
#include <string.h>

/* UTF-32's marks precede UTF-16's, since one UTF-32 mark begins like a UTF-16
 * mark. */
static const struct mark {
    const char *bytes;
    size_t n;
    const char *name;
} marks[] = {
    {"\xff\xfe\0\0", 4, "UTF-32"},
    {"\0\0\xfe\xff", 4, "UTF-32"},
    {"\xff\xfe", 2, "UTF-16"},
    {"\xfe\xff", 2, "UTF-16"},
};

int kv_text_check(const char *path, const char *text, size_t n,
                  struct kv_err *e)
{
    const char *zero;

    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++)
        if (n >= marks[i].n && !memcmp(text, marks[i].bytes, marks[i].n))
            return kv_fail(e, "%s: byte 0: the mark of %s: UTF-8 is expected",
                           path, marks[i].name);
    if (kv_lfs_check(path, text, n, e))
        return -1;
    zero = memchr(text, 0, n);
    if (zero)
        return kv_fail(e,
                       "%s: byte %zu is zero: this is no text, or UTF-16 "
                       "without a mark: UTF-8 is expected",
                       path, (size_t)(zero - text));
    return 0;
}

size_t kv_text_mark(const char *text, size_t n)
{
    const size_t mark = strlen(KV_UTF8_MARK);

    return n >= mark && !memcmp(text, KV_UTF8_MARK, mark) ? mark : 0;
}

static void drop_mark(char *text, size_t *n)
{
    const size_t mark = kv_text_mark(text, *n);

    *n -= mark;
    memmove(text, text + mark, *n + 1); /* the final zero as well */
}

int kv_text_read(const char *path, size_t max, char **text, size_t *bytes,
                 struct kv_err *e)
{
    char *s;

    if (kv_file_read_most(path, max, &s, bytes, e))
        return -1;
    if (kv_text_check(path, s, *bytes, e)) {
        free(s);
        return -1;
    }
    drop_mark(s, bytes);
    *text = s;
    return 0;
}

int kv_text_read_stream(const char *path, size_t max, char **text,
                        size_t *bytes, char *hash, struct kv_err *e)
{
    char *s;

    if (kv_stream_read(path, max, &s, bytes, e))
        return -1;
    if (kv_text_check(kv_input_name(path), s, *bytes, e)) {
        free(s);
        return -1;
    }
    if (hash)
        kv_hash_bytes(s, *bytes, hash);
    drop_mark(s, bytes);
    *text = s;
    return 0;
}
