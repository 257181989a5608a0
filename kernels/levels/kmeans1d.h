/* k-means in one dimension: the global optimum. */
#ifndef KV_LEVELS_KMEANS1D_H
#define KV_LEVELS_KMEANS1D_H

#include "lib/base/err.h"

#include <stddef.h>

/* The k centers with the least sum of weight * (x - nearest center)^2, by
 * dynamic programming.  Clusters are runs of neighbours.  The beginning of the
 * last run never moves left as points are added, so divide and conquer finds
 * all beginnings for one k in n log n steps.
 *
 * x:       [n] ascending; read only, not kept.
 * weight:  [n], each >= 0.
 * k:       >= 1.
 * centers: [k], ascending, written in full, and only on success.  With fewer
 *          than k points of positive weight the last center repeats.
 * cost:    the least sum; NULL is fine.
 *
 * Exact up to rounding in double; ties go to the leftmost beginning.  Time O(k
 * n log n), memory k n words of 32 bits.
 *
 * Fails when no weight is positive, x is not ascending, x or weight holds a NaN
 * or an infinity, or a weight is negative. */
int kv_kmeans1d(const double *x, const double *weight, size_t n, size_t k,
                double *centers, double *cost, struct kv_err *e);

#endif
