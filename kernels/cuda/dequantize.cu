#include "kernels/cuda/dequantize.h"

#include "kernels/cuda/generic_rotated.cuh"

static constexpr unsigned THREADS = 32 * KV_WARPS, TOKENS = 64;

// Returns the nearest finite half: larger values become the largest half.
KV_DEVICE uint16_t kv_nearest_half(float x)
{
    return (uint16_t)kv_pack_f16(fminf(fmaxf(x, -65504), 65504), 0);
}

// Dequantizes a tile to halves, both in shared memory.
template <bool VALUES, class R>
KV_DEVICE void kv_dequantize_tile(const R &reader, const uint8_t *tile,
                                  unsigned d, uint16_t *half)
{
    const unsigned inner = VALUES ? TOKENS : d, lanes = VALUES ? d : TOKENS;
    const unsigned fours = (inner + 3) / 4;

    for (unsigned i = threadIdx.x; i < fours * lanes; i += THREADS) {
        const unsigned lane = i % lanes, first = i / lanes * 4;
        float x[4];

        reader.template four<VALUES>(tile, first, lane, x);
        for (unsigned j = 0; j < 4 && first + j < inner; j++)
            half[kv_tile_place(VALUES, VALUES ? first + j : lane,
                               VALUES ? lane : first + j, d)] =
                kv_nearest_half(x[j]);
    }
}

template <bool VALUES>
KV_DEVICE void kv_dequantize_side(const kv_gpu_generic &g, const uint8_t *from,
                                  uint8_t *to)
{
    const unsigned d = g.head_dim, bytes = TOKENS * ((d + 15) / 16 * 16) * 2;
    uint8_t *const halves = kv_shared(), *const tile = halves + bytes;

    kv_generic_fetch(g, tile, from, blockIdx.x);
    kv_copy_commit();
    if (d % 16)
        for (unsigned i = threadIdx.x; i < bytes / 2; i += THREADS)
            reinterpret_cast<uint16_t *>(halves)[i] = 0;
    kv_copy_wait<0>();
    kv_sync_block();
    if (g.kind == KV_GENERIC_ROTATED)
        kv_rotated_channels(g, tile);
    kv_with_reader<VALUES>(g, [&](const auto &reader) {
        kv_dequantize_tile<VALUES>(reader, tile, d,
                                   reinterpret_cast<uint16_t *>(halves));
    });
    kv_sync_block();
    for (unsigned i = threadIdx.x * 16; i < bytes; i += THREADS * 16) {
        const uint4 x = kv_load16(halves + i);
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};

        kv_store16(to + (size_t)blockIdx.x * bytes + i, w);
    }
}

// Grid: (tiles of 64 tokens, KV heads, keys and values of each sequence).
__global__ void __launch_bounds__(THREADS, 2)
    kv_dequantize_kernel(const kv_gpu_generic k, const kv_gpu_generic v,
                         const kv_gpu_sequence *from, const kv_gpu_sequence *to)
{
    const kv_gpu_run &run = from[blockIdx.z / 2].run[KV_RUN_CODES];
    const kv_gpu_run &wide = to[blockIdx.z / 2].run[KV_RUN_CODES];

    if (blockIdx.x * TOKENS >= run.n)
        return;
    if (blockIdx.z % 2)
        kv_dequantize_side<true>(v, run.v + blockIdx.y * run.v_head,
                                 const_cast<uint8_t *>(wide.v) +
                                     blockIdx.y * wide.v_head);
    else
        kv_dequantize_side<false>(k, kv_generic_head(k, run.k, run.k_head),
                                  const_cast<uint8_t *>(wide.k) +
                                      blockIdx.y * wide.k_head);
}

extern "C" int kv_gpu_dequantize(const struct kv_gpu_side *k,
                                 const struct kv_gpu_side *v,
                                 const struct kv_gpu_sequence *from,
                                 const struct kv_gpu_sequence *to,
                                 size_t n_sequences, size_t n_kv_heads,
                                 size_t n_tiles, struct kv_err *e)
{
    const kv_gpu_generic kp = kv_gpu_generic_of(k), vp = kv_gpu_generic_of(v);
    const kv_gpu_generic halves = kv_gpu_generic_halves(kp.head_dim);
    const size_t k_bytes = kv_generic_bytes(kp), v_bytes = kv_generic_bytes(vp);
    const dim3 grid((unsigned)n_tiles * (KV_GPU_TILE / TOKENS),
                    (unsigned)n_kv_heads, (unsigned)n_sequences * 2);

    if (!n_tiles)
        return 0;

    const char *wrong =
        kv_launch(kv_dequantize_kernel, grid, dim3(THREADS),
                  halves.tile_bytes + (k_bytes > v_bytes ? k_bytes : v_bytes),
                  0, kp, vp, from, to);

    return wrong ? kv_fail(e, "codes as halves: %s", wrong) : 0;
}
