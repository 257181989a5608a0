#include "kernels/cuda/append.h"
#include "kernels/cuda/coded.cuh"

enum { THREADS = 256 };

// Sizes of a tile (hack_codes.h).
struct kv_hack_tile {
    unsigned bits, part, head_dim;
    unsigned step;                   // tokens
    unsigned code_bytes, step_bytes; // of a step
    bool values;
};

// Where of 16 numbers, which stand r beside r + 8, the i-th is.
KV_DEVICE unsigned kv_paired(unsigned i)
{
    return i / 16 * 16 + i % 8 * 2 + i % 16 / 8;
}

// Word w of a step's codes: registers of fragment a that share it, four codes
// each.
KV_DEVICE uint32_t kv_registers_word(const kv_hack_tile &h,
                                     const kv_coded_head<kv_hack> &from,
                                     unsigned step, unsigned w)
{
    const unsigned lane = w % 128 / 4, i = w / 128 * 4 + w % 4;
    const unsigned each = h.bits / 2, regs = 8 / h.bits;
    const unsigned fragment = i / each;
    const unsigned wide = h.head_dim / (h.values ? 16 : 32);
    uint32_t word = 0;

    for (unsigned j = 0; j < regs; j++)
        for (unsigned byte = 0; byte < 4; byte++) {
            const unsigned reg = i % each * regs + j, c = lane % 4;
            const unsigned row = reg % 2 * 8 + lane / 4;
            const unsigned in =
                h.values ? byte % 2 * 8 + c * 2 + byte / 2 : c * 4 + byte;
            const unsigned column = reg / 2 * 16 + in;
            const unsigned t = h.values ? fragment / wide * 32 + column
                                        : fragment / wide * 16 + row;
            const unsigned ch = h.values ? fragment % wide * 16 + row
                                         : fragment % wide * 32 + column;

            word |= from.code(step * h.step + t, ch) << (byte * 8 + j * h.bits);
        }
    return word;
}

// Scale, minimum and sum of codes of every range of a step.
KV_DEVICE void kv_put_ranges(const kv_hack_tile &h,
                             const kv_coded_head<kv_hack> &from, unsigned step,
                             uint8_t *to)
{
    const unsigned along = h.values ? h.head_dim : h.step;
    const unsigned across = (h.values ? h.step : h.head_dim) / h.part;

    for (unsigned i = threadIdx.x; i < along * across; i += THREADS) {
        const unsigned block = i / along * h.part, at = i % along;
        const unsigned t = step * h.step + (h.values ? block : at);
        const unsigned c = h.values ? at : block;
        const kv_hack range = from.group(t, c);
        uint16_t *const plane =
            reinterpret_cast<uint16_t *>(to + h.code_bytes) +
            i / along * 3 * along + kv_paired(at);
        unsigned sum = 0;

        for (unsigned j = 0; j < h.part; j++)
            sum += h.values ? from.code(t + j, c) : from.code(t, c + j);
        plane[0] = range.scale;
        plane[along] = range.min;
        plane[2 * along] = (uint16_t)kv_pack_f16((float)sum, 0);
    }
}

// A block a tile: of KV head x of sequence y.
__global__ void __launch_bounds__(THREADS)
    kv_append_hack_kernel(kv_hack_tile h, struct kv_gpu_groups g,
                          size_t tile_coded, const kv_gpu_sequence *sequences,
                          const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const kv_coded_head<kv_hack> from = {g, gridDim.x, blockIdx.x, h.head_dim,
                                         bytes + blockIdx.y * tile_coded};
    const unsigned steps = KV_GPU_TILE / h.step, words = h.code_bytes / 4;
    uint8_t *to = const_cast<uint8_t *>(h.values ? run.v : run.k) +
                  blockIdx.x * (h.values ? run.v_head : run.k_head);

    if (run.n < KV_GPU_TILE)
        return;
    to += (size_t)(run.n / KV_GPU_TILE - 1) * steps * h.step_bytes;
    for (unsigned step = 0; step < steps; step++, to += h.step_bytes) {
        for (unsigned w = threadIdx.x; w < words; w += THREADS)
            reinterpret_cast<uint32_t *>(to)[w] =
                kv_registers_word(h, from, step, w);
        kv_put_ranges(h, from, step, to);
    }
}

extern "C" int kv_gpu_append_hack(const struct kv_gpu_append *s,
                                  struct kv_err *e)
{
    const struct kv_gpu_code *c = s->code;
    const unsigned part = (unsigned)c->groups.len;
    const unsigned step = part > 64 ? part : 64;
    const kv_hack_tile h = {
        c->groups.bits,
        part,
        (unsigned)c->head_dim,
        step,
        (unsigned)(step * c->head_dim * c->groups.bits / 8),
        (unsigned)(s->side->tile_bytes * step / KV_GPU_TILE),
        s->side->store->values != 0};
    const dim3 grid((unsigned)c->n_heads, (unsigned)s->n);
    const char *wrong = kv_launch(kv_append_hack_kernel, grid, dim3(THREADS),
                                  (size_t)0, (cudaStream_t)0, h, c->groups,
                                  KV_GPU_TILE / c->block * c->block_bytes,
                                  s->sequences, s->bytes);

    return wrong ? kv_fail(e, "settling integers: %s", wrong) : 0;
}
