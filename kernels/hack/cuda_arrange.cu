/* Encoded blocks (kernels/device_code.h) in the order of cuda_layout.h. */
#include "kernels/cuda/append.h"
#include "kernels/cuda/encoded_groups.cuh"
#include "kernels/hack/cuda_layout.h"
#include "kernels/hack/cuda_views.h"

enum { THREADS = 256 };

// Writes the piece of tokens from `first` on; the last token is n - 1.
KV_DEVICE void kv_put_piece(const kv_gpu_hack_side &h,
                            const kv_coded_head<kv_hack> &from, unsigned first,
                            unsigned n, uint8_t *to)
{
    uint16_t *const half = reinterpret_cast<uint16_t *>(to);

    for (unsigned w = threadIdx.x; w < kv_gpu_hack_code_bytes(&h) / 4;
         w += THREADS) {
        uint32_t word = 0;

        for (unsigned k = 0; k < 32 / h.width; k++) {
            const struct kv_gpu_hack_value v = kv_gpu_hack_code(&h, w, k);

            if (!v.none && first + v.t < n)
                word |= from.code(first + v.t, v.c) << v.at;
        }
        reinterpret_cast<uint32_t *>(to)[w] = word;
    }
    for (unsigned i = threadIdx.x; i < h.parts * h.lines; i += THREADS) {
        const struct kv_gpu_hack_value v = kv_gpu_hack_range(&h, i);
        const unsigned t = first + v.t;
        unsigned sum = 0;

        if (v.none || t >= n)
            continue;

        const kv_hack range = from.group(t, v.c);

        for (unsigned j = 0; j < kv_gpu_hack_part_len(&h, i / h.lines); j++)
            sum += h.values ? from.code(t + j, v.c) : from.code(t, v.c + j);
        half[v.at] = range.scale;
        half[v.at + h.lines] = range.min;
        half[v.at + 2 * h.lines] = (uint16_t)sum;
    }
}

// Block (x, y) packs a tile of KV head x of sequence y.
__global__ void __launch_bounds__(THREADS)
    kv_append_hack_kernel(const kv_gpu_hack_side h, struct kv_gpu_groups g,
                          size_t tile_coded, const kv_gpu_sequence *sequences,
                          const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const kv_coded_head<kv_hack> from = {g, gridDim.x, blockIdx.x, h.head_dim,
                                         bytes + blockIdx.y * tile_coded};
    const unsigned pieces = KV_GPU_TILE / h.tokens;
    const size_t piece_bytes = kv_gpu_hack_piece_bytes(&h);
    uint8_t *to = const_cast<uint8_t *>(h.values ? run.v : run.k) +
                  blockIdx.x * (h.values ? run.v_head : run.k_head);

    if (run.n < KV_GPU_TILE)
        return;
    to += (size_t)(run.n / KV_GPU_TILE - 1) * pieces * piece_bytes;
    for (unsigned i = 0; i < pieces; i++)
        kv_put_piece(h, from, i * h.tokens, KV_GPU_TILE, to + i * piece_bytes);
}

extern "C" int kv_gpu_append_hack(const struct kv_gpu_append *s,
                                  struct kv_err *e)
{
    const struct kv_gpu_code *c = s->code;
    const dim3 grid((unsigned)c->n_heads, (unsigned)s->n);
    const char *wrong = kv_launch(
        kv_append_hack_kernel, grid, dim3(THREADS), (size_t)0, (cudaStream_t)0,
        kv_gpu_hack_params(s->side, 0), c->groups,
        KV_GPU_TILE / c->block * c->block_bytes, s->sequences, s->bytes);

    return wrong ? kv_fail(e, "settling integers: %s", wrong) : 0;
}

// Grid: (pieces, KV heads).
__global__ void __launch_bounds__(THREADS)
    kv_hack_arrange_kernel(const kv_gpu_hack_side h, struct kv_gpu_groups g,
                           unsigned n, const uint8_t *bytes, uint8_t *pieces)
{
    const kv_coded_head<kv_hack> from = {g, gridDim.y, blockIdx.y, h.head_dim,
                                         bytes};

    kv_put_piece(h, from, blockIdx.x * h.tokens, n,
                 pieces + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) *
                              kv_gpu_hack_piece_bytes(&h));
}

extern "C" int kv_gpu_hack_arrange(const struct kv_gpu_code *code,
                                   const struct kv_gpu_hack_side *h,
                                   const uint8_t *bytes, size_t n,
                                   size_t n_pieces, uint8_t *pieces,
                                   struct kv_err *e)
{
    const dim3 grid((unsigned)n_pieces, (unsigned)code->n_heads);
    const char *wrong;

    if (!n_pieces)
        return 0;
    wrong = kv_launch(kv_hack_arrange_kernel, grid, dim3(THREADS), (size_t)0,
                      (cudaStream_t)0, *h, code->groups, (unsigned)n, bytes,
                      pieces);
    return wrong ? kv_fail(e, "codes of %zu tokens: %s", n, wrong) : 0;
}
