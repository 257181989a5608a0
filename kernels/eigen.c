#include "kernels/eigen.h"
#include "kernels/blas_buffer.h"
#include "lib/base/alloc.h"

#include <lapacke.h>
#include <math.h>

int kv_eigen(double *a, size_t n, double *value)
{
    for (size_t i = 0; i < n * n; i++)
        if (!isfinite(a[i]))
            return -1;
    kv_blas_enter();

    const lapack_int info = LAPACKE_dsyev(
        LAPACK_ROW_MAJOR, 'V', 'U', (lapack_int)n, a, (lapack_int)n, value);

    kv_blas_leave();
    if (info == LAPACK_WORK_MEMORY_ERROR ||
        info == LAPACK_TRANSPOSE_MEMORY_ERROR)
        kv_memory_end(n * n, sizeof(*a));
    return info ? -1 : 0;
}
