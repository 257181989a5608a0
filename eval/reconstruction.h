/* Reconstruction error: decode(encode(x)) against x. */
#ifndef KV_RECONSTRUCTION_H
#define KV_RECONSTRUCTION_H

#include <stddef.h>

/* Sums, so that parts measured apart can be added.  Start from { 0 }. */
struct kv_reconstruction {
    double x2, e2;  /* sum of x^2 and of (y - x)^2 */
    double cosines; /* sum over vectors of cos(x, y) */
    double max;     /* largest |y - x| */
    size_t n_values, n_vectors;
};

/* x: the input of encode(), y: the output of decode(), both [n][dim], a vector
 * per row.  Sums are in double and in order.  The cosine of two zero vectors is
 * 1; the cosine of a zero vector and another vector is 0. */
void kv_reconstruction_add(struct kv_reconstruction *r, const float *x,
                           const float *y, size_t n, size_t dim);
void kv_reconstruction_merge(struct kv_reconstruction *into,
                             const struct kv_reconstruction *part);

/* NaN where nothing was measured. */
double kv_reconstruction_mse(const struct kv_reconstruction *r);
double kv_reconstruction_sqnr_db(
    const struct kv_reconstruction *r); /* infinite when exact */
double kv_reconstruction_rel_err(
    const struct kv_reconstruction *r); /* ||y - x|| / ||x|| */
double kv_reconstruction_cosine(
    const struct kv_reconstruction *r); /* mean over vectors */
double kv_reconstruction_max_err(const struct kv_reconstruction *r);

#endif
