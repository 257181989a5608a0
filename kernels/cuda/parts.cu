// Parts of the hot decoding kernels, to be timed (enum kv_gpu_part): 2- and
// 4-bit groups as kivi has them, hack:b2p64, and the shared codebooks of 4
// values, at head_dim 128 and 8 rows; fp16 beside them.  Stages and steps are
// those of the families' own lists.

#include "kernels/cuda/codebook_exact.cuh"
#include "kernels/cuda/codebook_int8.cuh"
#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/grouped_keys.cuh"
#include "kernels/cuda/grouped_values.cuh"
#include "kernels/cuda/hack.cuh"
#include "kernels/tiles_homomorphic.h"

enum { HEAD_DIM = 128, NONE = 1 };

template <class K, class V, int STAGES>
static int launch(struct kv_gpu_launch *l, enum kv_gpu_part part,
                  const typename K::params &k, const typename V::params &v,
                  struct kv_err *e)
{
    return part == KV_LOADS
               ? kv_decode_launch<K, V, STAGES, HEAD_DIM, 1, KV_LOADS>(l, k, v,
                                                                       e)
               : kv_decode_launch<K, V, STAGES, HEAD_DIM, 1, KV_COMPUTE>(l, k,
                                                                         v, e);
}

static int floats(struct kv_gpu_launch *l, enum kv_gpu_part part,
                  struct kv_err *e)
{
    if (l->k->bf16)
        return NONE;
#define KV_CASE(D, NT, STAGES)                                       \
    if constexpr (D == HEAD_DIM && NT == 1)                          \
        return launch<kv_float_keys<D>, kv_float_values<D>, STAGES>( \
            l, part, {}, {}, e);
    KV_FLOAT_KERNELS(KV_CASE)
#undef KV_CASE
    return NONE;
}

template <int BITS>
static int grouped_bits(struct kv_gpu_launch *l, enum kv_gpu_part part,
                        struct kv_err *e)
{
    kv_gpu_grouped k, v;

    kv_gpu_grouped_of(l->k->store, &k);
    kv_gpu_grouped_of(l->v->store, &v);
    return launch<kv_folded_keys<BITS, HEAD_DIM>,
                  kv_folded_values<BITS, HEAD_DIM>, KV_GROUPED_STAGES>(l, part,
                                                                       k, v, e);
}

static int grouped(struct kv_gpu_launch *l, enum kv_gpu_part part,
                   struct kv_err *e)
{
    const auto *k = static_cast<const kv_grouped *>(l->k->store->params);

    if (!k->folded)
        return NONE;
    return k->bits == 2   ? grouped_bits<2>(l, part, e)
           : k->bits == 4 ? grouped_bits<4>(l, part, e)
                          : NONE;
}

template <int BITS, int P, int STAGES, bool RANDOM>
static int hack_one(struct kv_gpu_launch *l, enum kv_gpu_part part,
                    struct kv_err *e)
{
    return launch<kv_hack_keys<BITS, P, HEAD_DIM, RANDOM>,
                  kv_hack_values<BITS, P, HEAD_DIM, RANDOM>, STAGES>(
        l, part, kv_gpu_hack_params(l->k, l->seed),
        kv_gpu_hack_params(l->v, l->seed), e);
}

static int hack(struct kv_gpu_launch *l, enum kv_gpu_part part,
                struct kv_err *e)
{
    const auto *h = static_cast<const kv_tile_hack *>(l->v->store->params);

#define KV_CASE(BITS, P, D, NT, STAGES)                              \
    if constexpr (BITS == 2 && P == 64 && D == HEAD_DIM && NT == 1)  \
        if (h->bits == BITS && h->part == P)                         \
            return h->stochastic                                     \
                       ? hack_one<BITS, P, STAGES, true>(l, part, e) \
                       : hack_one<BITS, P, STAGES, false>(l, part, e);
    KV_HACK_KERNELS(KV_CASE)
#undef KV_CASE
    return NONE;
}

template <int D, int DIMS, int BITS, int T, int STAGES, int T8, int STAGES8>
static int codes_of(struct kv_gpu_launch *l, enum kv_gpu_part part,
                    struct kv_err *e)
{
    using halves = kv_code_book<D, DIMS, BITS, false, T, false>;
    using bytes = kv_code_book<D, DIMS, BITS, false, T8, true>;
    const kv_code_params k = kv_code_params_of(l->k);
    const kv_code_params v = kv_code_params_of(l->v);

    return l->k->path == KV_PATH_INT8
               ? launch<kv_code_keys_s8<bytes>, kv_code_values_s8<bytes>,
                        STAGES8>(l, part, k, v, e)
               : launch<kv_code_keys_f16<halves>, kv_code_values_f16<halves>,
                        STAGES>(l, part, k, v, e);
}

static int codes(struct kv_gpu_launch *l, enum kv_gpu_part part,
                 struct kv_err *e)
{
    const kv_gpu_codes c = kv_gpu_codebook_codes(l->k);

#define KV_CASE(D, DIMS, BITS, OWN, T, STAGES, T8, STAGES8) \
    if constexpr (D == HEAD_DIM && DIMS == 4 && !OWN)       \
        if (c.d == DIMS && c.bits == BITS && !c.own)        \
            return codes_of<D, DIMS, BITS, T, STAGES, T8, STAGES8>(l, part, e);
    KV_CODEBOOKS(KV_CASE)
#undef KV_CASE
    return NONE;
}

extern "C" int kv_gpu_launch_part(const struct kv_gpu_family *family,
                                  struct kv_gpu_launch *l,
                                  enum kv_gpu_part part, struct kv_err *e)
{
    if (l->prefill || l->head_dim != HEAD_DIM || kv_row_tiles(l, HEAD_DIM) != 1)
        return NONE;
    return family == &kv_gpu_float         ? floats(l, part, e)
           : family == &kv_gpu_integers    ? grouped(l, part, e)
           : family == &kv_gpu_homomorphic ? hack(l, part, e)
           : family == &kv_gpu_codebook    ? codes(l, part, e)
                                           : NONE;
}
