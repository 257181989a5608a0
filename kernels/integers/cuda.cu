#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/prefill.cuh"
#include "kernels/integers/cuda.cuh"
#include "kernels/integers/cuda_int8.cuh"

static const kv_integers *params_of(const kv_gpu_side *side)
{
    return static_cast<const kv_integers *>(side->store->params);
}

static kv_gpu_integers_side layout_of(const kv_gpu_side *side)
{
    kv_gpu_integers_side g = {};

    kv_gpu_integers_of(side->store, side->path, &g);
    return g;
}

// ---- path exact ------------------------------------------------------------

// Instances: bits of both sides, head dimension, N-tiles of 8 rows; the first
// that fits is used.
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

// Excludes the instance without registers for 16 rows.
template <int BITS, int D, int NT> constexpr bool unfolded_fits(void)
{
    return BITS > 2 || D < 128 || NT == 1;
}

template <int BITS, int D, int NT>
static int launch_exact(struct kv_gpu_launch *l, bool folded, struct kv_err *e)
{
    const kv_gpu_integers_side k = layout_of(l->k), v = layout_of(l->v);

    if constexpr (unfolded_fits<BITS, D, NT>())
        if (!folded)
            return kv_decode_launch<kv_unfolded_keys<BITS, D>,
                                    kv_folded_values<BITS, D>,
                                    KV_INTEGERS_STAGES, D, NT>(l, k, v, e);
    return kv_decode_launch<kv_folded_keys<BITS, D>, kv_folded_values<BITS, D>,
                            KV_INTEGERS_STAGES, D, NT>(l, k, v, e);
}

static int no_kernel(const struct kv_gpu_launch *l, const char *what,
                     const kv_integers *k, const kv_integers *v,
                     struct kv_err *e)
{
    return kv_fail(e,
                   "%sattention on integers in groups: no CUDA kernel for keys "
                   "of %u bits, values of %u bits, head_dim %zu",
                   what, k->bits, v->bits, l->head_dim);
}

// Instances for prefill: bits of both sides, head dimension; two N-tiles.
#define KV_INTEGERS_PREFILLS(X) X(2, 64) X(2, 128) X(4, 64) X(4, 128)

template <int BITS, int D>
static int launch_prefill(struct kv_gpu_launch *l, bool folded,
                          struct kv_err *e)
{
    using values = kv_folded_values<BITS, D>;
    const kv_gpu_integers_side k = layout_of(l->k), v = layout_of(l->v);

    return folded ? kv_prefill_launch<kv_folded_keys<BITS, D>, values,
                                      KV_INTEGERS_STAGES, D, 2>(l, k, v, e)
                  : kv_prefill_launch<kv_unfolded_keys<BITS, D>, values,
                                      KV_INTEGERS_STAGES, D, 2>(l, k, v, e);
}

static int prefill(struct kv_gpu_launch *l, const kv_integers *k,
                   const kv_integers *v, struct kv_err *e)
{
#define KV_CASE(BITS, D)                                        \
    if (k->bits == BITS && v->bits == BITS && l->head_dim == D) \
        return launch_prefill<BITS, D>(l, k->folded, e);
    KV_INTEGERS_PREFILLS(KV_CASE)
#undef KV_CASE
    return no_kernel(l, "prefill ", k, v, e);
}

static int exact(struct kv_gpu_launch *l, struct kv_err *e)
{
    const kv_integers *k = params_of(l->k), *v = params_of(l->v);

    if (l->prefill)
        return prefill(l, k, v, e);
#define KV_CASE(BITS, D, NT)                                      \
    if (k->bits == BITS && v->bits == BITS && l->head_dim == D && \
        kv_row_tiles(l, D) >= NT &&                               \
        (k->folded || unfolded_fits<BITS, D, NT>()))              \
        return launch_exact<BITS, D, NT>(l, k->folded, e);
    KV_INTEGERS_KERNELS(KV_CASE)
#undef KV_CASE
    return no_kernel(l, "", k, v, e);
}

// ---- path int8 -------------------------------------------------------------

// Head dimension, N-tiles of 8 rows; the launch takes the first instance for
// its rows that fits the device's shared memory.
#define KV_INT8_KERNELS(X) X(64, 2) X(64, 1) X(128, 2) X(128, 1)

template <int D, int NT>
static int launch_int8(struct kv_gpu_launch *l, struct kv_err *e)
{
    const kv_gpu_integers_side k = layout_of(l->k), v = layout_of(l->v);

    return k.folded ? kv_decode_launch<kv_folded_keys_s8<D>, kv_values_s8<D>,
                                       KV_INT8_STAGES, D, NT>(l, k, v, e)
                    : kv_decode_launch<kv_unfolded_keys_s8<D>, kv_values_s8<D>,
                                       KV_INT8_STAGES, D, NT>(l, k, v, e);
}

// 16 rows of keys that are products of zeros and scales do not fit an A100.
template <int D, int NT> static bool fits(struct kv_gpu_launch l)
{
    struct kv_err e = {""};

    l.measure = true;
    return !launch_int8<D, NT>(&l, &e) && l.shared <= l.max_shared;
}

static int int8(struct kv_gpu_launch *l, struct kv_err *e)
{
#define KV_CASE(D, NT)                                  \
    if (l->head_dim == D && kv_row_tiles(l, D) >= NT && \
        (NT == 1 || fits<D, NT>(*l)))                   \
        return launch_int8<D, NT>(l, e);
    KV_INT8_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "attention on integers of 8 bits in 8-bit integers: no CUDA "
                   "kernel for head_dim %zu",
                   l->head_dim);
}

extern "C" const struct kv_gpu_family kv_gpu_integers = {
    "integers", kv_gpu_integers_open, exact};
extern "C" const struct kv_gpu_family kv_gpu_integers_int8 = {
    "integers", kv_gpu_integers_int8_open, int8};
