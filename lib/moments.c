#include "lib/moments.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

void kv_moments_add(const float *x, size_t n, size_t heads, size_t d,
                    double *sum)
{
    const size_t row = heads * d;
    float *product = kv_alloc(d * d, sizeof(*product));

    for (size_t h = 0; h < heads; h++, x += d, sum += d * d) {
        kv_gemm_a_trans(d, d, n, 1, x, row, x, row, 0, product, d);
        for (size_t i = 0; i < d * d; i++)
            sum[i] += (double)product[i];
    }
    free(product);
}
