/* DEFLATE (RFC 1951), without a header or a checksum: the one door to zlib.
 * Another release of zlib may write other bytes, but every release reads
 * them. */
#ifndef KV_BASE_DEFLATE_H
#define KV_BASE_DEFLATE_H

#include <stddef.h>
#include <stdint.h>

/* The most bytes that n bytes can take; n < 2^31. */
size_t kv_deflate_max_bytes(size_t n);

/* out: [kv_deflate_max_bytes(n)]; returns the bytes written.  in: may be NULL
 * if n is 0. */
size_t kv_deflate(const uint8_t *in, size_t n, uint8_t *out);

/* in [n] must be one whole stream, of out_bytes bytes; returns -1 if it is
 * anything else, and may then have written to out [out_bytes]. */
int kv_inflate(const uint8_t *in, size_t n, uint8_t *out, size_t out_bytes);

#endif
