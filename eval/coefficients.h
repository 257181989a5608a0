/* The error of a cache in the coefficients of its scheme's transform. */
#ifndef KV_COEFFICIENTS_H
#define KV_COEFFICIENTS_H

#include "lib/seq/cache.h"

/* The squared error of the quantized tokens' coefficients, summed.  x, stored:
 * what went into the side and came back, [n][n_kv_heads][head_dim]; power:
 * [n_kv_heads * head_dim], their squares before, added to.  The codec
 * transforms. */
double kv_coefficients_error(const struct kv_cache *cache, enum kv_side side,
                             const float *x, const float *stored,
                             double *power);

#endif
