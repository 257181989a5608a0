/* A search for the nearest center that follows the definition, and test
 * data. */
#ifndef KV_TESTS_PLAIN_NEAREST_H
#define KV_TESTS_PLAIN_NEAREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns n normal random numbers; coarse: on a grid of halves, so that ties
 * are frequent. */
void fill_normal(float *x, size_t n, uint64_t seed, bool coarse);

/* The squared distance s, as kernels/nearest/nearest.h defines it. */
float plain_distance(const float *x, const float *c, size_t d);

/* The first of the k centers with the least s. */
size_t plain_nearest(const float *x, const float *centers, size_t k, size_t d);

#endif
