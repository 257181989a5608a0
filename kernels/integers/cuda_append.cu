#include "kernels/cuda/append.h"
#include "kernels/cuda/encoded_groups.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/integers/cuda_layout.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

// Returns the tile's unit, to every thread.
template <class Q>
KV_DEVICE float kv_unit_of(const kv_gpu_integers_side &s,
                           const kv_coded_head<Q> &from, float *workspace)
{
    float max = 0;

    for (unsigned i = threadIdx.x; i < kv_gpu_integers_heads(&s);
         i += THREADS) {
        const struct kv_gpu_integers_head h = kv_gpu_integers_head(&s, i);

        max = fmaxf(max, fabsf(from.group(h.t, h.c).scale()));
    }
    return kv_gpu_integers_unit(kv_reduce<WARPS>(max, workspace, kv_larger()));
}

template <class Q>
KV_DEVICE void kv_put_heads(const kv_gpu_integers_side &s,
                            const kv_coded_head<Q> &from, float unit,
                            uint8_t *to)
{
    for (unsigned i = threadIdx.x; i < kv_gpu_integers_heads(&s);
         i += THREADS) {
        const struct kv_gpu_integers_head h = kv_gpu_integers_head(&s, i);
        const Q q = from.group(h.t, h.c);
        uint16_t *const half = reinterpret_cast<uint16_t *>(to + h.at);
        const float scale = q.scale() * unit / (float)(1u << h.exponent);
        const float low = q.low(s.bits);

        half[0] = (uint16_t)kv_pack_f16(scale, 0);
        if (s.lows)
            half[s.lows / 2] = kv_clamp_f16(low);
        if (s.rests)
            half[s.rests / 2] =
                kv_clamp_f16(low - kv_low_f16(half[s.lows / 2]));
    }
}

// Word w of the codes of the piece that begins with token `first`.
template <class Q>
KV_DEVICE uint32_t kv_codes_word(const kv_gpu_integers_side &s,
                                 const kv_coded_head<Q> &from, unsigned first,
                                 unsigned w)
{
    const unsigned mask = (1u << s.bits) - 1;
    uint32_t word = 0;

    for (unsigned k = 0; k < 32 / s.bits; k++) {
        const struct kv_gpu_integers_code at = kv_gpu_integers_code(&s, w, k);
        const int code = (int)from.code(first + at.t, at.c) - s.subtract;

        word |= ((uint32_t)code & mask) << at.bit;
    }
    return word;
}

// Block (x, y) packs a tile of KV head x of sequence y.
template <class Q>
__global__ void __launch_bounds__(THREADS)
    kv_append_groups_kernel(const kv_gpu_integers_side s,
                            struct kv_gpu_groups g, size_t tile_bytes,
                            size_t tile_coded, const kv_gpu_sequence *sequences,
                            const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const kv_coded_head<Q> from = {g, gridDim.x, blockIdx.x, s.head_dim,
                                   bytes + blockIdx.y * tile_coded};
    const unsigned words = kv_gpu_integers_code_bytes(&s) / 4; // of a piece
    uint8_t *to = const_cast<uint8_t *>(s.values ? run.v : run.k) +
                  blockIdx.x * (s.values ? run.v_head : run.k_head);
    float unit = 1;

    if (run.n < KV_GPU_TILE)
        return;
    to += (run.n / KV_GPU_TILE - 1) * tile_bytes;
    if (s.folded && !s.int8) {
        unit = kv_unit_of(s, from, reinterpret_cast<float *>(kv_shared()));
        if (threadIdx.x < 4)
            reinterpret_cast<float *>(to)[threadIdx.x] =
                threadIdx.x == 0   ? unit * 0x1p-24f
                : threadIdx.x == 1 ? 0x1p24f / unit
                                   : 0;
    }
    kv_put_heads(s, from, unit, to);
    to += s.head_bytes;
    for (unsigned i = threadIdx.x; i < KV_GPU_TILE / s.tokens * words;
         i += THREADS) {
        const unsigned piece = i / words, w = i % words;

        reinterpret_cast<uint32_t *>(to + piece * s.piece_bytes)[w] =
            kv_codes_word(s, from, piece * s.tokens, w);
    }
}

// Private to this file: other files have their own of the same name.
namespace
{
struct launched {
    const struct kv_gpu_append *s;
    const char *wrong;

    template <class Q> void run()
    {
        const struct kv_gpu_code *c = s->code;
        const dim3 grid((unsigned)c->n_heads, (unsigned)s->n);
        kv_gpu_integers_side side;

        kv_gpu_integers_of(s->side->store, s->side->path, &side);
        wrong = kv_launch(kv_append_groups_kernel<Q>, grid, dim3(THREADS),
                          WARPS * sizeof(float), (cudaStream_t)0, side,
                          c->groups, s->side->tile_bytes,
                          KV_GPU_TILE / c->block * c->block_bytes, s->sequences,
                          s->bytes);
    }
};
} // namespace

extern "C" int kv_gpu_append_groups(const struct kv_gpu_append *s,
                                    struct kv_err *e)
{
    launched l = {s, NULL};

    if (!kv_with_quantizer(s->code->groups.quantizer, l))
        return kv_fail(e, "settling groups: no CUDA kernel for this quantizer");
    return l.wrong ? kv_fail(e, "settling groups: %s", l.wrong) : 0;
}
