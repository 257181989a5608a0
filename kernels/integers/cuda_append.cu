#include "kernels/cuda/append.h"
#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/integers/cuda_codes.h"

enum { THREADS = 256, WARPS = THREADS / 32 };
enum { UNIT_BYTES = 16 };

// Sizes of a tile (grouped_codes.h).
struct kv_group_tile {
    kv_gpu_integers_side g;
    unsigned bits, head_dim, tile_bytes;
    bool values, folded;
};

// The power of two that makes the largest step 2^14 or more; of every thread.
template <class Q>
KV_DEVICE float kv_unit_of(const kv_group_tile &s, const kv_coded_head<Q> &from,
                           float *room)
{
    const unsigned len = 1u << s.g.shift;
    const unsigned tokens = s.values ? 1 : len, channels = s.values ? len : 1;
    const unsigned row = s.head_dim / channels;
    float most = 0;

    for (unsigned i = threadIdx.x; i < KV_GPU_TILE / tokens * row; i += THREADS)
        most = fmaxf(
            most,
            fabsf(from.group(i / row * tokens, i % row * channels).step()));
    most = kv_reduce<WARPS>(most, room, kv_larger());

    const unsigned exponent = most > 0 ? (kv_bits(most) >> 23) - 126 : 0;

    return kv_from_bits((127 + 15 - exponent) << 23);
}

// Where the half of column i of n is in a vector of pairs; and that of row i.
KV_DEVICE unsigned kv_place_of_pair(unsigned i, unsigned n)
{
    const unsigned pair = i / 8, c = i % 8 / 2;
    const unsigned wide = min(n / 8, 4u); // words side by side

    return (pair / wide * 4 * wide + c * wide + pair % wide) * 2 + i % 2;
}

KV_DEVICE unsigned kv_place_of_row(unsigned i, unsigned n)
{
    return (i % 8 * (n / 16) + i / 16) * 2 + i / 8 % 2;
}

// Column, or row, i of n in the heads of one group.
template <class Q>
KV_DEVICE void kv_put_head(const kv_group_tile &s, const Q &q, float unit,
                           unsigned i, unsigned n, uint8_t *heads)
{
    uint16_t *const half = reinterpret_cast<uint16_t *>(heads);
    const unsigned at =
        s.folded ? kv_place_of_pair(i, n) : kv_place_of_row(i, n);
    const unsigned pair = i / 8 % (16 / s.bits);
    const float low = q.low(s.bits);
    float step = q.step();

    if (s.folded)
        step = step * unit / (float)(1u << KV_FIELD_AT(s.bits, pair));
    half[at] = (uint16_t)kv_pack_f16(step, 0);
    if (s.g.lows) {
        const uint16_t near = kv_clamp_f16(low);

        half[s.g.lows / 2 + at] = near;
        if (s.g.rests)
            half[s.g.rests / 2 + at] = kv_clamp_f16(low - kv_low_f16(near));
    }
}

// Heads of all groups, of the tile or of its steps.
template <class Q>
KV_DEVICE void kv_put_heads(const kv_group_tile &s,
                            const kv_coded_head<Q> &from, float unit,
                            uint8_t *to)
{
    const bool of_tokens = s.folded && !s.values;
    const unsigned tokens = KV_GPU_TILE / s.bits; // of a step
    const unsigned n = of_tokens ? s.head_dim : tokens;
    const unsigned place = n * s.g.n_groups; // heads in one place
    const unsigned places = s.g.in_head ? 1 : s.bits;

    for (unsigned i = threadIdx.x; i < places * place; i += THREADS) {
        const unsigned step = i / place, group = i % place / n, at = i % n;
        const unsigned t =
            step * tokens + (of_tokens ? group << s.g.shift : at);
        const unsigned c = of_tokens ? at : group << s.g.shift;
        uint8_t *const heads =
            s.g.in_head
                ? to + UNIT_BYTES
                : to + s.g.head_bytes + step * s.g.step_bytes + s.head_dim * 16;

        kv_put_head(s, from.group(t, c), unit, at, n,
                    heads + group * s.g.heads);
    }
}

