/* UTF-8: what a character is, and what of a text a terminal may see. */
#ifndef KV_BASE_UTF8_H
#define KV_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed character at s, of n_bytes > 0 there are; 0 where
 * there is none, with the length of its maximal ill-formed part in *bad. */
size_t kv_utf8_char(const char *s, size_t n_bytes, size_t *bad);

#define KV_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* A copy with every maximal ill-formed part replaced by U+FFFD (the Unicode
 * standard's recommended practice).  Ends with a zero and has *n bytes before
 * it; the caller's to free. */
char *kv_utf8_repair(const char *s, size_t n_bytes, size_t *n);

/* A copy for a terminal, which acts on none of it: bytes of control characters
 * and bytes that are no UTF-8 are written out, as \x1b.  keep: control
 * characters that stay, "" for none.  Ends with a zero and has *n bytes before
 * it; the caller's to free. */
char *kv_shown(const char *s, size_t n_bytes, const char *keep, size_t *n);

#endif
