/* Codes of HACK in the order of cuda_layout.h, from the CPU's tiles. */
#include "kernels/cuda/families.h"
#include "kernels/hack/cuda_layout.h"
#include "kernels/hack/hack.h"
#include "lib/base/half.h"

struct kv_gpu_hack_side kv_gpu_hack_side_of(const struct kv_tile_hack *h,
                                            bool values, size_t head_dim,
                                            size_t tokens, uint64_t seed)
{
    const size_t along = values ? tokens : head_dim;
    const size_t lines = values ? head_dim : tokens;
    const enum kv_hack_stream stream = values ? KV_HACK_P : KV_HACK_Q;

    return (struct kv_gpu_hack_side){
        .values = values,
        .stochastic = h->stochastic,
        .head_dim = (unsigned)head_dim,
        .tokens = (unsigned)tokens,
        .part = (unsigned)h->part,
        .parts = (unsigned)((along + h->part - 1) / h->part),
        .lines = (unsigned)kv_round_up(lines, 16),
        .width = h->codes.bits <= 2   ? 2
                 : h->codes.bits <= 4 ? 4
                                      : 8,
        .top = (float)((1u << h->q_bits) - 1),
        .key = kv_hack_layer_key(seed, stream, h->layer),
    };
}

static struct kv_gpu_hack_side side_of(const struct kv_gpu_side *side,
                                       size_t tokens, uint64_t seed)
{
    const struct kv_store *s = side->store;

    return kv_gpu_hack_side_of(s->params, s->values, s->head_dim, tokens, seed);
}

struct kv_gpu_hack_side kv_gpu_hack_params(const struct kv_gpu_side *side,
                                           uint64_t seed)
{
    const struct kv_tile_hack *h = side->store->params;

    return side_of(side, h->part > 64 ? h->part : 64, seed);
}

struct kv_gpu_hack_side
kv_gpu_hack_params_generic(const struct kv_gpu_side *side, uint64_t seed)
{
    return side_of(side, KV_GPU_TILE, seed);
}

/* ---- a tile ---------------------------------------------------------------
 */

/* A KV head's tiles. */
struct packing {
    const struct kv_store *s;
    size_t head;
};

static const uint8_t *tile_of(const struct packing *p, size_t t)
{
    return kv_store_tile(p->s, p->head, t / KV_TILE_TOKENS);
}

static unsigned code_at(const struct packing *p, size_t t, size_t c)
{
    return kv_store_code(p->s, tile_of(p, t), t % KV_TILE_TOKENS, c);
}

static void put_range(const struct packing *p, const struct kv_gpu_hack_side *h,
                      size_t first, unsigned i, uint16_t *half)
{
    const struct kv_gpu_hack_value v = kv_gpu_hack_range(h, i);
    const size_t t = first + v.t;
    float scale, min;
    unsigned sum = 0;

    if (v.none)
        return;
    kv_store_group(p->s, p->head, tile_of(p, t), t % KV_TILE_TOKENS, v.c,
                   &scale, &min);
    half += v.at;
    half[0] = kv_f32_to_f16(scale);
    half[h->lines] = kv_f32_to_f16(min);
    for (unsigned j = 0; j < kv_gpu_hack_part_len(h, i / h->lines); j++)
        sum += h->values ? code_at(p, t + j, v.c) : code_at(p, t, v.c + j);
    half[2 * h->lines] = (uint16_t)sum;
}

/* Packs the piece of tokens from `first` on. */
static void pack_piece(const struct packing *p,
                       const struct kv_gpu_hack_side *h, size_t first,
                       uint8_t *to)
{
    uint32_t *word = (uint32_t *)(void *)to;

    for (unsigned w = 0; w < kv_gpu_hack_code_bytes(h) / 4; w++)
        for (unsigned k = 0; k < 32 / h->width; k++) {
            const struct kv_gpu_hack_value v = kv_gpu_hack_code(h, w, k);

            if (!v.none)
                word[w] |= code_at(p, first + v.t, v.c) << v.at;
        }
    for (unsigned i = 0; i < h->parts * h->lines; i++)
        put_range(p, h, first, i, (uint16_t *)(void *)to);
}

static void pack_pieces(const struct kv_gpu_side *side,
                        const struct kv_gpu_hack_side *h, size_t head, size_t i,
                        uint8_t *to)
{
    const struct packing p = {side->store, head};

    for (size_t t = 0; t < KV_GPU_TILE; t += h->tokens) {
        pack_piece(&p, h, i * KV_GPU_TILE + t, to);
        to += kv_gpu_hack_piece_bytes(h);
    }
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_gpu_hack_side h = kv_gpu_hack_params(side, 0);

    pack_pieces(side, &h, head, i, to);
}

static void pack_generic(const struct kv_gpu_side *side, size_t head, size_t i,
                         uint8_t *to)
{
    const struct kv_gpu_hack_side h = kv_gpu_hack_params_generic(side, 0);

    pack_pieces(side, &h, head, i, to);
}

bool kv_gpu_hack_open(struct kv_gpu_side *side)
{
    const struct kv_tile_hack *h = side->store->params;

    if (side->store->family != &kv_family_hack ||
        (h->codes.bits != 2 && h->codes.bits != 4) ||
        (h->part != 32 && h->part != 64 && h->part != 128))
        return false;

    const struct kv_gpu_hack_side g = kv_gpu_hack_params(side, 0);

    side->path = KV_PATH_INT8;
    side->tile_bytes = KV_GPU_TILE / g.tokens * kv_gpu_hack_piece_bytes(&g);
    side->pack = pack;
    return true;
}

void kv_gpu_hack_open_generic(struct kv_gpu_side *side)
{
    const struct kv_gpu_hack_side h = kv_gpu_hack_params_generic(side, 0);

    side->path = KV_PATH_INT8;
    side->tile_bytes = kv_gpu_hack_piece_bytes(&h);
    side->pack = pack_generic;
}
