#include "kernels/cuda/append.h"
#include "kernels/cuda/coded.cuh"
#include "kernels/integers/cuda_int8.h"

enum { THREADS = 256 };

// Sizes of a tile (grouped_int8.h).
struct kv_bytes_tile {
    kv_gpu_bytes g;
    unsigned head_dim, tile_bytes;
    int zero; // what codes are less
    bool values, of_tokens;
};

// Heads of all groups, of the tile or of its steps.
template <class Q>
KV_DEVICE void kv_put_heads(const kv_bytes_tile &s,
                            const kv_coded_head<Q> &from, uint8_t *to)
{
    const unsigned n = s.of_tokens ? s.head_dim : (unsigned)KV_BYTES_STEP;
    const unsigned place = n * s.g.n_groups; // heads in one place
    const unsigned places = s.g.in_head ? 1 : KV_GPU_TILE / KV_BYTES_STEP;

    for (unsigned i = threadIdx.x; i < places * place; i += THREADS) {
        const unsigned step = i / place, group = i % place / n, at = i % n;
        const unsigned t =
            step * KV_BYTES_STEP + (s.of_tokens ? group << s.g.shift : at);
        const unsigned c = s.of_tokens ? at : group << s.g.shift;
        const Q q = from.group(t, c);
        uint16_t *const half = reinterpret_cast<uint16_t *>(
            to +
            (s.g.in_head ? 0
                         : step * s.g.step_bytes + KV_BYTES_STEP * s.head_dim) +
            group * s.g.heads + (s.of_tokens ? at : at % 8 * 4 + at / 8) * 2);
        const float low = q.low(8);

        half[0] = (uint16_t)kv_pack_f16(q.step(), 0);
        if (s.g.lows)
            half[s.g.lows / 2] = kv_clamp_f16(low);
        if (s.g.rests)
            half[s.g.rests / 2] =
                kv_clamp_f16(low - kv_low_f16(half[s.g.lows / 2]));
    }
}

// Word w of a step's codes: word w % 4 of a lane's fragment.
template <class Q>
KV_DEVICE uint32_t kv_codes_word(const kv_bytes_tile &s,
                                 const kv_coded_head<Q> &from, unsigned step,
                                 unsigned w)
{
    const unsigned block = w / 128, lane = w % 128 / 4;
    const unsigned row = w % 2 * 8 + lane / 4, half = w % 4 / 2, c = lane % 4;
    const unsigned parts = s.head_dim / 32;
    uint32_t word = 0;

    for (unsigned j = 0; j < 4; j++) {
        const unsigned token = s.values ? half * 16 + 2 * c + j % 2 * 8 + j / 2
                                        : block / parts * 16 + row;
        const unsigned channel =
            s.values ? block * 16 + row
                     : block % parts * 32 + c * 8 + half * 4 + j;
        const int code =
            (int)from.code(step * KV_BYTES_STEP + token, channel) - s.zero;

        word |= (uint32_t)(code & 0xff) << 8 * j;
    }
    return word;
}

// A block a tile: of KV head x of sequence y.
template <class Q>
__global__ void __launch_bounds__(THREADS)
    kv_append_groups_int8_kernel(kv_bytes_tile s, struct kv_gpu_groups g,
                                 size_t tile_coded,
                                 const kv_gpu_sequence *sequences,
                                 const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const kv_coded_head<Q> from = {g, gridDim.x, blockIdx.x, s.head_dim,
                                   bytes + blockIdx.y * tile_coded};
    const unsigned words = KV_BYTES_STEP / 4 * s.head_dim; // of a step
    uint8_t *to = const_cast<uint8_t *>(s.values ? run.v : run.k) +
                  blockIdx.x * (s.values ? run.v_head : run.k_head);

    if (run.n < KV_GPU_TILE)
        return;
    to += (size_t)(run.n / KV_GPU_TILE - 1) * s.tile_bytes;
    kv_put_heads(s, from, s.g.in_head ? to : to + s.g.head_bytes);
    for (unsigned i = threadIdx.x; i < KV_GPU_TILE / KV_BYTES_STEP * words;
         i += THREADS)
        reinterpret_cast<uint32_t *>(to + s.g.head_bytes +
                                     i / words * s.g.step_bytes)[i % words] =
            kv_codes_word(s, from, i / words, i % words);
}

// Nobody else's: other files have their own of the same name.
namespace
{
struct launched {
    const struct kv_gpu_append *s;
    kv_bytes_tile t;
    const char *wrong;

    template <class Q> void run()
    {
        const struct kv_gpu_code *c = s->code;
        const dim3 grid((unsigned)c->n_heads, (unsigned)s->n);

        wrong = kv_launch(kv_append_groups_int8_kernel<Q>, grid, dim3(THREADS),
                          (size_t)0, (cudaStream_t)0, t, c->groups,
                          KV_GPU_TILE / c->block * c->block_bytes, s->sequences,
                          s->bytes);
    }
};
} // namespace

extern "C" int kv_gpu_append_groups_int8(const struct kv_gpu_append *s,
                                         struct kv_err *e)
{
    const struct kv_store *store = s->side->store;
    const kv_integers *p = static_cast<const kv_integers *>(store->params);
    launched l = {s,
                  {kv_gpu_bytes_of(store), (unsigned)store->head_dim,
                   (unsigned)s->side->tile_bytes, kv_gpu_bytes_zero(p),
                   store->values != 0, p->folded && !store->values},
                  NULL};

    if (!kv_with_quantizer(s->code->groups.quantizer, l))
        return kv_fail(e, "settling groups: no CUDA kernel for this quantizer");
    return l.wrong ? kv_fail(e, "settling groups: %s", l.wrong) : 0;
}
