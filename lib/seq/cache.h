/* The KV cache of one sequence and one layer: K and V, each by itself
 *
 *   [ sinks: fp16, s tokens ][ quantized blocks: codes ][ tail: fp16 ]
 *
 * (f32 keeps nothing in fp16.)  One step is append, quantize, attend.  Keys of
 * a codec that is less_bias are held without the model's bias: it is taken off
 * by kv_cache_append() and added where tokens are read; a kv_reader has none.
 * Massive tokens, of a codec that is massive, are coded as all others are, and
 * kept in fp16 beside their codes once they are quantized.
 *
 * With a scheme's probe() the tail's probe tokens also keep their queries, in
 * fp16, counted with K.  A block that is quantized is scored by its own probes
 * over its own keys, as both are held: nothing outside the block has a say, so
 * that the law of codec.h stands. */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include "lib/base/err.h"
#include "lib/codec.h"
#include "lib/seq/tokens.h"

KV_PUBLIC_BEGIN

/* Quantized tokens, sinks not counted, of a side that holds n tokens: whole
 * blocks that start at token s.  Pure arithmetic, used by everything. */
size_t kv_quantized(const struct kv_codec *c, size_t n);

struct kv_cache;

/* The codecs are kept by pointer and must outlive the cache.  Fails unless they
 * are K's and V's of one layer, and with a probe() or layered quantize the same
 * blocks. */
int kv_cache_new(struct kv_cache **c, const struct kv_codec *k,
                 const struct kv_codec *v, uint64_t seed, struct kv_err *e);
void kv_cache_free(struct kv_cache *c);

/* Of a layered codec (codec.h), before the first append: c takes over the cache
 * of the next lower layer, NULL for the lowest, which is freed with c.  A token
 * is appended to the lower layers first.  A cache of a layered codec keeps the
 * decoded form of its tokens, as a workspace that no bytes count; c reads
 * nothing else of the caches below, whose codecs may be gone. */
void kv_cache_put_on(struct kv_cache *c, struct kv_cache *below);
struct kv_cache *kv_cache_below(const struct kv_cache *c); /* NULL: none */
/* Frees the caches below c that a cache put on c would not read. */
void kv_cache_free_unread(struct kv_cache *c);

/* Appends the tokens and quantizes all tokens that are due: t->k_pre when the
 * key codec is pre_rope, else t->k; t->q is read for a scheme with a probe().
 * Fails on NaN and infinity, naming layer, side and token, when the codecs want
 * queries or keys before RoPE and t has none, and when a layered codec's lower
 * layer lacks these tokens: the cache is then unchanged.  Fails where a codec's
 * device does: it is then good for kv_cache_free() alone. */
int kv_cache_append(struct kv_cache *c, const struct kv_tokens *t,
                    struct kv_err *e);

/* The view of the newest nq tokens' queries: each sees the tokens up to its
 * own. */
struct kv_attend_view kv_cache_view(const struct kv_cache *c, size_t nq);

/* Attention to all that is held; view: one sequence of as many tokens.  q, out:
 * [view.nq][n_heads][head_dim].  Through decode(), in plain C
 * (kernels/attend.h); schemes with an attend() through that. */
void kv_cache_attend(const struct kv_cache *c, struct kv_attend_view view,
                     const float *q, float *out);

/* Adds the operations of that for the newest nq queries, of a codec that
 * attends (kv_codec_attends()). */
void kv_cache_count_ops(const struct kv_cache *c, size_t nq, const float *q,
                        struct kv_attend_ops *ops);

size_t kv_cache_tokens(const struct kv_cache *c);
uint64_t kv_cache_seed(const struct kv_cache *c);

/* Bytes of what kv_cache_held() reads: sinks, codes, open block or tail,
 * queries, massive tokens with their indices.  quantized: the codes alone and
 * the tokens they hold; may be NULL.
 */
size_t kv_cache_bytes(const struct kv_cache *c, enum kv_side side,
                      size_t *quantized_bytes, size_t *quantized_tokens);
/* Tokens of the side that became codes, those of an open block among them. */
size_t kv_cache_coded(const struct kv_cache *c, enum kv_side side);
/* Values of all tokens so far that are beyond fp16's range, and were clipped to
 * its largest: kv_codec_clipped() of what is stored, and of the queries, which
 * count with K.  None of a wide codec. */
size_t kv_cache_clipped(const struct kv_cache *c, enum kv_side side);
/* kv_cache_bytes() of a side that was given n tokens, without a cache; not of
 * codecs that are variable, massive, have history or need queries. */
size_t kv_held_bytes(const struct kv_codec *c, size_t n,
                     size_t *quantized_bytes, size_t *quantized_tokens);

/* Bytes of memory, as an estimate, of a side of n tokens; and of what an append
 * holds beside it, the tokens as they are encoded and keys less their bias,
 * where n tokens come piece by piece. */
double kv_cache_memory(const struct kv_codec *c, size_t n);
double kv_append_memory(const struct kv_codec *c, size_t n, size_t piece);

/* A reader of the side's contents; its pointers are valid until the next
 * append. */
struct kv_reader kv_cache_reader(const struct kv_cache *c, enum kv_side side);
/* The same without what no query after the newest token's sees in a layer that
 * slides: sinks older than its window, and blocks, quantized or in the tail, of
 * which every token is older.  So a window is held, and what is older only
 * where it shares a block with the window's first token.  It stays in memory,
 * where older queries may be asked for, but is not counted. */
struct kv_reader kv_cache_held(const struct kv_cache *c, enum kv_side side);

/* All n tokens as they would be read: sinks and tail through fp16, blocks
 * through decode().  x: [n][n_kv_heads][head_dim]. */
void kv_cache_decode(const struct kv_cache *c, enum kv_side side, float *x);
/* The same of tokens [first, end), of a quantized block all or none, none of
 * them forgotten; not with history.  x: [end - first][..]. */
void kv_cache_decode_part(const struct kv_cache *c, enum kv_side side,
                          size_t first, size_t end, float *x);
/* The same of all, blocks where the codec is (kv_codec_decode); fails as that
 * does. */
int kv_cache_read(const struct kv_cache *c, enum kv_side side, float *x,
                  struct kv_err *e);

/* All that is quantized so far leaves memory.  It stays counted; of readers the
 * counts and sizes are good from here on, not the codes. */
void kv_cache_forget(struct kv_cache *c);

KV_PUBLIC_END

#endif
