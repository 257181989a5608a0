/* How much the tokens of a block matter to attention: ZipCache's normalised
 * attention score (arXiv 2405.14256) of probe tokens,
 *
 *   saliency[j] = mean of A[p][j] over the probes p >= j
 *
 * with A = softmax(scale * Q K') of each query head over tokens 0 .. p,
 * averaged over the query heads of a KV head.  Our reading of the paper: a
 * probe sees only the tokens of its own block.
 *
 * q: the probes' queries, [n_probes][n_heads][head_dim]; at: [n_probes], the
 * probes' indices among the n tokens, ascending; k: [n][n_kv_heads][head_dim],
 * after RoPE like q.  out: [n_kv_heads][n], 0 for a token that no probe sees.
 * Sums are in double, in a fixed order. */
#ifndef KV_SALIENCY_H
#define KV_SALIENCY_H

#include "lib/shape.h"

void kv_saliency(const struct kv_shape *s, const float *q, const size_t *at,
                 size_t n_probes, const float *k, size_t n, float *out);

#endif
