/* UTF-8: well-formed characters, and text that is safe for a terminal. */
#ifndef KV_BASE_UTF8_H
#define KV_BASE_UTF8_H

#include <stddef.h>

/* Length of the well-formed character at s [n_bytes], n_bytes > 0; 0 if it is
 * ill-formed, with the length of its maximal ill-formed part in *bad. */
size_t kv_utf8_char(const char *s, size_t n_bytes, size_t *bad);

#define KV_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* A copy with every maximal ill-formed part replaced by U+FFFD (the Unicode
 * standard's recommended practice).  Ends with a zero and has *n bytes before
 * it; the caller's to free. */
char *kv_utf8_repair(const char *s, size_t n_bytes, size_t *n);

/* A copy that is safe for a terminal: bytes of control characters, and bytes
 * that are not UTF-8, are written as \x1b and the like.  keep: control
 * characters that stay, "" for none.  Ends with a zero and has *n bytes before
 * it; the caller's to free. */
char *kv_shown(const char *s, size_t n_bytes, const char *keep, size_t *n);

#endif
