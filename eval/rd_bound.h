/* The Gaussian rate-distortion bound of coefficients. */
#ifndef KV_RD_BOUND_H
#define KV_RD_BOUND_H

#include <stddef.h>

/* The least squared error, summed over n independent Gaussian coefficients,
 * with `bits` >= 0 bits for all of them together: reverse water-filling,
 *
 *   D = sum min(theta, variance_i),
 *   theta such that sum max(0, log2(variance_i / theta) / 2) = bits.
 *
 * variance: [n], finite, >= 0. */
double kv_rd_bound(const double *variance, size_t n, double bits);

#endif
