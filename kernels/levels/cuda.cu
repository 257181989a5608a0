#include "kernels/cuda/decode_launch.cuh"
#include "kernels/levels/cuda.cuh"

template <class B, int NT>
static int launch_one(struct kv_gpu_launch *l, struct kv_err *e)
{
    return kv_decode_launch<kv_levels_keys<B>, kv_levels_values<B>,
                            KV_SCALED_STAGES, B::D, NT>(
        l, kv_gpu_levels_of(l->k), kv_gpu_levels_of(l->v), e);
}

template <class B>
static int launch_rows(struct kv_gpu_launch *l, struct kv_err *e)
{
    if constexpr (B::BYTES >= 32) // 16 rows' weights fit over a step's keys
        if (kv_row_tiles(l, B::D) == 2)
            return launch_one<B, 2>(l, e);
    return launch_one<B, 1>(l, e);
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const unsigned k = kv_gpu_levels_bits(l->k->store);
    const unsigned v = kv_gpu_levels_bits(l->v->store);

#define KV_CASE(D, BITS)                              \
    if (l->head_dim == D && k == BITS && v == BITS) { \
        using codes = kv_levels_codes<D, BITS>;       \
                                                      \
        return launch_rows<codes>(l, e);              \
    }
    KV_LEVELS_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "attention on levels and outliers: no CUDA kernel for "
                   "head_dim %zu, keys of %u bits and values of %u",
                   l->head_dim, k, v);
}

extern "C" const struct kv_gpu_family kv_gpu_levels = {
    "levels", kv_gpu_levels_open, launch};
