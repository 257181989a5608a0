/* A cache as bytes, for files and for messages between machines.
 *
 * A side's bytes are
 *
 *   | sinks: fp16 | sizes: uint32 each, variable codecs only |
 *   | quantized blocks | tail: fp16, or open block | queries: fp16 |
 *   | massive tokens: their indices, uint32, then their values, fp16 |
 *
 * as struct kv_reader has them (lib/codec.h).  The message of a layer is
 *
 *   | struct kv_cache_head | K's spec | V's spec | K's bytes | V's bytes |
 *   | massive: a bit a token, where a codec keeps massive tokens | hash |
 *
 * Specs have no zero at the end.  The hash is 16 hex digits of kv_hash_bytes()
 * over all bytes before it; it finds accidents and is no signature.  Numbers
 * are little-endian. */
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

/* Writes a side's bytes and returns their number.  For the reader that
 * kv_cache_held() gives, the number is kv_cache_bytes().  The caller frees
 * *bytes. */
size_t kv_codes_of(const struct kv_reader *r, uint8_t **bytes);

/* Writes the message of all tokens in memory and returns its number of bytes.
 * In a layer that slides these are more than kv_cache_bytes(), since the
 * message includes tokens that no query sees any more.  The caller frees
 * *bytes. */
size_t kv_cache_write(const struct kv_cache *c, uint8_t **bytes);

/* Reads a message of n bytes into an empty cache.  The cache then equals the
 * written one: it gives the same bytes, attention and further codes.  Its
 * codecs must have the same calibration.  Fails where the message is damaged or
 * of another spec, shape, layer or seed, and where the layers below a layered
 * codec lack these tokens.  After a failure the cache may only be freed. */
int kv_cache_load(struct kv_cache *c, const uint8_t *bytes, size_t n,
                  struct kv_err *e);

/* Reads both sides of the same tokens, as kv_codes_of() wrote them, into an
 * empty cache.  The cache then gives the same tokens and attention as the
 * written one.  If a codec keeps massive tokens, no tokens may be appended.
 * Fails if the bytes do not encode that many tokens; the cache is then as after
 * a failed kv_cache_load(). */
int kv_cache_load_sides(struct kv_cache *c,
                        const struct kv_side_bytes side[KV_SIDES],
                        struct kv_err *e);

/* The parts of a side of n tokens.  open: of a codec with history, else 0. */
struct kv_side_counts {
    size_t sinks, blocks, open, tail;
};
struct kv_side_counts kv_side_counts(const struct kv_codec *c, size_t n);

/* Reads one side of n_tokens tokens, as kv_codes_of() wrote it, into an empty
 * cache.  Only this side of the cache may then be read.  Not for layered
 * codecs.  Fails, and leaves the cache, as kv_cache_load() does. */
int kv_cache_load_side(struct kv_cache *c, enum kv_side side, size_t n_tokens,
                       const uint8_t *bytes, size_t n, struct kv_err *e);

#endif
