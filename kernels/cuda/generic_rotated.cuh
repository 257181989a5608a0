/* Keys of family "rotated" (kernels/tiles/rotated.h): a tile has the codes of
 * all KV heads, and the block's own channels are computed from them before they
 * are read:
 *
 *   | the tile | channels, before RoPE [head_dim][64] | codes [codes][8] |, f32
 *
 * 8 tokens at a time.  A tile keeps the codes of the Hadamard transforms that
 * overlap the head, in the order of channels; or the codes of all transforms,
 * if the row was reordered before them. */
#ifndef KV_CUDA_GENERIC_ROTATED_CUH
#define KV_CUDA_GENERIC_ROTATED_CUH

#include "kernels/cuda/generic_tiles.cuh"

/* The code at index `place` of the row of token t. */
KV_DEVICE float kv_rotated_code(const kv_gpu_generic &g, const uint8_t *tile,
                                unsigned place, unsigned t)
{
    float x[4];

    kv_read_integers{g}.four<false>(tile, place / 4 * 4, t, x);
    return place & 2 ? (place & 1 ? x[3] : x[2]) : (place & 1 ? x[1] : x[0]);
}

/* Computes the channels of the block's KV head.  The whole block calls this,
 * between two barriers. */
KV_DEVICE void kv_rotated_channels(const kv_gpu_generic &g, uint8_t *tile)
{
    constexpr unsigned TOKENS = 64, EACH = KV_ROTATED_TOKENS;
    const kv_generic_rotated &r = g.rotated;
    const unsigned d = g.head_dim, first = blockIdx.y * d;
    const unsigned begin = r.after ? first / r.codes * r.codes : 0;
    float *const x = reinterpret_cast<float *>(tile + g.tile_bytes);
    float *const z = x + d * TOKENS;

    for (unsigned from = 0; from < TOKENS; from += EACH) {
        for (unsigned i = threadIdx.x; i < r.codes * EACH; i += blockDim.x)
            z[i] = kv_rotated_code(
                g, tile, r.after ? r.place[begin + i / EACH] : i / EACH,
                from + i % EACH);
        kv_sync_block();
        for (unsigned half = r.block / 2; half; half /= 2) {
            for (unsigned i = threadIdx.x; i < r.codes / 2 * EACH;
                 i += blockDim.x) {
                const unsigned j = i / EACH, low = j & (half - 1);
                float *const at = z + (2 * j - low) * EACH + i % EACH;
                const float a = at[0], b = at[half * EACH];

                at[0] = a + b;
                at[half * EACH] = a - b;
            }
            kv_sync_block();
        }
        for (unsigned i = threadIdx.x; i < d * EACH; i += blockDim.x) {
            const unsigned c = first + i / EACH;
            const unsigned at = r.after ? c - begin : r.place[c];

            x[i / EACH * TOKENS + from + i % EACH] =
                z[at * EACH + i % EACH] * r.scale;
        }
        kv_sync_block(); /* all are done with the codes */
    }
}

#endif
