/* Second moments of many tokens. */
#ifndef KV_MOMENTS_H
#define KV_MOMENTS_H

#include <stddef.h>

/* Adds x x^T of every token and head of x [n][heads][d] to sum [heads][d][d];
 * the products of one call are in f32, their sums in double. */
void kv_moments_add(const float *x, size_t n, size_t heads, size_t d,
                    double *sum);

/* Adds the sum over n tokens of a^T b, a [n][n_a], b [n][n_b], to sum [n_a]
 * (rows stride apart); products of some hundred tokens are in f32, their sums
 * in double.  Uses all threads; any number of threads gives the same bits. */
void kv_moments_cross(const float *a, size_t n_a, const float *b, size_t n_b,
                      size_t n, double *sum, size_t stride);

#endif
