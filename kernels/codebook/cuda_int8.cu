#include "kernels/codebook/cuda_int8.cuh"
#include "kernels/cuda/decode_launch.cuh"

template <class B, int STAGES, int NT>
static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    return kv_decode_launch<kv_codebook_keys_s8<B>, kv_codebook_values_s8<B>,
                            STAGES, B::D, NT>(l, kv_codebook_params_of(l->k),
                                              kv_codebook_params_of(l->v), e);
}

extern "C" int kv_gpu_codebook_int8(struct kv_gpu_launch *l,
                                    struct kv_gpu_codes c, struct kv_err *e)
{
#define KV_CASE(D, DIMS, BITS, OWN, T_EXACT, S_EXACT, W_EXACT, T, STAGES, W) \
    if (l->head_dim == D && c.d == DIMS && c.bits == BITS && c.own == OWN) { \
        using book = kv_codebook_of<D, DIMS, BITS, OWN, T, W, true>;         \
                                                                             \
        return kv_row_tiles(l, D) == 2 ? launch<book, STAGES, 2>(l, e)       \
                                       : launch<book, STAGES, 1>(l, e);      \
    }
    KV_CODEBOOKS(KV_CASE)
#undef KV_CASE
    return kv_fail(e, "attention on codebook indices: no CUDA kernel");
}
