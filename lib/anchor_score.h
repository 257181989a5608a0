/* AnTKV's anchor scores (arXiv 2506.19505, theorem 3.1): how much the outputs
 * of attention move, at most and to first order, with an error of one token,
 *
 *   keys:    score[j] = sum_i A_ij |v_j - o_i|_1 |q_i|_2
 *   values:  score[j] = sum_i A_ij
 *
 * for an error of 1 in its key's or its value's sum of magnitudes, without the
 * factor of the scale.  i are the queries that stand at j or later, of each
 * query head of a KV head; A their weights over tokens 0 .. i, o_i the output.
 * (The bound's |V' Diag(A_i) (I - e A_i)_j|_1 is A_ij |v_j - o_i|_1.)
 *
 * q: [n][n_heads][head_dim]; k, v: [n][n_kv_heads][head_dim], k after RoPE like
 * q. of_k, of_v: [n_kv_heads][n]; NULL: not wanted.  In a fixed order: any
 * number of threads gives the same bits. */
#ifndef KV_ANCHOR_SCORE_H
#define KV_ANCHOR_SCORE_H

#include "lib/shape.h"

void kv_anchor_score(const struct kv_shape *s, const float *q, const float *k,
                     const float *v, size_t n, float *of_k, float *of_v);

#endif
