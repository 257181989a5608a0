/* The KV cache of one sequence and one layer.  K and V are stored apart, each
 * as
 *
 *   [ sinks: fp16, s tokens ][ quantized blocks: codes ][ tail: fp16 ]
 *
 * (f32 keeps nothing in fp16.)  One step is append, quantize, attend.  A codec
 * that is less_bias holds keys without the model's bias: kv_cache_append()
 * subtracts the bias, and functions that read tokens add it again.  A kv_reader
 * gives keys without it.  A codec that is massive codes massive tokens like all
 * others; once they are quantized, it also keeps their fp16 values beside the
 * codes.  In a block of several tokens, the mean of the block's other tokens is
 * coded in their place.
 *
 * With a scheme's probe() the cache also keeps the queries of the tail's probe
 * tokens, in fp16, counted with K.  When a block is quantized, its own probes
 * score its own keys, both as they are held.  For a scheme with `anchors` every
 * token is a probe, and keys (rotated, with their bias) and values score
 * together (lib/anchor_score.h).  No token outside the block counts, as the law
 * of codec.h demands. */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include "lib/base/err.h"
#include "lib/codec.h"
#include "lib/seq/tokens.h"

KV_PUBLIC_BEGIN

/* The number of quantized tokens, without sinks, of a side that holds n tokens:
 * whole blocks from token s on.  Arithmetic alone; no cache is needed. */
size_t kv_quantized(const struct kv_codec *c, size_t n);

struct kv_cache;

/* The codecs are kept by pointer and must outlive the cache.  Fails unless k
 * and v are the codecs of K and V of one layer; or, for a latent, v is k: the
 * cache then holds only keys, V takes no bytes, and keys are read as values.
 * Codecs with a probe() and layered codecs must also quantize the same
 * blocks. */
int kv_cache_new(struct kv_cache **c, const struct kv_codec *k,
                 const struct kv_codec *v, uint64_t seed, struct kv_err *e);
void kv_cache_free(struct kv_cache *c);

/* Gives c the cache of the next lower layer (NULL: c is the lowest), which c
 * then owns and frees.  Call it before the first append, if a layered codec
 * (codec.h) reads layers below.  A token is appended to the lower layers first.
 * Unless it is in place, a cache of a layered codec keeps its decoded tokens in
 * a workspace that is not counted in bytes; c reads only this workspace of the
 * caches below, and their codecs may be freed. */
void kv_cache_put_on(struct kv_cache *c, struct kv_cache *below);
struct kv_cache *kv_cache_below(const struct kv_cache *c); /* NULL: none */
/* Frees the caches below c that a cache stacked on c would not read. */
void kv_cache_free_unread(struct kv_cache *c);

/* Appends the tokens and quantizes all tokens that are due.  Reads t->k_pre
 * when the key codec is pre_rope, else t->k, and t->q for a scheme with a
 * probe().
 *
 * Fails on NaN and infinity, naming layer, side and token; when the codecs want
 * queries or keys before RoPE and t has none; and when a layered codec's lower
 * layer lacks these tokens.  The cache is then unchanged.  Also fails where a
 * codec's device fails; the cache may then only be freed. */
int kv_cache_append(struct kv_cache *c, const struct kv_tokens *t,
                    struct kv_err *e);

/* The view for the queries of the newest nq tokens.  Each query sees the tokens
 * up to its own. */
struct kv_attend_view kv_cache_view(const struct kv_cache *c, size_t nq);

/* Attention over all tokens of the cache.  view: one sequence of as many tokens
 * as the cache has.  q, out: [view.nq][n_heads][head_dim].  Runs the scheme's
 * attend() if it has one; otherwise decodes, and attends in plain C
 * (kernels/attend.h). */
void kv_cache_attend(const struct kv_cache *c, struct kv_attend_view view,
                     const float *q, float *out);

/* Adds the operations of kv_cache_attend() for the newest nq queries.  Only for
 * codecs that attend (kv_codec_attends()). */
void kv_cache_count_ops(const struct kv_cache *c, size_t nq, const float *q,
                        struct kv_attend_ops *ops);

size_t kv_cache_tokens(const struct kv_cache *c);
uint64_t kv_cache_seed(const struct kv_cache *c);

/* Bytes of the tokens that kv_cache_held() gives: sinks, codes, open block or
 * tail, queries, massive tokens with their indices.  quantized_bytes,
 * quantized_tokens: the codes alone, and their tokens; may be NULL. */
size_t kv_cache_bytes(const struct kv_cache *c, enum kv_side side,
                      size_t *quantized_bytes, size_t *quantized_tokens);
/* The number of the side's tokens that became codes, including the tokens of an
 * open block. */
size_t kv_cache_coded(const struct kv_cache *c, enum kv_side side);
/* The number of values so far that were beyond fp16's range and were clipped to
 * its largest value.  Counts the tokens' stored values by kv_codec_clipped(),
 * and with K the kept queries.  A wide codec clips no value. */
size_t kv_cache_clipped(const struct kv_cache *c, enum kv_side side);
/* kv_cache_bytes() of a side that was given n tokens, without a cache.  Not for
 * codecs that are variable, massive, have history or need queries. */
size_t kv_held_bytes(const struct kv_codec *c, size_t n,
                     size_t *quantized_bytes, size_t *quantized_tokens);

/* Estimates of memory in bytes.  kv_cache_memory(): a side of n tokens.
 * kv_append_memory(): the buffers that an append needs beside it (the tokens
 * being encoded, keys without their bias), if n tokens come in pieces of at
 * most piece tokens. */
double kv_cache_memory(const struct kv_codec *c, size_t n);
double kv_append_memory(const struct kv_codec *c, size_t n, size_t piece);

/* A reader of the side's contents; its pointers are valid until the next
 * append. */
struct kv_reader kv_cache_reader(const struct kv_cache *c, enum kv_side side);
/* A reader without the tokens that no later query sees.  In a sliding layer it
 * leaves out sinks older than the window, and blocks, quantized or in the tail,
 * whose tokens are all older.  The window remains, and so do the older tokens
 * in the block of its first token.  The other tokens stay in memory for older
 * queries, but no bytes are counted for them. */
struct kv_reader kv_cache_held(const struct kv_cache *c, enum kv_side side);

/* All n tokens as attention reads them.  Sinks and tail come through fp16,
 * blocks through decode().  x: [n][n_kv_heads][head_dim]. */
void kv_cache_decode(const struct kv_cache *c, enum kv_side side, float *x);
/* Decodes only tokens [first, end).  The range must contain whole quantized
 * blocks and no forgotten blocks; not with history.  x: [end -
 * first][n_kv_heads][head_dim]. */
void kv_cache_decode_part(const struct kv_cache *c, enum kv_side side,
                          size_t first, size_t end, float *x);
/* All tokens, as kv_cache_decode(), but blocks are decoded on the codec's
 * device by kv_codec_decode().  Fails as it does. */
int kv_cache_read(const struct kv_cache *c, enum kv_side side, float *x,
                  struct kv_err *e);

/* A side of n_tokens tokens as bytes (kv_codes_of(), cache_bytes.h).  clipped:
 * kv_cache_clipped(). */
struct kv_side_bytes {
    const uint8_t *bytes;
    size_t n, n_tokens;
    uint64_t clipped;
};

/* Frees the codes of all tokens quantized so far.  They stay counted.  From
 * here on, readers have correct counts and sizes, but no codes of these tokens.
 */
void kv_cache_forget(struct kv_cache *c);

KV_PUBLIC_END

#endif
