#include "kernels/codebook/cuda.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/codes.cuh"

enum { THREADS = 256 };

// Sizes of a tile (codebook_pack.c).
struct kv_index_tile {
    unsigned d, bits, step; // of the device's codes
    unsigned of_d, of_bits; // of those that were encoded
    unsigned head_dim, n_sub;
    unsigned lane_bytes; // of a lane in a step
    bool values;
};

// The token of the step, and the channel, of code i of a lane's string.
KV_DEVICE void kv_place_back(const kv_index_tile &g, unsigned lane, unsigned i,
                             unsigned *t, unsigned *channel)
{
    const unsigned per = 8 / g.d, s = i % per * g.d;

    i /= per;
    if (g.values) {
        const unsigned in = i % 4, m = i / 4 % (g.step / 16);

        *t = m * 16 + in % 2 * 8 + lane % 4 * 2 + in / 2;
        *channel = i / 4 / (g.step / 16) * 64 + lane / 4 * 8 + s;
    } else {
        const unsigned wide = g.head_dim / 32;

        *t = i / 2 / wide * 16 + i % 2 * 8 + lane / 4;
        *channel = i / 2 % wide * 32 + lane % 4 * 8 + s;
    }
}

// A block a tile: of KV head x of sequence y.  A word a thread.
__global__ void __launch_bounds__(THREADS)
    kv_append_codebook_kernel(kv_index_tile g, const kv_gpu_sequence *sequences,
                              size_t token_bytes, const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const unsigned words = KV_GPU_TILE / g.step * 8 * g.lane_bytes;
    const unsigned piece = g.lane_bytes % 16 ? 8 : 16;
    uint8_t *to = const_cast<uint8_t *>(g.values ? run.v : run.k) +
                  blockIdx.x * (g.values ? run.v_head : run.k_head);

    if (run.n < KV_GPU_TILE)
        return;
    to += (size_t)(run.n / KV_GPU_TILE - 1) * words * 4;
    bytes += blockIdx.y * KV_GPU_TILE * token_bytes;
    for (unsigned w = threadIdx.x; w < words; w += THREADS) {
        const unsigned step = w * 4 / (32 * g.lane_bytes);
        const unsigned at = w * 4 % (32 * g.lane_bytes);
        const unsigned lane = at % (32 * piece) / piece;
        const unsigned bit = (at / (32 * piece) * piece + at % piece) * 8;
        unsigned code = 0, word = 0;

        for (unsigned n = 0; n < 32; n += 4) { // no half crosses a byte
            const unsigned from = (bit + n) % g.bits;

            if (!n || !from) {
                unsigned t, c;

                kv_place_back(g, lane, (bit + n) / g.bits, &t, &c);
                t += step * g.step;

                const uint8_t *const token = bytes + t * token_bytes;
                const size_t i = blockIdx.x * g.n_sub + c / g.of_d;

                code = kv_code_at(token, i, g.of_bits);
                if (g.d != g.of_d)
                    code |= kv_code_at(token, i + 1, g.of_bits) << g.of_bits;
            }
            word |= (code >> from & 15) << n;
        }
        *reinterpret_cast<uint32_t *>(to + (size_t)w * 4) = word;
    }
}

extern "C" int kv_gpu_append_codebook(const struct kv_gpu_append *s,
                                      struct kv_err *e)
{
    const struct kv_gpu_codes c = kv_gpu_codebook_codes(s->side);
    const struct kv_gpu_centroids *v = &s->code->codebook;
    const size_t head_dim = s->code->head_dim;
    const size_t lane_bytes = c.step * head_dim / c.d * c.bits / 8 / 32;
    const kv_index_tile g = {(unsigned)c.d,
                             c.bits,
                             (unsigned)c.step,
                             (unsigned)v->d,
                             v->bits,
                             (unsigned)head_dim,
                             (unsigned)v->n_sub,
                             (unsigned)lane_bytes,
                             s->side->store->values != 0};
    const dim3 grid((unsigned)s->code->n_heads, (unsigned)s->n);
    const char *wrong = kv_launch(kv_append_codebook_kernel, grid,
                                  dim3(THREADS), (size_t)0, (cudaStream_t)0, g,
                                  s->sequences, s->code->block_bytes, s->bytes);

    return wrong ? kv_fail(e, "settling indices: %s", wrong) : 0;
}
