/* A layered scheme for tests, which no list has: it subtracts fixed shares of a
 * token's neighbours (its own K, its K and V in lower layers) and codes the
 * residual in 8 bits per value. */
#ifndef STACKED_H
#define STACKED_H

#include "lib/codec.h"

/* Makes a spec, not fitted.  n_below: how many lower layers it reads, 1 or 2; s
 * and r hold for both sides. */
struct kv_spec stacked_spec(size_t n_below, size_t s, size_t r);

#endif
