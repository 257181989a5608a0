/* SHA-256 (libcrypto), shortened to 16 hex digits for rows of results:
 * text_hash equals `sha256sum FILE | cut -c1-16`. */
#ifndef KV_BASE_HASH_H
#define KV_BASE_HASH_H

#include "lib/base/err.h"

#include <stddef.h>

enum { KV_HASH_CHARS = 32 };

struct kv_hash;
struct kv_hash *kv_hash_new(void);
void kv_hash_add(struct kv_hash *h, const void *data, size_t n);
/* Writes 16 hex digits and a zero, and frees h. */
void kv_hash_end(struct kv_hash *h, char hex[KV_HASH_CHARS]);

void kv_hash_bytes(const void *data, size_t n, char hex[KV_HASH_CHARS]);

/* Adds a file's content: all of it up to 1 GiB.  Of a larger one 1,024 pieces
 * of 64 KiB, evenly spread with the first and the last bytes among them, and
 * its size, inode and time of last change (a copy of such a file counts as
 * another). */
int kv_hash_add_file(struct kv_hash *h, const char *path, struct kv_err *e);

#endif
