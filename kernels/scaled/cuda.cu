#include "kernels/cuda/decode_launch.cuh"
#include "kernels/scaled/cuda.cuh"
#include "kernels/scaled/cuda.h"
#include "kernels/scaled/scaled.h"

#include <string.h>

template <class B, int NT>
static int launch_one(struct kv_gpu_launch *l, struct kv_err *e)
{
    return kv_decode_launch<kv_scaled_keys<B>, kv_scaled_values<B>,
                            KV_SCALED_STAGES, B::D, NT>(
        l, kv_gpu_scaled_of(l->k), kv_gpu_scaled_of(l->v), e);
}

template <class B>
static int launch_rows(struct kv_gpu_launch *l, struct kv_err *e)
{
    if constexpr (B::D <= 128) // beyond, there are no registers for 16 rows
        if (kv_row_tiles(l, B::D) == 2)
            return launch_one<B, 2>(l, e);
    return launch_one<B, 1>(l, e);
}

static bool same_table(const struct kv_gpu_side *k, const struct kv_gpu_side *v)
{
    return k->table_bytes == v->table_bytes &&
           (!k->table || !memcmp(k->table, v->table, k->table_bytes));
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const struct kv_gpu_scaled_kind k = kv_gpu_scaled_kind_of(l->k->store);
    const struct kv_gpu_scaled_kind v = kv_gpu_scaled_kind_of(l->v->store);

    if (!same_table(l->k, l->v))
        return kv_fail(e, "attention on codes with scales: no CUDA kernel for "
                          "keys and values of different tables");
#define KV_CASE(D, BITS, PER, SCALE)                            \
    if (l->head_dim == D && k.bits == BITS && v.bits == BITS && \
        k.per >= PER && v.per >= PER && k.scale == SCALE &&     \
        v.scale == SCALE) {                                     \
        using codes = kv_scaled_codes<D, BITS, PER, SCALE>;     \
                                                                \
        return launch_rows<codes>(l, e);                        \
    }
    KV_SCALED_KERNELS(KV_CASE)
#undef KV_CASE
    return kv_fail(e,
                   "attention on codes with scales: no CUDA kernel for "
                   "head_dim %zu, keys of %u bits in groups of %u with %u "
                   "bytes, values of %u in groups of %u with %u",
                   l->head_dim, k.bits, k.per, k.scale, v.bits, v.per, v.scale);
}

extern "C" const struct kv_gpu_family kv_gpu_scaled_codes = {
    "scaled", kv_gpu_scaled_open, launch};
