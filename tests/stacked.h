/* A layered scheme only for tests, in no list: it subtracts fixed shares of a
 * token's neighbours and codes the residual in 8 bits a value. */
#ifndef STACKED_H
#define STACKED_H

#include "lib/codec.h"

/* Makes a spec that is not fitted.  n_below: 1 or 2; s and r hold for both
 * sides. */
struct kv_spec stacked_spec(size_t n_below, size_t s, size_t r);

#endif
