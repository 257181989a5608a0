/* Launches of decode attention by a family's policies. */
#ifndef KV_CUDA_DECODE_LAUNCH_CUH
#define KV_CUDA_DECODE_LAUNCH_CUH

#include "kernels/cuda/families.h"
#include "kernels/float/cuda.cuh"

/* The maximum number of N-tiles in a block of this head dimension: 16 rows at
 * once if the launch has 16 and registers suffice.  Another block takes the
 * remaining rows and reads the cache again. */
static inline unsigned kv_row_tiles(const struct kv_gpu_launch *l, size_t d)
{
    return l->p.group * l->p.nq > 8 && d <= 128 ? 2 : 1;
}

/* Launches a grid of blocks of this many warps; or, if the launch is only
 * measured, finds how many blocks a multiprocessor holds.  turn: tokens that
 * all warps of a block take at once. */
template <class... A>
static const char *kv_launch_blocks(struct kv_gpu_launch *l,
                                    void (*kernel)(A...), unsigned warps,
                                    size_t turn, dim3 grid, A... args)
{
    const unsigned threads = 32 * warps;

    if (!l->measure)
        return kv_launch(kernel, grid, dim3(threads), l->shared, 0, args...);

    const size_t blocks = kv_resident_blocks(kernel, threads, l->shared);

    l->warps = warps;
    l->blocks = blocks ? blocks : 1; /* 0 blocks: the caller checks `shared` */
    l->row_groups = grid.z;
    l->min_tiles = (turn + KV_GPU_TILE - 1) / KV_GPU_TILE;
    return NULL;
}

/* The number of warps of a block, `most` or KV_WARPS, of which a multiprocessor
 * holds more; shared(warps): bytes of shared memory of a block. */
template <class F, class... A>
static unsigned kv_pick_warps(void (*kernel)(A...), unsigned most,
                              const F &shared)
{
    const auto held = [&](unsigned warps) {
        return warps * kv_resident_blocks(kernel, 32 * warps, shared(warps));
    };

    return most > KV_WARPS && held(most) > held(KV_WARPS) ? most
                                                          : (unsigned)KV_WARPS;
}

/* Launches decode attention with these policies; sinks and tail are halves. */
template <class K, class V, int STAGES, int D, int NT>
static int kv_decode_launch(struct kv_gpu_launch *l,
                            const typename K::params &k,
                            const typename V::params &v, struct kv_err *e)
{
    using FK = kv_float_keys<D>;
    using FV = kv_float_values<D>;
    const bool enters = l->k->store->enter != NULL;
    const auto kernel = kv_decode_kernel<K, V, STAGES, FK, FV, D, NT>;
    const auto shared = [&](unsigned warps) {
        const size_t coded =
            kv_span_shared<K, V, STAGES, D, NT>(k, v, warps, enters);
        const size_t plain = kv_span_shared<FK, FV, 1, D, NT>({}, {}, warps);

        return coded > plain ? coded : plain;
    };
    const unsigned rows = l->p.group * l->p.nq;

    if (l->prefill)
        return kv_fail(e,
                       "no CUDA kernel of prefill attention for these codes");

    const dim3 grid((unsigned)l->n_work, (unsigned)l->n_kv_heads,
                    (rows + 8 * NT - 1) / (8 * NT));

    const unsigned warps =
        l->measure ? kv_pick_warps(kernel, kv_max_warps<K, V, D, NT>(), shared)
                   : l->warps;

    l->shared = shared(warps);

    const char *wrong =
        kv_launch_blocks(l, kernel, warps, warps * K::TILE, grid, l->p, k, v,
                         typename FK::params{}, typename FV::params{});

    return wrong ? kv_fail(e, "decode attention: %s", wrong) : 0;
}

#endif
