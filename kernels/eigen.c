#include "kernels/eigen.h"
#include "kernels/blas_buffer.h"
#include "lib/base/alloc.h"

#include <lapacke.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool all_finite(const double *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(a[i]))
            return false;
    return true;
}

static int result(lapack_int info, size_t n)
{
    if (info == LAPACK_WORK_MEMORY_ERROR ||
        info == LAPACK_TRANSPOSE_MEMORY_ERROR)
        kv_memory_end(n * n, sizeof(double));
    return info ? -1 : 0;
}

int kv_eigen(double *a, size_t n, double *value)
{
    lapack_int info;

    if (!all_finite(a, n * n))
        return -1;
    kv_blas_enter();
    info = LAPACKE_dsyevd(LAPACK_ROW_MAJOR, 'V', 'U', (lapack_int)n, a,
                          (lapack_int)n, value);
    kv_blas_leave();
    return result(info, n);
}

/* LAPACK's columns are rows here. */
int kv_eigen_pair(double *a, double *b, size_t n, double *value)
{
    const lapack_int m = (lapack_int)n;
    lapack_int info;
    double *factor;

    if (!all_finite(a, n * n) || !all_finite(b, n * n))
        return -1;
    kv_blas_enter();
    info = LAPACKE_dsygvd(LAPACK_COL_MAJOR, 3, 'V', 'U', m, a, m, b, m, value);
    kv_blas_leave();
    if (result(info, n))
        return -1;
    factor = kv_alloc(n * n, sizeof(*factor));
    memcpy(factor, b, n * n * sizeof(*factor));
    memcpy(b, a, n * n * sizeof(*b));
    kv_blas_enter();
    info = LAPACKE_dpotrs(LAPACK_COL_MAJOR, 'U', m, m, factor, m, b, m);
    kv_blas_leave();
    free(factor);
    return result(info, n);
}

int kv_solve(double *a, size_t n, double *b, size_t m)
{
    lapack_int info;

    if (!all_finite(a, n * n) || !all_finite(b, n * m))
        return -1;
    kv_blas_enter();
    info = LAPACKE_dposv(LAPACK_ROW_MAJOR, 'U', (lapack_int)n, (lapack_int)m, a,
                         (lapack_int)n, b, (lapack_int)m);
    kv_blas_leave();
    return result(info, n + m);
}
