#include "lib/base/base64.h"
#include "lib/base/alloc.h"

static const char alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* 0 to 63, or -1. */
static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int kv_base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_bytes)
{
    size_t at = 0;

    if (n % 4)
        return -1;
    for (size_t i = 0; i < n; i += 4) {
        const size_t pad = i + 4 < n || s[i + 3] != '=' ? 0
                           : s[i + 2] == '='            ? 2
                                                        : 1;
        uint32_t bits = 0;

        for (size_t k = 0; k < 4 - pad; k++) {
            const int d = digit(s[i + k]);

            if (d < 0)
                return -1;
            bits |= (uint32_t)d << (18 - 6 * k);
        }
        if (bits & ((1u << 8 * pad) - 1)) /* bits of no byte */
            return -1;
        for (size_t k = 0; k < 3 - pad; k++)
            out[at++] = (uint8_t)(bits >> (16 - 8 * k));
    }
    *n_bytes = at;
    return 0;
}

char *kv_base64_encode(const uint8_t *data, size_t n_bytes)
{
    char *s = kv_alloc(n_bytes / 3 + 1, 4 + 1);
    size_t at = 0;

    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t n = n_bytes - i < 3 ? n_bytes - i : 3;
        uint32_t bits = 0;

        for (size_t k = 0; k < n; k++)
            bits |= (uint32_t)data[i + k] << (16 - 8 * k);
        for (size_t k = 0; k < 4; k++)
            s[at++] = k <= n ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
    s[at] = 0;
    return s;
}
