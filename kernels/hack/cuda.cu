#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/prefill.cuh"
#include "kernels/hack/cuda.cuh"

// Instances for prefill: bits, partition, head dimension, stages; two N-tiles.
#define KV_HACK_PREFILLS(X) X(2, 32, 128, 2) X(2, 64, 128, 2) X(2, 128, 128, 2)

template <int BITS, int P, int D, int STAGES, bool RANDOM>
static int prefill_one(struct kv_gpu_launch *l, struct kv_err *e)
{
    return kv_prefill_launch<kv_hack_keys<BITS, P, D, RANDOM>,
                             kv_hack_values<BITS, P, D, RANDOM>, STAGES, D, 2>(
        l, kv_gpu_hack_params(l->k, l->seed), kv_gpu_hack_params(l->v, l->seed),
        e);
}

static int prefill(struct kv_gpu_launch *l, const struct kv_tile_hack *h,
                   struct kv_err *e)
{
#define KV_CASE(BITS, P, D, STAGES)                                        \
    if (h->codes.bits == BITS && h->part == P && l->head_dim == D)         \
        return h->stochastic ? prefill_one<BITS, P, D, STAGES, true>(l, e) \
                             : prefill_one<BITS, P, D, STAGES, false>(l, e);
    KV_HACK_PREFILLS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "hack: no CUDA kernel of prefill for %u bits in parts of "
                   "%zu with head_dim %zu",
                   h->codes.bits, h->part, l->head_dim);
}

template <int BITS, int P, int D, int NT, int STAGES, bool RANDOM>
static int launch_one(struct kv_gpu_launch *l, struct kv_err *e)
{
    return kv_decode_launch<kv_hack_keys<BITS, P, D, RANDOM>,
                            kv_hack_values<BITS, P, D, RANDOM>, STAGES, D, NT>(
        l, kv_gpu_hack_params(l->k, l->seed), kv_gpu_hack_params(l->v, l->seed),
        e);
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const struct kv_tile_hack *k =
        static_cast<const struct kv_tile_hack *>(l->k->store->params);
    const struct kv_tile_hack *v =
        static_cast<const struct kv_tile_hack *>(l->v->store->params);
    const size_t part = v->part < l->head_dim ? v->part : l->head_dim;

    if (k->codes.bits != v->codes.bits || k->part != part ||
        k->stochastic != v->stochastic)
        return kv_fail(e,
                       "hack: no CUDA kernel for keys of %u bits in parts of "
                       "%zu with values of %u bits in parts of %zu, or rounded "
                       "another way",
                       k->codes.bits, k->part, v->codes.bits, v->part);
    if (l->prefill)
        return prefill(l, v, e);
#define KV_CASE(BITS, P, D, NT, STAGES)                              \
    if (v->codes.bits == BITS && v->part == P && l->head_dim == D && \
        kv_row_tiles(l, D) >= NT)                                    \
        return v->stochastic                                         \
                   ? launch_one<BITS, P, D, NT, STAGES, true>(l, e)  \
                   : launch_one<BITS, P, D, NT, STAGES, false>(l, e);
    KV_HACK_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "hack: no CUDA kernel for %u bits in parts of %zu with "
                   "head_dim %zu",
                   v->codes.bits, v->part, l->head_dim);
}

extern "C" const struct kv_gpu_family kv_gpu_hack = {"hack", kv_gpu_hack_open,
                                                     launch};
