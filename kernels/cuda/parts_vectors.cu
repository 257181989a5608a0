#include "kernels/codebook/cuda_exact.cuh"
#include "kernels/codebook/cuda_int8.cuh"
#include "kernels/cuda/parts.cuh"

template <int D, int DIMS, int BITS, int T, int STAGES, int T8, int STAGES8>
static int launch(struct kv_gpu_launch *l, enum kv_gpu_part part,
                  struct kv_err *e)
{
    using halves = kv_code_book<D, DIMS, BITS, false, T, false>;
    using bytes = kv_code_book<D, DIMS, BITS, false, T8, true>;
    const kv_code_params k = kv_code_params_of(l->k);
    const kv_code_params v = kv_code_params_of(l->v);

    return l->k->path == KV_PATH_INT8
               ? kv_launch_part<kv_code_keys_s8<bytes>,
                                kv_code_values_s8<bytes>, STAGES8>(l, part, k,
                                                                   v, e)
               : kv_launch_part<kv_code_keys_f16<halves>,
                                kv_code_values_f16<halves>, STAGES>(l, part, k,
                                                                    v, e);
}

int kv_codebook_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                     struct kv_err *e)
{
    const kv_gpu_codes c = kv_gpu_codebook_codes(l->k);

#define KV_CASE(D, DIMS, BITS, OWN, T, STAGES, T8, STAGES8) \
    if constexpr (D == KV_PART_DIM && !OWN)                 \
        if (c.d == DIMS && c.bits == BITS && !c.own)        \
            return launch<D, DIMS, BITS, T, STAGES, T8, STAGES8>(l, part, e);
    KV_CODEBOOKS(KV_CASE)
#undef KV_CASE
    return KV_NO_PART;
}
