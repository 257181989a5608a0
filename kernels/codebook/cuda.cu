#include "kernels/codebook/cuda.h"

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const struct kv_gpu_codes k = kv_gpu_codebook_codes(l->k);
    const struct kv_gpu_codes v = kv_gpu_codebook_codes(l->v);

    if (kv_gpu_codebook_check(l->k, e) || kv_gpu_codebook_check(l->v, e))
        return -1;
    if (k.d != v.d || k.bits != v.bits || k.own != v.own)
        return kv_fail(e,
                       "attention on codebook indices: no CUDA kernel for keys "
                       "of %zu values in %u bits, tables %s, beside values of "
                       "%zu in %u, tables %s",
                       k.d, k.bits, k.own ? "for each sub-space" : "shared",
                       v.d, v.bits, v.own ? "for each sub-space" : "shared");
    return l->k->path == KV_PATH_INT8 ? kv_gpu_codebook_int8(l, k, e)
                                      : kv_gpu_codebook_exact(l, k, e);
}

extern "C" const struct kv_gpu_family kv_gpu_codebook = {
    "codebook", kv_gpu_codebook_open, launch};
