#include "lib/base/base64.h"
#include "lib/base/alloc.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* OpenSSL also accepts white space and nonzero padding bits.  So the text is
 * valid only if encoding the decoded bytes gives the same text. */
int kv_base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_bytes)
{
    const size_t pad = !n || s[n - 1] != '=' ? 0 : s[n - 2] == '=' ? 2 : 1;
    char *again;
    int rc;

    *n_bytes = 0;
    if (n % 4 || n > INT_MAX ||
        EVP_DecodeBlock(out, (const uint8_t *)s, (int)n) != (int)(n / 4 * 3))
        return -1;
    again = kv_base64_encode(out, n / 4 * 3 - pad);
    rc = strlen(again) == n && !memcmp(again, s, n) ? 0 : -1;
    free(again);
    *n_bytes = rc ? 0 : n / 4 * 3 - pad;
    return rc;
}

char *kv_base64_encode(const uint8_t *data, size_t n_bytes)
{
    char *s = kv_alloc(n_bytes / 3 + 1, 4 + 1);

    EVP_EncodeBlock((uint8_t *)s, data, (int)n_bytes);
    return s;
}
