/* The levels that a test walks: LOWEST to kv_level_max().  A test that is
 * compiled with the emulated AVX-512 (avx512_twin.h) walks only that level,
 * since the plain test walks the others; like a test under a sanitizer it is
 * SLOW. */
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
