#include "lib/tokenizer/tokenizer_bytes.h"

#include <string.h>

void kv_byte_alphabet_init(struct kv_byte_alphabet *a)
{
    uint32_t other = 0x100;

    memset(a->byte, 0xff, sizeof(a->byte));
    for (uint32_t b = 0; b < 256; b++) {
        const bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
        const uint32_t c = prints ? b : other++;
        char s[4];

        a->of[b].n = kv_utf8_put(c, s);
        memcpy(a->of[b].s, s, sizeof(a->of[b].s));
        a->byte[c] = (int16_t)b;
    }
}

void kv_byte_encode(const struct kv_byte_alphabet *a, const char *s, size_t n,
                    struct kv_text *out)
{
    char *to = kv_text_extend(out, 2 * n);

    for (size_t i = 0; i < n; i++) {
        const unsigned char b = (unsigned char)s[i];

        memcpy(to, a->of[b].s, 2);
        to += a->of[b].n;
    }
    out->n = (size_t)(to - out->s);
}

void kv_byte_decode(const struct kv_byte_alphabet *a, const char *s, size_t n,
                    struct kv_text *out)
{
    const size_t before = out->n;
    size_t n_bytes;

    for (size_t at = 0; at < n; at += n_bytes) {
        const uint32_t c = kv_utf8_get(s + at, &n_bytes);
        const int b = c < 0x144 ? a->byte[c] : -1;
        const char byte = (char)b;

        if (b < 0) {
            out->n = before;
            kv_text_add(out, s, n);
            return;
        }
        kv_text_add(out, &byte, 1);
    }
}
