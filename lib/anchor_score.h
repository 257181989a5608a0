/* AnTKV's anchor scores (arXiv 2506.19505, theorem 3.1): a first-order upper
 * bound on how far the attention outputs move when the key or the value of
 * token j has an error of L1 norm 1,
 *
 *   keys:    score[j] = sum_i A_ij |v_j - o_i|_1 |q_i|_2
 *   values:  score[j] = sum_i A_ij
 *
 * without the factor attn_scale.  The sums run over the query heads of a KV
 * head and over their queries i >= j.  A_i are the softmax weights of query i
 * over tokens 0 .. i, and o_i is its attention output.  (The bound's |V'
 * Diag(A_i) (I - e A_i)_j|_1 is A_ij |v_j - o_i|_1.)
 *
 * q: [n][n_heads][head_dim]; k, v: [n][n_kv_heads][head_dim], k after RoPE like
 * q. of_k, of_v: [n_kv_heads][n]; NULL: not wanted.  Sums run in a fixed order,
 * so any number of threads gives the same bits. */
#ifndef KV_ANCHOR_SCORE_H
#define KV_ANCHOR_SCORE_H

#include "lib/shape.h"

void kv_anchor_score(const struct kv_shape *s, const float *q, const float *k,
                     const float *v, size_t n, float *of_k, float *of_v);

#endif
