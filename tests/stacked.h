/* A layered scheme for tests alone, in no list: 8 bits a value of what is left
 * of a token when fixed shares of its neighbours are taken off. */
#ifndef STACKED_H
#define STACKED_H

#include "lib/codec.h"

/* Not fitted.  n_below: 1 or 2; letters s and r of both sides. */
struct kv_spec stacked_spec(size_t n_below, size_t s, size_t r);

#endif
