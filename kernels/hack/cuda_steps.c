/* Tiles of the CPU in the order of hack_steps.h. */
#include "kernels/hack/cuda_steps.h"
#include "kernels/cuda/generic.h"
#include "kernels/hack/hack.h"

#include <string.h>

static size_t up_to_16(size_t n)
{
    return (n + 15) / 16 * 16;
}

struct kv_hack_steps kv_hack_steps_of(const struct kv_tile_hack *h, bool values,
                                      size_t head_dim, size_t tokens,
                                      uint64_t seed)
{
    const size_t along = values ? tokens : head_dim;
    const size_t lines = values ? head_dim : tokens;
    const enum kv_hack_stream stream = values ? KV_HACK_P : KV_HACK_Q;

    return (struct kv_hack_steps){
        .values = values,
        .stochastic = h->stochastic,
        .head_dim = (unsigned)head_dim,
        .tokens = (unsigned)tokens,
        .part = (unsigned)h->part,
        .parts = (unsigned)((along + h->part - 1) / h->part),
        .lines = (unsigned)up_to_16(lines),
        .codes = (unsigned)up_to_16(along),
        .runs = h->bits <= 1   ? 3
                : h->bits <= 2 ? 2
                : h->bits <= 4 ? 1
                               : 0,
        .top = (float)((1u << h->q_bits) - 1),
        .key = kv_mix(kv_mix(seed, stream), h->layer),
    };
}

struct kv_hack_steps kv_gpu_generic_steps(const struct kv_gpu_side *side,
                                          uint64_t seed)
{
    const struct kv_store *s = side->store;

    return kv_hack_steps_of(s->params, s->values, s->head_dim, KV_GPU_TILE,
                            seed);
}

/* A token's channel. */
static void put(const struct kv_store *s, const struct kv_hack_steps *h,
                const uint8_t *tile, size_t in, size_t code, size_t t, size_t c,
                uint8_t *to)
{
    const size_t line = h->values ? c : t, z = h->values ? t : c;
    const size_t planes = (size_t)h->parts * h->lines;
    const size_t bytes = kv_hack_line_bytes(h), runs = (size_t)1 << h->runs;
    uint16_t *range =
        (uint16_t *)(to + h->lines * bytes) + z / h->part * h->lines + line;

    to[line * bytes + z / 16 / runs * 16 + z % 16] |=
        (uint8_t)(code << z / 16 % runs * (8 / runs));
    kv_store_get_range(s, tile, kv_store_hack_range(s, in, c), range,
                       range + planes);
    range[2 * planes] = (uint16_t)(range[2 * planes] + code);
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const struct kv_hack_steps h = kv_gpu_generic_steps(side, 0);

    for (size_t t = 0; t < KV_GPU_TILE; t++) {
        const size_t token = i * KV_GPU_TILE + t, in = token % KV_TILE_TOKENS;
        uint8_t *tile = kv_store_tile(s, head, token / KV_TILE_TOKENS);
        const uint8_t *code = kv_store_hack_codes(s, tile, in);

        for (size_t c = 0; c < s->head_dim; c++)
            put(s, &h, tile, in, code[c], t, c, to);
    }
}

void kv_gpu_generic_open_hack(struct kv_gpu_side *side)
{
    const struct kv_hack_steps h = kv_gpu_generic_steps(side, 0);

    side->path = KV_PATH_INT8;
    side->tile_bytes = kv_hack_step_bytes(&h);
    side->pack = pack;
}
