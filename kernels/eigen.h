/* Eigenvectors of symmetric matrices: the one door to LAPACK. */
#ifndef KV_EIGEN_H
#define KV_EIGEN_H

#include <stddef.h>

/* a: [n][n], symmetric, overwritten: a[i][j] becomes component i of the j-th
 * eigenvector (orthonormal).  value: [n], ascending.  Returns -1 when a holds a
 * NaN or an infinity, or when LAPACK does not converge. */
int kv_eigen(double *a, size_t n, double *value);

#endif
