#include "lib/base/utf8.h"
#include "lib/base/alloc.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* low, high: the valid second bytes after each lead byte (the Unicode standard,
 * table 3-7). */
size_t kv_utf8_char(const char *text, size_t n_bytes, size_t *bad)
{
    const unsigned char *s = (const unsigned char *)text;
    const unsigned lead = s[0];
    const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    const size_t n = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

    if (lead < 0x80)
        return 1;
    *bad = 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (i >= n_bytes || s[i] < (i == 1 ? low : 0x80) ||
            s[i] > (i == 1 ? high : 0xbf)) {
            *bad = i;
            return 0;
        }
    }
    return n;
}

char *kv_utf8_repair(const char *s, size_t n_bytes, size_t *n)
{
    char *to = kv_alloc(n_bytes + 1, strlen(KV_UTF8_REPLACEMENT)), *at = to;

    for (size_t bad; n_bytes;) {
        const size_t good = kv_utf8_char(s, n_bytes, &bad);
        const size_t len = good ? good : bad;

        at = good ? mempcpy(at, s, good) : stpcpy(at, KV_UTF8_REPLACEMENT);
        s += len;
        n_bytes -= len;
    }
    *at = 0;
    *n = (size_t)(at - to);
    return to;
}

/* Control characters: C0, DEL and C1 (U+0080 to U+009F, in UTF-8 C2 80 to C2
 * 9F). */
static bool is_control(const char *s, size_t n)
{
    const unsigned char *c = (const unsigned char *)s;

    return n == 1 ? c[0] < 0x20 || c[0] == 0x7f
                  : n == 2 && c[0] == 0xc2 && c[1] < 0xa0;
}

char *kv_shown(const char *s, size_t n_bytes, const char *keep, size_t *n)
{
    enum { ESCAPED = 4 }; /* bytes of \x1b */
    char *to = kv_alloc(n_bytes + 1, ESCAPED), *at = to;

    for (size_t bad; n_bytes;) {
        const size_t good = kv_utf8_char(s, n_bytes, &bad);
        const size_t len = good ? good : bad;
        const bool stays =
            good && (!is_control(s, good) || (*s && strchr(keep, *s)));

        for (size_t i = 0; i < len; i++)
            if (stays)
                *at++ = s[i];
            else
                at += sprintf(at, "\\x%02x", (unsigned char)s[i]);
        s += len;
        n_bytes -= len;
    }
    *n = (size_t)(at - to);
    return to;
}
