#include "lib/moments.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

enum { PART = 64 }; /* rows of a product that a thread computes at a time */

void kv_moments_add(const float *x, size_t n, size_t heads, size_t d,
                    double *sum)
{
    const size_t row = heads * d, parts = (d + PART - 1) / PART;
    float *product = kv_alloc(heads * d, d * sizeof(*product));

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < heads * parts; i++) {
        const size_t first = i % parts * PART,
                     rows = d - first < PART ? d - first : PART;
        const float *head = x + i / parts * d;
        const size_t at = (i / parts * d + first) * d;

        kv_gemm_a_trans(rows, d, n, 1, head + first, row, head, row, 0,
                        product + at, d);
        for (size_t k = 0; k < rows * d; k++)
            sum[at + k] += (double)product[at + k];
    }
    free(product);
}

enum { TOKENS = 512 }; /* tokens that one product sums over */

void kv_moments_cross(const float *a, size_t n_a, const float *b, size_t n_b,
                      size_t n, double *sum, size_t stride)
{
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n_a; i += PART) {
        const size_t rows = n_a - i < PART ? n_a - i : PART;
        float *product = kv_alloc(rows * n_b, sizeof(*product));

        for (size_t t = 0; t < n; t += TOKENS) {
            kv_gemm_a_trans(rows, n_b, n - t < TOKENS ? n - t : TOKENS, 1,
                            a + t * n_a + i, n_a, b + t * n_b, n_b, 0, product,
                            n_b);
            for (size_t j = 0; j < rows * n_b; j++)
                sum[(i + j / n_b) * stride + j % n_b] += (double)product[j];
        }
        free(product);
    }
}
