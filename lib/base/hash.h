/* SHA-256 (libcrypto), shortened to 16 hex digits for rows of results:
 * text_hash equals `sha256sum FILE | cut -c1-16`.  lib/file_hash.h hashes whole
 * files on all threads. */
#ifndef KV_BASE_HASH_H
#define KV_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

enum { KV_HASH_CHARS = 32 };

struct kv_hash;
struct kv_hash *kv_hash_new(void);
void kv_hash_add(struct kv_hash *h, const void *data, size_t n);
/* Writes 16 hex digits and a zero, and frees h. */
void kv_hash_end(struct kv_hash *h, char hex[KV_HASH_CHARS]);

void kv_hash_bytes(const void *data, size_t n, char hex[KV_HASH_CHARS]);

/* The code of n bytes of a file: their GMAC (AES-128, a fixed key, an IV of
 * zeros), a polynomial in GF(2^128).  About three times as fast as SHA-256
 * where the processor has instructions for both.  Two leaves of up to 256 KiB
 * that differ have the same code with probability 2^-113 at most, and never if
 * they differ in only one byte. */
enum { KV_LEAF_CODE = 16 };

void kv_hash_leaf(const void *leaf, size_t n, uint8_t code[KV_LEAF_CODE]);

#endif
