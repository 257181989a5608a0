#include "kernels/cuda/decode_launch.cuh"
#include "kernels/integers/cuda_keys.cuh"
#include "kernels/integers/cuda_values.cuh"

// Bits of both sides, head dimension, N-tiles of 8 rows; the first that fits is
// taken.
#define KV_INTEGERS_SIDES(X, BITS) \
    X(BITS, 64, 2)                 \
    X(BITS, 64, 1)                 \
    X(BITS, 128, 2)                \
    X(BITS, 128, 1)                \
    X(BITS, 256, 1)
#define KV_INTEGERS_KERNELS(X) \
    KV_INTEGERS_SIDES(X, 2)    \
    KV_INTEGERS_SIDES(X, 4)    \
    KV_INTEGERS_SIDES(X, 8)

// The one that has no registers for 16 rows.
template <int BITS, int D, int NT> constexpr bool unfolded_fits(void)
{
    return BITS > 2 || D < 128 || NT == 1;
}

static const kv_integers *params_of(const kv_gpu_side *side)
{
    return static_cast<const kv_integers *>(side->store->params);
}

template <int BITS, int D, int NT>
static int launch_one(struct kv_gpu_launch *l, bool folded,
                      const kv_gpu_integers_side &k, const kv_gpu_integers_side &v,
                      struct kv_err *e)
{
    if constexpr (unfolded_fits<BITS, D, NT>())
        if (!folded)
            return kv_decode_launch<kv_unfolded_keys<BITS, D>,
                                    kv_folded_values<BITS, D>,
                                    KV_INTEGERS_STAGES, D, NT>(l, k, v, e);
    return kv_decode_launch<kv_folded_keys<BITS, D>, kv_folded_values<BITS, D>,
                            KV_INTEGERS_STAGES, D, NT>(l, k, v, e);
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const kv_integers *k = params_of(l->k), *v = params_of(l->v);
    kv_gpu_integers_side kp, vp;

    kv_gpu_integers_of(l->k->store, &kp);
    kv_gpu_integers_of(l->v->store, &vp);
#define KV_CASE(BITS, D, NT)                                      \
    if (k->bits == BITS && v->bits == BITS && l->head_dim == D && \
        kv_row_tiles(l, D) >= NT &&                               \
        (k->folded || unfolded_fits<BITS, D, NT>()))              \
        return launch_one<BITS, D, NT>(l, k->folded, kp, vp, e);
    KV_INTEGERS_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "attention on integers in groups: no CUDA kernel for keys "
                   "of %u bits, values of %u bits, head_dim %zu",
                   k->bits, v->bits, l->head_dim);
}

extern "C" const struct kv_gpu_family kv_gpu_integers = {
    "grouped", kv_gpu_integers_open, launch};
