/* Matrix products on the device, sums in f32.  cuBLAS does them; it is loaded
 * at first use, so programs also run without it. */
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

#ifdef __cplusplus
}
#endif

#endif
