#include "kernels/cuda/parts.cuh"
#include "kernels/levels/cuda.cuh"
#include "kernels/scaled/cuda.cuh"

// turboquant of 2 bits, fp8.  Of 4 bits the computing alone spills.
#define KV_SCALED_PARTS(X) X(2, 32, 2) X(8, 32, 2)

int kv_scaled_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                   struct kv_err *e)
{
    const struct kv_gpu_scaled_kind k = kv_gpu_scaled_kind_of(l->k->store);

#define KV_CASE(BITS, PER, SCALE)                                             \
    if (k.bits == BITS && k.per >= PER && k.scale == SCALE) {                 \
        using codes = kv_scaled_codes<KV_PART_DIM, BITS, PER, SCALE>;         \
                                                                              \
        return kv_launch_part<kv_scaled_keys<codes>, kv_scaled_values<codes>, \
                              KV_SCALED_STAGES>(                              \
            l, part, kv_gpu_scaled_of(l->k), kv_gpu_scaled_of(l->v), e);      \
    }
    KV_SCALED_PARTS(KV_CASE)
#undef KV_CASE
    return KV_NO_PART;
}

int kv_nuq_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                struct kv_err *e)
{
    const unsigned bits = kv_gpu_nuq_bits(l->k->store);

#define KV_CASE(D, BITS)                                                    \
    if constexpr (D == KV_PART_DIM)                                         \
        if (bits == BITS) {                                                 \
            using codes = kv_nuq_codes<D, BITS>;                            \
                                                                            \
            return kv_launch_part<kv_nuq_keys<codes>, kv_nuq_values<codes>, \
                                  KV_SCALED_STAGES>(                        \
                l, part, kv_gpu_nuq_of(l->k), kv_gpu_nuq_of(l->v), e);      \
        }
    KV_NUQ_KERNELS(KV_CASE)
#undef KV_CASE
    return KV_NO_PART;
}
