/* The points of NSNQuant (nsnquant.c), in units of 1 / KV_NSN_UNIT. */
#ifndef KV_NSNQUANT_H
#define KV_NSNQUANT_H

#include <stdint.h>

enum { KV_NSN_DIMS = 8, KV_NSN_POINTS = 256, KV_NSN_UNIT = 32 };

/* Points for the magnitudes of 8 standard normal numbers, and for 8 such
 * numbers with their signs. */
extern const int8_t kv_nsn_magnitudes[KV_NSN_POINTS][KV_NSN_DIMS];
extern const int8_t kv_nsn_points[KV_NSN_POINTS][KV_NSN_DIMS];

#endif
