/* Second moments of the heads of many tokens. */
#ifndef KV_MOMENTS_H
#define KV_MOMENTS_H

#include <stddef.h>

/* Adds x x^T of every token and head of x [n][heads][d] to sum [heads][d][d];
 * products in f32, n at a time, their sums in double. */
void kv_moments_add(const float *x, size_t n, size_t heads, size_t d,
                    double *sum);

#endif
