/* Text files, written by a person or for a person. */
#ifndef KV_BASE_TEXT_H
#define KV_BASE_TEXT_H

#include "lib/base/err.h"

#include <stddef.h>

/* Reads a regular file of at most max bytes, without the UTF-8 byte order mark
 * that some editors write.  *text is the caller's to free and has a zero byte
 * after its end.
 *
 * Fails on a Git LFS pointer, on a zero byte, and on the byte order marks of
 * UTF-16 and UTF-32; the sentence names the file and the byte.  Other bytes
 * pass, UTF-8 or not. */
int kv_text_read(const char *path, size_t max, char **text, size_t *bytes,
                 struct kv_err *e);

/* kv_text_read() for any path that kv_stream_read() takes: also a pipe, and "-"
 * for standard input.  hash: [KV_HASH_CHARS], the hash of the bytes including
 * the mark, as sha256sum sees them; NULL: not wanted. */
int kv_text_read_stream(const char *path, size_t max, char **text,
                        size_t *bytes, char *hash, struct kv_err *e);

/* The check of both functions: fails on a text that they refuse. */
int kv_text_check(const char *path, const char *text, size_t n,
                  struct kv_err *e);

/* UTF-8's byte order mark, and its number of bytes if a text begins with it,
 * else 0.
 */
#define KV_UTF8_MARK "\xef\xbb\xbf"
size_t kv_text_mark(const char *text, size_t n);

#endif
