#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <stdlib.h>

#ifdef KV_GEMM_ONEDNN

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *kv_gemm_library(void)
{
    return "oneDNN " TEXT(DNNL_VERSION_MAJOR) "." TEXT(
        DNNL_VERSION_MINOR) "." TEXT(DNNL_VERSION_PATCH);
}

/* oneDNN asks OpenMP for its number of threads.  That number belongs to the
 * calling task, so that 1 for the length of a call disturbs nobody. */
static void multiply(char a_trans, char b_trans, size_t m, size_t n, size_t k,
                     float alpha, const float *a, size_t lda, const float *b,
                     size_t ldb, float beta, float *c, size_t ldc)
{
    const int threads = omp_get_max_threads();
    dnnl_status_t status;

    omp_set_num_threads(1);
    status = dnnl_sgemm(a_trans, b_trans, (dnnl_dim_t)m, (dnnl_dim_t)n,
                        (dnnl_dim_t)k, alpha, a, (dnnl_dim_t)lda, b,
                        (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
    omp_set_num_threads(threads);
    if (status == dnnl_out_of_memory)
        kv_memory_end(m * n, sizeof(*c));
    if (status != dnnl_success)
        abort(); /* a stride below its row */
}

/* oneDNN makes its kernels at the first products, 5 MiB, and faults where there
 * is no memory for them: so they are made by one thread, after a look. */
static void make_kernels(void)
{
    enum { SIDE = 48, BYTES = 40 << 20 };
    static float a[SIDE * SIDE], c[SIDE * SIDE];

    kv_memory_probe(BYTES, "oneDNN's kernels");
    for (size_t m = 1; m <= SIDE; m += SIDE - 1) {
        multiply('N', 'N', m, SIDE, SIDE, 1, a, SIDE, a, SIDE, 0, c, SIDE);
        multiply('N', 'T', m, SIDE, SIDE, 1, a, SIDE, a, SIDE, 0, c, SIDE);
        multiply('T', 'N', m, SIDE, SIDE, 1, a, SIDE, a, SIDE, 0, c, SIDE);
    }
}

static void sgemm(bool a_trans, bool b_trans, size_t m, size_t n, size_t k,
                  float alpha, const float *a, size_t lda, const float *b,
                  size_t ldb, float beta, float *c, size_t ldc)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;

    pthread_once(&made, make_kernels);
    multiply(a_trans ? 'T' : 'N', b_trans ? 'T' : 'N', m, n, k, alpha, a, lda,
             b, ldb, beta, c, ldc);
}

#ifdef KV_GEMM_BF16

/* Not in the library's headers, but in the library (meson.build looks). */
dnnl_status_t dnnl_gemm_bf16bf16f32(char a_trans, char b_trans, dnnl_dim_t m,
                                    dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                    const uint16_t *a, dnnl_dim_t lda,
                                    const uint16_t *b, dnnl_dim_t ldb,
                                    float beta, float *c, dnnl_dim_t ldc);

bool kv_gemm_has_bf16(void)
{
    const int isa = (int)dnnl_get_effective_cpu_isa();
    const int bf16 = (int)dnnl_cpu_isa_avx512_core_bf16;

    return (isa & bf16) == bf16;
}

static void multiply_bf16(size_t m, size_t n, size_t k, const uint16_t *a,
                          const uint16_t *b, float beta, float *c, size_t ldc)
{
    const int threads = omp_get_max_threads();
    dnnl_status_t status;

    omp_set_num_threads(1);
    status = dnnl_gemm_bf16bf16f32('N', 'T', (dnnl_dim_t)m, (dnnl_dim_t)n,
                                   (dnnl_dim_t)k, 1, a, (dnnl_dim_t)k, b,
                                   (dnnl_dim_t)k, beta, c, (dnnl_dim_t)ldc);
    omp_set_num_threads(threads);
    if (status == dnnl_out_of_memory)
        kv_memory_end(m * n, sizeof(*c));
    if (status != dnnl_success)
        abort();
}

static void make_bf16_kernels(void)
{
    enum { SIDE = 48, BYTES = 40 << 20 };
    static uint16_t a[SIDE * SIDE];
    static float c[SIDE * SIDE];

    kv_memory_probe(BYTES, "oneDNN's kernels");
    for (size_t m = 1; m <= SIDE; m += SIDE - 1)
        multiply_bf16(m, SIDE, SIDE, a, a, 0, c, SIDE);
}

void kv_gemm_bf16(size_t m, size_t n, size_t k, const float *a,
                  const uint16_t *b, float beta, float *c, size_t ldc)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    uint16_t *rounded = kv_alloc(m * k, sizeof(*rounded));

    pthread_once(&made, make_bf16_kernels);
    for (size_t i = 0; i < m * k; i++)
        rounded[i] = kv_f32_to_bf16(a[i]);
    multiply_bf16(m, n, k, rounded, b, beta, c, ldc);
    free(rounded);
}

#endif

#else

#include "kernels/blas_buffer.h"

#include <cblas.h>

const char *kv_gemm_library(void)
{
    return openblas_get_config(); /* "OpenBLAS 0.3.21 ..." */
}

static void sgemm(bool a_trans, bool b_trans, size_t m, size_t n, size_t k,
                  float alpha, const float *a, size_t lda, const float *b,
                  size_t ldb, float beta, float *c, size_t ldc)
{
    kv_blas_enter();
    openblas_set_num_threads(1);
    cblas_sgemm(CblasRowMajor, a_trans ? CblasTrans : CblasNoTrans,
                b_trans ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n,
                (blasint)k, alpha, a, (blasint)lda, b, (blasint)ldb, beta, c,
                (blasint)ldc);
    kv_blas_leave();
}

#endif

#ifndef KV_GEMM_BF16

bool kv_gemm_has_bf16(void)
{
    return false;
}

void kv_gemm_bf16(size_t m, size_t n, size_t k, const float *a,
                  const uint16_t *b, float beta, float *c, size_t ldc)
{
    (void)m, (void)n, (void)k, (void)a, (void)b, (void)beta, (void)c;
    (void)ldc;
    abort(); /* where has_bf16() is false */
}

#endif

static void gemm(bool a_trans, bool b_trans, size_t m, size_t n, size_t k,
                 float alpha, const float *a, size_t lda, const float *b,
                 size_t ldb, float beta, float *c, size_t ldc)
{
    if (m == 0 || n == 0)
        return;
    if (k > 0) {
        sgemm(a_trans, b_trans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
}

void kv_gemm(bool b_trans, size_t m, size_t n, size_t k, float alpha,
             const float *a, size_t lda, const float *b, size_t ldb, float beta,
             float *c, size_t ldc)
{
    gemm(false, b_trans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void kv_gemm_a_trans(size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta,
                     float *c, size_t ldc)
{
    gemm(true, false, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
