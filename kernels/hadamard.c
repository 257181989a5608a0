#include "kernels/hadamard.h"
#include "kernels/vecops/vecops.h"

#include <math.h>

void kv_hadamard(float *x, size_t n, size_t d)
{
    const size_t m = kv_hadamard_size(d);
    const float scale = (float)(1 / sqrt((double)m));

    for (size_t i = 0; i < n * d; i += m)
        kv_row_hadamard(x + i, m, scale);
}
