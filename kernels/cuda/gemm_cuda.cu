#include "kernels/cuda/gemm.h"

#include <cublas_v2.h>
#include <dlfcn.h>

// The type of cublasGemmStridedBatchedEx; in C++ it has an overload with
// another last type.
typedef cublasStatus_t
gemm_fn(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
        const void *, const void *, cudaDataType, int, long long, const void *,
        cudaDataType, int, long long, const void *, void *, cudaDataType, int,
        long long, int, cublasComputeType_t, cublasGemmAlgo_t);

static struct {
    cublasHandle_t handle;
    gemm_fn *gemm;
} cublas;

static int load(struct kv_err *e)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
                                        "libcublas.so"};
    void *library = NULL;

    if (cublas.handle)
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return kv_fail(e,
                       "cuBLAS is not there: no %s, .12 or without a "
                       "version on the library path",
                       names[0]);

    const auto create = reinterpret_cast<decltype(&cublasCreate_v2)>(
        dlsym(library, "cublasCreate_v2"));

    cublas.gemm = reinterpret_cast<gemm_fn *>(
        dlsym(library, "cublasGemmStridedBatchedEx"));
    if (!create || !cublas.gemm)
        return kv_fail(e, "cuBLAS lacks cublasGemmStridedBatchedEx");
    if (create(&cublas.handle) != CUBLAS_STATUS_SUCCESS)
        return kv_fail(e, "cuBLAS cannot be started on this device");
    return 0;
}

static cudaDataType type_of(enum kv_type t)
{
    return t == KV_TYPE_F16    ? CUDA_R_16F
           : t == KV_TYPE_BF16 ? CUDA_R_16BF
                               : CUDA_R_32F;
}

// cuBLAS is column-major: c^T = b a^T, whose columns are our rows.
extern "C" int kv_gpu_multiply(const struct kv_gpu_product *p, struct kv_err *e)
{
    const float one = 1, beta = p->add ? 1 : 0;
    const size_t batch = p->batch ? p->batch : 1;
    const cudaDataType type = type_of(p->type);
    cublasStatus_t rc;

    if (load(e))
        return -1;
    rc = cublas.gemm(cublas.handle, p->transposed ? CUBLAS_OP_N : CUBLAS_OP_T,
                     CUBLAS_OP_N, (int)p->n, (int)p->m, (int)p->k, &one, p->b,
                     type, (int)p->b_row, (long long)p->b_next, p->a, type,
                     (int)p->a_row, (long long)p->a_next, &beta, p->c,
                     type_of(p->c_type), (int)p->c_row, (long long)p->c_next,
                     (int)batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return kv_fail(e,
                       "cuBLAS: a product of %zu x %zu x %zu failed, status "
                       "%d",
                       p->m, p->n, p->k, (int)rc);
    return 0;
}
