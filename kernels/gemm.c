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

/* oneDNN builds its kernels at the first products, 5 MiB, and crashes if there
 * is no memory for them.  So one thread builds them, after checking the
 * memory. */
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

/* oneDNN 2 passes layouts by pointer, 3 by handle. */
#if DNNL_VERSION_MAJOR < 3

#define PASS(layout) (&(layout))
#define layout_init dnnl_memory_desc_init_by_strides
#define layout_clear(layout) dnnl_success
#define append_sum dnnl_post_ops_append_sum_v3

static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_engine_t cpu,
                              dnnl_memory_desc_t x[3],
                              dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t m;
    dnnl_status_t s = dnnl_matmul_desc_init(&m, &x[0], &x[1], NULL, &x[2]);

    return s != dnnl_success
               ? s
               : dnnl_primitive_desc_create(d, &m, attr, cpu, NULL);
}

#else

#define PASS(layout) (layout)
#define layout_init dnnl_memory_desc_create_with_strides
#define layout_clear(layout) dnnl_memory_desc_destroy(layout)
#define append_sum dnnl_post_ops_append_sum
#define describe(d, cpu, x, attr) \
    dnnl_matmul_primitive_desc_create(d, cpu, x[0], x[1], NULL, x[2], attr)

#endif

bool kv_gemm_has_bf16(void)
{
    const int isa = (int)dnnl_get_effective_cpu_isa();
    const int bf16 = (int)dnnl_cpu_isa_avx512_core_bf16;

    return (isa & bf16) == bf16;
}

static void expect(dnnl_status_t status)
{
    enum { OBJECT = 1 << 10 };

    if (status == dnnl_out_of_memory)
        kv_memory_end(1, OBJECT);
    if (status != dnnl_success)
        abort(); /* no such product */
}

/* a, b and c of c[m][n] = a[m][k] b[n][k]^T. */
static void layouts(dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, dnnl_dim_t ldc,
                    dnnl_memory_desc_t x[3])
{
    const dnnl_dims_t size[3] = {{m, k}, {k, n}, {m, n}};
    const dnnl_dims_t stride[3] = {{k, 1}, {1, k}, {ldc, 1}};

    for (int i = 0; i < 3; i++)
        expect(layout_init(&x[i], 2, size[i], i < 2 ? dnnl_bf16 : dnnl_f32,
                           stride[i]));
}

/* Products of any shape; a thread makes its own, as oneDNN asks. */
struct products {
    dnnl_engine_t cpu;
    dnnl_stream_t stream;
    dnnl_primitive_t set, add; /* c = a b^T, c += a b^T */
};

static dnnl_primitive_t product(dnnl_engine_t cpu, bool add)
{
    const dnnl_dim_t any = DNNL_RUNTIME_DIM_VAL;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t sum;
    dnnl_memory_desc_t x[3];
    dnnl_primitive_desc_t d;
    dnnl_primitive_t p;

    layouts(any, any, any, any, x);
    expect(dnnl_primitive_attr_create(&attr));
    expect(dnnl_post_ops_create(&sum));
    if (add)
        expect(append_sum(sum, 1, 0, dnnl_data_type_undef));
    expect(dnnl_primitive_attr_set_post_ops(attr, sum));
    expect(describe(&d, cpu, x, attr));
    expect(dnnl_primitive_create(&p, d));
    expect(dnnl_primitive_desc_destroy(d));
    expect(dnnl_post_ops_destroy(sum));
    expect(dnnl_primitive_attr_destroy(attr));
    for (int i = 0; i < 3; i++)
        expect(layout_clear(x[i]));
    return p;
}

static const struct products *products(void)
{
    static _Thread_local struct products p;

    if (!p.cpu) {
        expect(dnnl_engine_create(&p.cpu, dnnl_cpu, 0));
        expect(dnnl_stream_create(&p.stream, p.cpu, dnnl_stream_default_flags));
        p.set = product(p.cpu, false);
        p.add = product(p.cpu, true);
    }
    return &p;
}

static void multiply_bf16(size_t m, size_t n, size_t k, const uint16_t *a,
                          const uint16_t *b, bool add, float *c, size_t ldc)
{
    static const int arg[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    const struct products *p = products();
    const int threads = omp_get_max_threads();
    void *data[3] = {(void *)a, (void *)b, c};
    dnnl_memory_desc_t x[3];
    dnnl_exec_arg_t args[3];

    layouts((dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, (dnnl_dim_t)ldc, x);
    for (int i = 0; i < 3; i++) {
        args[i].arg = arg[i];
        expect(
            dnnl_memory_create(&args[i].memory, PASS(x[i]), p->cpu, data[i]));
    }
    omp_set_num_threads(1);
    expect(dnnl_primitive_execute(add ? p->add : p->set, p->stream, 3, args));
    omp_set_num_threads(threads);
    for (int i = 0; i < 3; i++) {
        expect(dnnl_memory_destroy(args[i].memory));
        expect(layout_clear(x[i]));
    }
}

static void make_bf16_kernels(void)
{
    enum { SIDE = 48, BYTES = 40 << 20 };
    static uint16_t a[SIDE * SIDE];
    static float c[SIDE * SIDE];

    kv_memory_probe(BYTES, "oneDNN's kernels");
    for (size_t m = 1; m <= SIDE; m += SIDE - 1)
        multiply_bf16(m, SIDE, SIDE, a, a, m > 1, c, SIDE);
}

void kv_gemm_bf16(size_t m, size_t n, size_t k, const float *a,
                  const uint16_t *b, bool add, float *c, size_t ldc)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    uint16_t *rounded = kv_alloc(m * k, sizeof(*rounded));

    pthread_once(&made, make_bf16_kernels);
    for (size_t i = 0; i < m * k; i++)
        rounded[i] = kv_f32_to_bf16(a[i]);
    multiply_bf16(m, n, k, rounded, b, add, c, ldc);
    free(rounded);
}

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

bool kv_gemm_has_bf16(void)
{
    return false;
}

void kv_gemm_bf16(size_t m, size_t n, size_t k, const float *a,
                  const uint16_t *b, bool add, float *c, size_t ldc)
{
    (void)m, (void)n, (void)k, (void)a, (void)b, (void)add, (void)c;
    (void)ldc;
    abort(); /* if has_bf16() is false */
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
