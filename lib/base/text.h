/* Text files: whatever a person wrote, or a program for a person. */
#ifndef KV_BASE_TEXT_H
#define KV_BASE_TEXT_H

#include "lib/base/err.h"

#include <stddef.h>

/* The whole file without its UTF-8 byte order mark, which some editors write;
 * "-" is standard input.  *text is the caller's to free and has a zero byte
 * after its end.  hash: NULL, or of the file's bytes with the mark, as
 * sha256sum sees them (KV_HASH_CHARS).
 *
 * Fails on a Git LFS pointer; naming the file and the byte, on a zero byte and
 * on the marks of UTF-16 and UTF-32.  Other bytes pass, UTF-8 or not. */
int kv_text_read(const char *path, char **text, size_t *bytes, char *hash,
                 struct kv_err *e);

#endif
