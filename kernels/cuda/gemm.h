/* Matrix products on the device, sums in f32.  cuBLAS does most of them; it is
 * loaded at first use, so programs also run without it. */
#ifndef KV_CUDA_GEMM_H
#define KV_CUDA_GEMM_H

#include "kernels/type.h"
#include "lib/base/err.h"

/* c [m][n] = a [m][k] b^T, b [n][k]; transposed: a b, b [k][n].  Rows are
 * a_row, b_row, c_row values apart; batch: number of products (0: one), a_next,
 * b_next, c_next values apart. */
struct kv_gpu_product {
    enum kv_type type;   /* type of a and b; f32: no tensor cores */
    enum kv_type c_type; /* `type` or f32 */
    size_t m, n, k;
    const void *a, *b;
    void *c;
    size_t a_row, b_row, c_row;
    size_t batch, a_next, b_next, c_next;
    int transposed;
    int add; /* c += instead of c = */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Launches; without cuBLAS fails, naming the library that it looked for. */
int kv_gpu_multiply(const struct kv_gpu_product *p, struct kv_err *e);

/* Products of few rows, which read b once and do not need cuBLAS (gemv.cu).  A
 * row's bits do not depend on the other rows.  kv_gpu_few_rows(): whether
 * kv_gpu_multiply_few() takes the product: at most KV_GPU_FEW_ROWS rows, not
 * transposed, one product, c of f32, rows of a and b 16-byte aligned. */
enum { KV_GPU_FEW_ROWS = 8 };
int kv_gpu_few_rows(const struct kv_gpu_product *p);
int kv_gpu_multiply_few(const struct kv_gpu_product *p, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
