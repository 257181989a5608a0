/* The one door to a GEMM library: oneDNN (versions 2 and 3), or a BLAS. */
#ifndef KV_GEMM_H
#define KV_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c[m][n] = alpha * a[m][k] * op(b) + beta * c, row-major, strides in
 * elements; op(b) is b[k][n], or the transpose of b[n][k] when b_trans.  Runs
 * only on the calling thread and gives the same bits in every thread.  beta 0
 * does not read c.  m, n or k of 0 is fine. */
void kv_gemm(bool b_trans, size_t m, size_t n, size_t k, float alpha,
             const float *a, size_t lda, const float *b, size_t ldb, float beta,
             float *c, size_t ldc);

/* kv_gemm() with a transposed: a is [k][m], b [k][n]. */
void kv_gemm_a_trans(size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta,
                     float *c, size_t ldc);

/* c[m][n] = a[m][k] * the transpose of b[n][k]; add: adds the product to c.  a
 * is rounded to bf16, b is bf16, rows of a and b are k values apart, and sums
 * are f32.  m, n and k are at least 1; all else is as in kv_gemm().
 * kv_gemm_has_bf16(): whether library and processor support it. */
bool kv_gemm_has_bf16(void);
void kv_gemm_bf16(size_t m, size_t n, size_t k, const float *a,
                  const uint16_t *b, bool add, float *c, size_t ldc);

/* "oneDNN 2.6.3", "OpenBLAS ...". */
const char *kv_gemm_library(void);

#endif
