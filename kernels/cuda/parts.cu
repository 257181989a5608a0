// Parts of kernels of halves, of integers in groups and of hack:b2p64; the door
// to all others.

#include "kernels/cuda/parts.cuh"
#include "kernels/hack/cuda.cuh"
#include "kernels/hack/layout.h"
#include "kernels/integers/cuda_int8.cuh"
#include "kernels/integers/cuda_keys.cuh"
#include "kernels/integers/cuda_values.cuh"

template <class HALF>
static int floats(struct kv_gpu_launch *l, enum kv_gpu_part part,
                  struct kv_err *e)
{
#define KV_CASE(D, NT, STAGES)                                               \
    if constexpr (D == KV_PART_DIM && NT == 1)                               \
        return kv_launch_part<kv_float_keys<D, HALF>,                        \
                              kv_float_values<D, HALF>, STAGES>(l, part, {}, \
                                                                {}, e);
    KV_FLOAT_KERNELS(KV_CASE)
#undef KV_CASE
    return KV_NO_PART;
}

static const kv_integers *groups_of(const struct kv_gpu_launch *l)
{
    return static_cast<const kv_integers *>(l->k->store->params);
}

template <template <int, int> class KEYS, int BITS>
static int grouped_bits(struct kv_gpu_launch *l, enum kv_gpu_part part,
                        struct kv_err *e)
{
    kv_gpu_integers_side k, v;

    kv_gpu_integers_of(l->k->store, &k);
    kv_gpu_integers_of(l->v->store, &v);
    return kv_launch_part<KEYS<BITS, KV_PART_DIM>,
                          kv_folded_values<BITS, KV_PART_DIM>,
                          KV_INTEGERS_STAGES>(l, part, k, v, e);
}

// Of groups of tokens as kivi has them; of channels, 4 bits.
static int grouped(struct kv_gpu_launch *l, enum kv_gpu_part part,
                   struct kv_err *e)
{
    const kv_integers *k = groups_of(l);

    if (!k->folded)
        return k->bits == 4 ? grouped_bits<kv_unfolded_keys, 4>(l, part, e)
                            : KV_NO_PART;
    return k->bits == 2   ? grouped_bits<kv_folded_keys, 2>(l, part, e)
           : k->bits == 4 ? grouped_bits<kv_folded_keys, 4>(l, part, e)
                          : grouped_bits<kv_folded_keys, 8>(l, part, e);
}

static int grouped_int8(struct kv_gpu_launch *l, enum kv_gpu_part part,
                        struct kv_err *e)
{
    constexpr int D = KV_PART_DIM;
    const kv_gpu_bytes k = kv_gpu_bytes_of(l->k->store);
    const kv_gpu_bytes v = kv_gpu_bytes_of(l->v->store);

    return groups_of(l)->folded
               ? kv_launch_part<kv_folded_keys_s8<D>, kv_values_s8<D>,
                                KV_BYTES_STAGES>(l, part, k, v, e)
               : kv_launch_part<kv_unfolded_keys_s8<D>, kv_values_s8<D>,
                                KV_BYTES_STAGES>(l, part, k, v, e);
}

template <int BITS, int P, int STAGES, bool RANDOM>
static int hack_one(struct kv_gpu_launch *l, enum kv_gpu_part part,
                    struct kv_err *e)
{
    constexpr int D = KV_PART_DIM;

    return kv_launch_part<kv_hack_keys<BITS, P, D, RANDOM>,
                          kv_hack_values<BITS, P, D, RANDOM>, STAGES>(
        l, part, kv_gpu_hack_params(l->k, l->seed),
        kv_gpu_hack_params(l->v, l->seed), e);
}

static int hack(struct kv_gpu_launch *l, enum kv_gpu_part part,
                struct kv_err *e)
{
    const auto *h = static_cast<const kv_tile_hack *>(l->v->store->params);

#define KV_CASE(BITS, P, D, NT, STAGES)                                \
    if constexpr (BITS == 2 && P == 64 && D == KV_PART_DIM && NT == 1) \
        if (h->bits == BITS && h->part == P)                           \
            return h->stochastic                                       \
                       ? hack_one<BITS, P, STAGES, true>(l, part, e)   \
                       : hack_one<BITS, P, STAGES, false>(l, part, e);
    KV_HACK_KERNELS(KV_CASE)
#undef KV_CASE
    return KV_NO_PART;
}

extern "C" int kv_gpu_launch_part(const struct kv_gpu_family *family,
                                  struct kv_gpu_launch *l,
                                  enum kv_gpu_part part, struct kv_err *e)
{
    if (l->prefill || l->head_dim != KV_PART_DIM ||
        kv_row_tiles(l, KV_PART_DIM) != 1)
        return KV_NO_PART;
    if (family == &kv_gpu_float)
        return l->k->bf16 ? floats<kv_bfloat16>(l, part, e)
                          : floats<kv_fp16>(l, part, e);
    return family == &kv_gpu_integers        ? grouped(l, part, e)
           : family == &kv_gpu_integers_int8 ? grouped_int8(l, part, e)
           : family == &kv_gpu_homomorphic   ? hack(l, part, e)
           : family == &kv_gpu_codebook      ? kv_codebook_part(l, part, e)
           : family == &kv_gpu_scaled_codes  ? kv_scaled_part(l, part, e)
           : family == &kv_gpu_levels        ? kv_nuq_part(l, part, e)
                                             : KV_NO_PART;
}
