#include "lib/tokenizer/tokenizer_text.h"
#include "lib/base/alloc.h"
#include "lib/base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

char *kv_text_extend(struct kv_text *t, size_t n_bytes)
{
    if (t->capacity - t->n < n_bytes) {
        t->capacity = t->n + n_bytes + t->capacity / 2 + 64;
        t->s = kv_realloc(t->s, t->capacity, 1);
    }
    return t->s + t->n;
}

void kv_text_add(struct kv_text *t, const char *s, size_t n_bytes)
{
    if (!n_bytes)
        return;
    memcpy(kv_text_extend(t, n_bytes), s, n_bytes);
    t->n += n_bytes;
}

void kv_text_clear(struct kv_text *t)
{
    free(t->s);
    *t = (struct kv_text){0};
}

uint32_t kv_utf8_get(const char *s, size_t *n_bytes)
{
    const size_t n = kv_utf8_bytes(s);
    uint32_t c = (unsigned char)*s;

    if (n > 1)
        c &= 0xffu >> (n + 1);
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    *n_bytes = n;
    return c;
}

size_t kv_utf8_put(uint32_t c, char s[4])
{
    if (c < 0x80) {
        s[0] = (char)c;
        return 1;
    }

    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)((0xf00u >> n & 0xf0) | c);
    return n;
}

size_t kv_utf8_valid(const char *s, size_t n_bytes)
{
    size_t at = 0, bad;

    while (at < n_bytes) {
        const size_t n = kv_utf8_char(s + at, n_bytes - at, &bad);

        if (!n)
            break;
        at += n;
    }
    return at;
}

bool kv_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool kv_is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_SO: /* letters in circles and squares */
        return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    default:
        return c == 0x200c || c == 0x200d; /* Join_Control */
    }
}
