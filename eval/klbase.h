/* llama.cpp's file of base log-probabilities (llama-perplexity
 * --kl-divergence-base), read and written, so that results of both programs can
 * be compared:
 *
 *   | "_logits_" | n_ctx: i32 | n_vocab: i32 | n_chunk: i32 |
 *   | tokens: i32[n_chunk * n_ctx] |
 *   then for each chunk its n_ctx - 1 - n_ctx/2 scored tokens:
 *   | scale: f32 | min_log_prob: f32 | code: u16[n_vocab], padded to even |
 *
 * log p = scale * code + min_log_prob; log-probabilities further than 16 below
 * the largest are clipped.  Memory: one row.
 *
 * A row is accepted only if a softmax can have produced it (klbase.c derives
 * the bounds); otherwise the sentence names file, chunk, row and value. */
#ifndef KV_KLBASE_H
#define KV_KLBASE_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct kv_klbase;

/* llama.cpp's divergence ignores values below this. */
#define KV_KLBASE_FLOOR (-16.0f)

int kv_klbase_create(struct kv_klbase **b, const char *path, size_t n_ctx,
                     size_t n_vocab, size_t n_chunks, const int32_t *tokens,
                     struct kv_err *e);
/* Rows in order: chunk by chunk.  logits: [n_vocab].  Fails on logits that a
 * row cannot represent: NaN, infinities, and logits so large that adding 16
 * does not change them. */
int kv_klbase_put(struct kv_klbase *b, const float *logits, struct kv_err *e);
int kv_klbase_commit(struct kv_klbase *b, struct kv_err *e); /* frees b */

/* Fails when the file is cut, or is for another context, vocabulary or tokens:
 * the file must begin with the n_chunks windows of tokens [n_chunks][n_ctx]. */
int kv_klbase_open(struct kv_klbase **b, const char *path, size_t n_ctx,
                   size_t n_vocab, size_t n_chunks, const int32_t *tokens,
                   struct kv_err *e);
/* Reads scored row `row` of chunk `chunk` into log_p [n_vocab].  p: [n_vocab],
 * log_p's exponentials on success, else undefined.  Thread-safe. */
int kv_klbase_get(const struct kv_klbase *b, size_t chunk, size_t row,
                  float *log_p, float *p, struct kv_err *e);
void kv_klbase_close(struct kv_klbase *b); /* discards an uncommitted file */

#endif
