/* The Lloyd-Max quantizer of the standard normal distribution: the levels of
 * the least mean squared error (S. Lloyd 1957/1982, J. Max 1960). */
#ifndef KV_LEVELS_LLOYD_MAX_H
#define KV_LEVELS_LLOYD_MAX_H

#include <stddef.h>
#include <stdint.h>

enum { KV_LLOYD_MAX_BITS = 8, KV_LLOYD_MAX_LEVELS = 1 << KV_LLOYD_MAX_BITS };

/* level: [2^bits], ascending, level[i] = -level[2^bits - 1 - i] exactly.
 * threshold: [2^bits - 1], midway between the levels; the middle one is 0.
 * 1 <= bits <= KV_LLOYD_MAX_BITS.  Each level is the mean of the distribution
 * between its thresholds, to 1e-12.  Returns the mean squared error (0.3634,
 * 0.1175, 0.03455, 0.009501 for 1 to 4 bits).  Computed anew by each call, in
 * double and in a fixed order. */
double kv_lloyd_max(unsigned bits, double *level, double *threshold);

/* The code of x: how many of the 2^bits - 1 ascending thresholds are <= x. */
static inline uint16_t kv_lloyd_max_code(const float *threshold, unsigned bits,
                                         float x)
{
    unsigned code = 0;

    for (unsigned half = 1u << bits >> 1; half; half >>= 1)
        if (x >= threshold[code + half - 1])
            code += half;
    return (uint16_t)code;
}

#endif
