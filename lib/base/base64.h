/* Base64 (RFC 4648, with padding). */
#ifndef KV_BASE_BASE64_H
#define KV_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* Decodes s[0..n) to *n_bytes bytes in out, which has room for n / 4 * 3.
 * Returns -1 if s is not base64. */
int kv_base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_bytes);

/* The encoded text, the caller's to free; ends with a zero. */
char *kv_base64_encode(const uint8_t *data, size_t n_bytes);

#endif
