#include "kernels/transform/cuda.cuh"

template <int D, bool ROTATED>
static const char *launch(const kv_decode &p, const struct kv_gpu_launch *l,
                          const kv_gpu_transform_side &k,
                          const kv_gpu_transform_side &v)
{
    const unsigned rows = p.group * p.nq;
    const dim3 grid((unsigned)l->n_work, (unsigned)l->n_kv_heads,
                    (rows + KV_TRANSFORM_ROWS - 1) / KV_TRANSFORM_ROWS);

    return kv_launch(kv_transform_kernel<D, ROTATED>, grid, dim3(32 * KV_WARPS),
                     l->shared, 0, p, k, v);
}

template <int D> static const char *launch_dim(struct kv_gpu_launch *l)
{
    const kv_gpu_transform_side k = kv_gpu_transform_side_of(l->k),
                                v = kv_gpu_transform_side_of(l->v);
    const size_t coded = kv_transform_workspace<D>::WORDS * 4 +
                         kv_transform_side_bytes(k, D) +
                         kv_transform_side_bytes(v, D) +
                         (k.rotated ? kv_transform_angles<D>::FLOATS * 4 : 0);
    const size_t plain =
        kv_span_shared<kv_float_keys<D>, kv_float_values<D>, 1, D, 1>({}, {});
    struct kv_decode p = l->p;

    l->shared = coded > plain ? coded : plain;
    if (l->measure)
        return NULL;
    p.leave = v.matrix;
    p.mean = v.mean;
    return k.rotated ? launch<D, true>(p, l, k, v)
                     : launch<D, false>(p, l, k, v);
}

static int launch_any(struct kv_gpu_launch *l, struct kv_err *e)
{
    const char *wrong = NULL;

    if (l->prefill)
        return kv_fail(e,
                       "no CUDA kernel of prefill attention for these codes");
    switch (l->head_dim) {
#define KV_CASE(D)                \
    case D:                       \
        wrong = launch_dim<D>(l); \
        break;
        KV_TRANSFORM_DIMS(KV_CASE)
#undef KV_CASE
    }
    return wrong ? kv_fail(e, "attention to coefficients: %s", wrong) : 0;
}

extern "C" const struct kv_gpu_family kv_gpu_transform = {
    "transform", kv_gpu_transform_open, launch_any};
