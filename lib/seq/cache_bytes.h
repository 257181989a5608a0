/* The bytes of a cache: what files hold, and what one machine sends another.
 *
 * A side's bytes are
 *
 *   | sinks: fp16 | sizes: uint32 each, variable codecs only | quantized blocks
 * | | tail: fp16, or open block | queries: fp16 | | massive tokens: their
 * indices, uint32, then their values, fp16 |
 *
 * as struct kv_reader has them (lib/codec.h); a message of a layer is
 *
 *   | struct kv_cache_head | K's spec | V's spec | K's bytes | V's bytes |
 *   | massive: a bit a token, where a codec keeps massive tokens | hash |
 *
 * specs without a zero at the end; the hash is 16 hex digits of kv_hash_bytes()
 * over all before it.  It finds accidents and is no signature.  Numbers are
 * little-endian. */
#ifndef KV_CACHE_BYTES_H
#define KV_CACHE_BYTES_H

#include "lib/seq/cache.h"

struct kv_cache_head {
    char magic[8]; /* "kvcache", then the format's number: 1 */
    uint32_t n_layers, layer, n_heads, n_kv_heads, head_dim;
    uint32_t spec_bytes[KV_SIDES];
    uint32_t massive_bytes;
    uint64_t n_tokens, seed, side_bytes[KV_SIDES];
    uint64_t clipped[KV_SIDES]; /* kv_cache_clipped() */
};

/* A side's bytes; returns their number, of a cache's kv_cache_held()
 * kv_cache_bytes().  The caller frees *bytes. */
size_t kv_codes_of(const struct kv_reader *r, uint8_t **bytes);

/* The message of all that the cache stores; returns its number of bytes.  In a
 * layer that slides these are more than kv_cache_bytes(): tokens that no query
 * sees any more are there.  The caller frees *bytes. */
size_t kv_cache_write(const struct kv_cache *c, uint8_t **bytes);

/* Reads a message of n bytes into an empty cache, which is from then on as the
 * one that was written: the same bytes, attention and further codes.  Its
 * codecs must have the same calibration.  Fails, saying why, where the message
 * is damaged or of another spec, shape, layer or seed; of layered codecs, where
 * the layers below lack these tokens.  A cache whose load failed is good for
 * kv_cache_free() alone. */
int kv_cache_load(struct kv_cache *c, const uint8_t *bytes, size_t n,
                  struct kv_err *e);

#endif
