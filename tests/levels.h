/* The levels that a test walks: LOWEST to kv_level_max().  The test of AVX-512
 * on other processors (avx512_twin.h) leaves the lower levels to the test
 * without it, and is SLOW, as a sanitizer is. */
#ifndef LEVELS_H
#define LEVELS_H

#include "kernels/level.h"
#include "tests/test.h"

#ifdef AVX512_ALONE
static const enum kv_level LOWEST = KV_LEVEL_AVX512;
enum { SLOW = 1 };
#else
static const enum kv_level LOWEST = KV_LEVEL_C;
enum { SLOW = SANITIZED };
#endif

#endif
