/* A cache's error in the coefficients of its scheme's transform. */
#ifndef KV_COEFFICIENTS_H
#define KV_COEFFICIENTS_H

#include "lib/seq/cache.h"

/* Sums the squared error of the quantized tokens' coefficients under the
 * codec's transform.  x, stored: a side's input and the values read back,
 * [n][n_kv_heads][head_dim]; power: [n_kv_heads * head_dim], to which the
 * squares of x's coefficients are added. */
double kv_coefficients_error(const struct kv_cache *cache, enum kv_side side,
                             const float *x, const float *stored,
                             double *power);

#endif