// Word w of a step's codes.
template <class Q>
KV_DEVICE uint32_t kv_codes_word(const kv_group_tile &s,
                                 const kv_coded_head<Q> &from, unsigned step,
                                 unsigned w)
{
    const unsigned tokens = KV_GPU_TILE / s.bits, pairs = 16 / s.bits;
    const unsigned words = (s.values ? tokens : s.head_dim) / 8 / pairs;
    const unsigned lane = w % 128 / 4, i = w / 128 * 4 + w % 4;
    const unsigned row = i / 2 / words * 16 + i % 2 * 8 + lane / 4;
    uint32_t word = 0;

    for (unsigned j = 0; j < pairs; j++)
        for (unsigned k = 0; k < 2; k++) {
            const unsigned column =
                (i / 2 % words * pairs + j) * 8 + lane % 4 * 2 + k;
            const unsigned t = s.values ? column : row;
            const unsigned c = s.values ? row : column;

            word |= from.code(step * tokens + t, c) << (k * 16 + j * s.bits);
        }
    return word;
}

// A block a tile: of KV head x of sequence y.
template <class Q>
__global__ void __launch_bounds__(THREADS)
    kv_append_groups_kernel(kv_group_tile s, struct kv_gpu_groups g,
                            size_t tile_coded, const kv_gpu_sequence *sequences,
                            const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const kv_coded_head<Q> from = {g, gridDim.x, blockIdx.x, s.head_dim,
                                   bytes + blockIdx.y * tile_coded};
    uint8_t *to = const_cast<uint8_t *>(s.values ? run.v : run.k) +
                  blockIdx.x * (s.values ? run.v_head : run.k_head);
    float unit = 1;

    if (run.n < KV_GPU_TILE)
        return;
    to += (size_t)(run.n / KV_GPU_TILE - 1) * s.tile_bytes;
    if (s.folded) {
        unit = kv_unit_of(s, from, reinterpret_cast<float *>(kv_shared()));
        if (threadIdx.x < 4)
            reinterpret_cast<float *>(to)[threadIdx.x] =
                threadIdx.x == 0   ? unit * 0x1p-24f
                : threadIdx.x == 1 ? 0x1p24f / unit
                                   : 0;
    }
    kv_put_heads(s, from, unit, to);
    for (unsigned i = threadIdx.x; i < s.bits * s.head_dim * 4; i += THREADS) {
        const unsigned step = i / (s.head_dim * 4), w = i % (s.head_dim * 4);

        *reinterpret_cast<uint32_t *>(to + s.g.head_bytes +
                                      step * s.g.step_bytes + w * 4) =
            kv_codes_word(s, from, step, w);
    }
}

// Nobody else's: other files have their own of the same name.
namespace
{
struct launched {
    const struct kv_gpu_append *s;
    kv_group_tile t;
    const char *wrong;

    template <class Q> void run()
    {
        const struct kv_gpu_code *c = s->code;
        const dim3 grid((unsigned)c->n_heads, (unsigned)s->n);

        wrong = kv_launch(kv_append_groups_kernel<Q>, grid, dim3(THREADS),
                          WARPS * sizeof(float), (cudaStream_t)0, t, c->groups,
                          KV_GPU_TILE / c->block * c->block_bytes, s->sequences,
                          s->bytes);
    }
};
} // namespace

extern "C" int kv_gpu_append_groups(const struct kv_gpu_append *s,
                                    struct kv_err *e)
{
    const struct kv_store *store = s->side->store;
    const struct kv_integers *p =
        static_cast<const kv_integers *>(store->params);
    launched l = {s,
                  {{},
                   p->bits,
                   (unsigned)store->head_dim,
                   (unsigned)s->side->tile_bytes,
                   store->values != 0,
                   p->folded != 0},
                  NULL};

    kv_gpu_integers_of(store, &l.t.g);
    if (!kv_with_quantizer(s->code->groups.quantizer, l))
        return kv_fail(e, "settling groups: no CUDA kernel for this quantizer");
    return l.wrong ? kv_fail(e, "settling groups: %s", l.wrong) : 0;
}
