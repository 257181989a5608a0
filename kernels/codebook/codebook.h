/* Family "codebook": sub-vectors of d values as indices of b bits into tables
 * of centroids, one table for all sub-spaces of a head (shared) or one for each
 * (own).  A tile is 64 tokens of one KV head; n_sub = head_dim / d.
 *
 * Shared, b <= 8, keys: 4 sub-vectors of 16 tokens make 64 bytes,
 *
 *   | s0: | t0: code(sub 0..3) | t1: .. | .. t15 | t16-31 | t32-47 | t48-63 |
 *   | s1: sub-vectors 4 to 7 .. |
 *
 * values: 4 tokens of 16 sub-vectors,
 *
 *   | s0: | t0-3: | sub 0: code(token 0..3) | sub 1: .. | .. sub 15 | t4-7 ..|
 *   | s1: sub-vectors 16 to 31 .. |
 *
 * so that four neighbouring bytes, looked up in one dimension, are multiplied
 * and added to one 32-bit sum.  n_sub is filled up to a multiple of 4 (keys) or
 * 16 (values).
 *
 * Own, b <= 8:  | sub 0: code(token 0..63) | sub 1 | .. |
 *
 * A code is a byte, or half a byte if b <= 4.  A byte of two codes holds, low
 * half first, the codes of tokens t and t + 32 (shared) or of sub-vectors 2 i
 * and 2 i + 1 (own).
 *
 * b > 8:  | sub 0: low byte of code(token 0..63) | sub 1 | .. |
 *         | sub 0: bit 8 of 64 codes: 8 bytes | bit 9 | .. | sub 1 | .. |
 *
 * All planes are padded to 64 bytes.
 *
 * Path int8 rounds centroids to 8 bits, relative to the largest value of a
 * table's dimension; for long runs of keys it uses tables of q . centroid in 8
 * bits (impl.h).  It does not exist for keys stored before RoPE. */
#ifndef KV_CODEBOOK_H
#define KV_CODEBOOK_H

#include "kernels/tiles/rope.h"
#include "kernels/tiles/tiles.h"

struct kv_codebook;

extern const struct kv_family kv_family_codebook;

/* centers: [head_books][sub_books][2^bits][d], finite, kept by the caller;
 * head_books is 1 or n_heads, sub_books 1 or n_sub.  rope: for keys before
 * RoPE, now owned by the store; else NULL.  1 <= bits <= 16. */
struct kv_codebook *kv_codebook_new(const float *centers, size_t head_books,
                                    size_t sub_books, size_t n_sub, size_t d,
                                    unsigned bits, int values,
                                    struct kv_tiles_rope *rope);
void kv_codebook_free(struct kv_codebook *b); /* NULL is fine */

/* Initializes s as a store of b's codes; s->values, n_heads and head_dim must
 * be set. */
void kv_store_codebook(struct kv_store *s, const struct kv_codebook *b);

/* Writes token t's codes of one head, [n_sub], into a tile whose bits of that
 * token are zero. */
void kv_store_put_indices(const struct kv_store *s, size_t t,
                          const uint16_t *code, uint8_t *tile);

#endif
