#include "kernels/codebook/cuda.cuh"
#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/prefill.cuh"

template <class B, int STAGES, int NT>
static int launch_book(struct kv_gpu_launch *l, struct kv_err *e)
{
    return kv_decode_launch<kv_codebook_keys_f16<B>, kv_codebook_values_f16<B>,
                            STAGES, B::D, NT>(l, kv_codebook_params_of(l->k),
                                              kv_codebook_params_of(l->v), e);
}

// Shared memory has no room for the rows of two N-tiles beside large tables.
template <class B, int STAGES>
static int launch_prefill(struct kv_gpu_launch *l, struct kv_err *e)
{
    using keys = kv_codebook_keys_f16<B>;
    using values = kv_codebook_values_f16<B>;
    constexpr int NT = keys::TABLE + values::TABLE > 64 << 10 ? 1 : 2;

    return kv_prefill_launch<keys, values, STAGES, B::D, NT>(
        l, kv_codebook_params_of(l->k), kv_codebook_params_of(l->v), e);
}

static int exact(struct kv_gpu_launch *l, struct kv_gpu_codes c,
                 struct kv_err *e)
{
#define KV_CASE(D, DIMS, BITS, OWN, T, STAGES, W, T_INT8, S_INT8, W_INT8)    \
    if (l->head_dim == D && c.d == DIMS && c.bits == BITS && c.own == OWN) { \
        using book = kv_codebook_of<D, DIMS, BITS, OWN, T, W, false>;        \
                                                                             \
        if (l->prefill)                                                      \
            return launch_prefill<book, STAGES>(l, e);                       \
        return kv_row_tiles(l, D) == 2 ? launch_book<book, STAGES, 2>(l, e)  \
                                       : launch_book<book, STAGES, 1>(l, e); \
    }
    KV_CODEBOOKS(KV_CASE)
#undef KV_CASE
    return kv_fail(e, "attention on codebook indices: no CUDA kernel");
}

static int launch(struct kv_gpu_launch *l, struct kv_err *e)
{
    const struct kv_gpu_codes k = kv_gpu_codebook_codes(l->k);
    const struct kv_gpu_codes v = kv_gpu_codebook_codes(l->v);

    if (kv_gpu_codebook_check(l->k, e) || kv_gpu_codebook_check(l->v, e))
        return -1;
    if (k.d != v.d || k.bits != v.bits || k.own != v.own)
        return kv_fail(e,
                       "attention on codebook indices: no CUDA kernel for keys "
                       "of %zu values in %u bits, tables %s, beside values of "
                       "%zu in %u, tables %s",
                       k.d, k.bits, k.own ? "for each sub-space" : "shared",
                       v.d, v.bits, v.own ? "for each sub-space" : "shared");
    return l->k->path == KV_PATH_INT8 ? kv_gpu_codebook_int8(l, k, e)
                                      : exact(l, k, e);
}

extern "C" const struct kv_gpu_family kv_gpu_codebook = {
    "codebook", kv_gpu_codebook_open, launch};
