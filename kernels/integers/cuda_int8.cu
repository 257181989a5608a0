#include "kernels/cuda/decode_launch.cuh"
#include "kernels/integers/cuda_int8.cuh"

// Head dimension, N-tiles of 8 rows; the first for so many rows that the device
// has the shared memory for is taken.
#define KV_BYTES_KERNELS(X) X(64, 2) X(64, 1) X(128, 2) X(128, 1)

static const kv_integers *params_of(const kv_gpu_side *side)
{
    return static_cast<const kv_integers *>(side->store->params);
}

template <int D, int NT>
static int launch_one(struct kv_gpu_launch *l, struct kv_err *e)
{
    const kv_gpu_bytes k = kv_gpu_bytes_of(l->k->store);
    const kv_gpu_bytes v = kv_gpu_bytes_of(l->v->store);

    return params_of(l->k)->folded
               ? kv_decode_launch<kv_folded_keys_s8<D>, kv_values_s8<D>,
                                  KV_BYTES_STAGES, D, NT>(l, k, v, e)
               : kv_decode_launch<kv_unfolded_keys_s8<D>, kv_values_s8<D>,
                                  KV_BYTES_STAGES, D, NT>(l, k, v, e);
}

// 16 rows of keys that are products of zeros and steps do not fit an A100.
template <int D, int NT> static bool fits(struct kv_gpu_launch l)
{
    struct kv_err e = {""};

    l.measure = true;
    return !launch_one<D, NT>(&l, &e) && l.shared <= l.most_shared;
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
#define KV_CASE(D, NT)                                  \
    if (l->head_dim == D && kv_row_tiles(l, D) >= NT && \
        (NT == 1 || fits<D, NT>(*l)))                   \
        return launch_one<D, NT>(l, e);
    KV_BYTES_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "attention on integers of 8 bits in 8-bit integers: no CUDA "
                   "kernel for head_dim %zu",
                   l->head_dim);
}

extern "C" const struct kv_gpu_family kv_gpu_integers_int8 = {
    "grouped", kv_gpu_bytes_open, launch};
