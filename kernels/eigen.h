/* Symmetric matrices, their eigenvectors and equations: the one door to LAPACK.
 */
#ifndef KV_EIGEN_H
#define KV_EIGEN_H

#include <stddef.h>

/* a: [n][n], symmetric, overwritten: a[i][j] becomes component i of the j-th
 * eigenvector (orthonormal).  value: [n], ascending.  Returns -1 when a holds a
 * NaN or an infinity, or when LAPACK does not converge. */
int kv_eigen(double *a, size_t n, double *value);

/* Solves b a f = value f for the vectors f, scaled so that f_j . b^-1 f_k is 1
 * for j = k, else 0.  a, b: [n][n], symmetric, b positive definite;
 * overwritten: a[j] becomes f_j, b[j] becomes g_j = b^-1 f_j, so that g_j . f_k
 * is 1 or 0, too.  value: [n], ascending.  Returns -1 as kv_eigen() does, and
 * when b is not positive definite. */
int kv_eigen_pair(double *a, double *b, size_t n, double *value);

/* Solves a x = b by Cholesky.  a: [n][n], symmetric and positive definite,
 * overwritten; b: [n][m], becomes x.  Returns -1 if a is not positive definite,
 * or if a or b holds a NaN or an infinity. */
int kv_solve(double *a, size_t n, double *b, size_t m);

#endif
