#include "kernels/eigen.h"

#include <lapacke.h>
#include <math.h>

int kv_eigen(double *a, size_t n, double *value)
{
    for (size_t i = 0; i < n * n; i++)
        if (!isfinite(a[i]))
            return -1;
    return LAPACKE_dsyev(LAPACK_ROW_MAJOR, 'V', 'U', (lapack_int)n, a,
                         (lapack_int)n, value)
               ? -1
               : 0;
}
