#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/prefill.cuh"

// Instances for prefill: head dimension, N-tiles, stages.
#define KV_FLOAT_PREFILLS(X) X(64, 2, 3) X(128, 2, 3)

template <class HALF>
static int launch_type(struct kv_gpu_launch *l, struct kv_err *e)
{
    if (l->prefill) {
#define KV_CASE(D, NT, STAGES)                                             \
    if (l->head_dim == D)                                                  \
        return kv_prefill_launch<kv_float_keys<D, HALF>,                   \
                                 kv_float_values<D, HALF>, STAGES, D, NT>( \
            l, {}, {}, e);
        KV_FLOAT_PREFILLS(KV_CASE)
#undef KV_CASE
        return kv_fail(e,
                       "prefill attention on halves: no CUDA kernel for "
                       "head_dim %zu",
                       l->head_dim);
    }
#define KV_CASE(D, NT, STAGES)                                            \
    if (l->head_dim == D && kv_row_tiles(l, D) >= NT)                     \
        return kv_decode_launch<kv_float_keys<D, HALF>,                   \
                                kv_float_values<D, HALF>, STAGES, D, NT>( \
            l, {}, {}, e);
    KV_FLOAT_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e, "attention on halves: no CUDA kernel for head_dim %zu",
                   l->head_dim);
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    if (l->k->bf16 != l->v->bf16)
        return kv_fail(e, "attention on halves: no CUDA kernel for keys and "
                          "values of which one side is bf16");
    return l->k->bf16 ? launch_type<kv_bfloat16>(l, e)
                      : launch_type<kv_fp16>(l, e);
}

extern "C" const struct kv_gpu_family kv_gpu_float = {
    "float", kv_gpu_float_open, launch};
