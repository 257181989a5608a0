/* Integers of 8 bits in groups in the order of grouped_int8.h. */
#include "kernels/integers/cuda_codes.h"
#include "kernels/integers/cuda_int8.h"
#include "lib/base/half.h"

#include <assert.h>

static const struct kv_integers *params_of(const struct kv_store *s)
{
    return s->params;
}

static bool of_tokens(const struct kv_store *s)
{
    return params_of(s)->folded && !s->values;
}

struct kv_gpu_bytes kv_gpu_bytes_of(const struct kv_store *s)
{
    const enum kv_offset offset = params_of(s)->offset;
    const size_t vector =
        (of_tokens(s) ? s->head_dim : KV_BYTES_STEP) * sizeof(uint16_t);
    const size_t heads = vector * (offset == KV_OFFSET_SAME  ? 1
                                   : offset == KV_OFFSET_LOW ? 2
                                                             : 3);
    struct kv_gpu_integers_side g;

    kv_gpu_integers_of(s, &g);

    const size_t len = (size_t)1 << g.shift;
    const bool in_head = of_tokens(s) && len > KV_BYTES_STEP;
    const size_t n = in_head        ? KV_GPU_TILE / len
                     : of_tokens(s) ? 1
                                    : s->head_dim / len;

    return (struct kv_gpu_bytes){
        .shift = g.shift,
        .n_groups = (unsigned)n,
        .heads = (unsigned)heads,
        .lows = offset == KV_OFFSET_SAME ? 0 : (unsigned)vector,
        .rests = offset == KV_OFFSET_ZERO ? 2 * (unsigned)vector : 0,
        .in_head = in_head,
        .head_bytes = (unsigned)(in_head ? n * heads : 0),
        .step_bytes =
            (unsigned)(KV_BYTES_STEP * s->head_dim + (in_head ? 0 : n * heads)),
    };
}

int kv_gpu_bytes_zero(const struct kv_integers *g)
{
    return g->offset == KV_OFFSET_SAME ? (int)g->zero : KV_BYTES_MIDDLE;
}

/* ---- a tile ---------------------------------------------------------------
 */

/* A tile of the device that is being written: of two of the store. */
struct packing {
    const struct kv_store *s;
    struct kv_gpu_bytes g;
    size_t head, tile;
    uint8_t *to;
};

static const uint8_t *tile_of(const struct packing *p, size_t t)
{
    return kv_store_tile(p->s, p->head,
                         (p->tile * KV_GPU_TILE + t) / KV_TILE_TOKENS);
}

/* Where the code of token t of the step and channel c is among its codes. */
static size_t place_of(const struct kv_store *s, size_t t, size_t c)
{
    const size_t row = s->values ? c : t, in = t % 16;
    const size_t block =
        s->values ? c / 16 : t / 16 * (s->head_dim / 32) + c / 32;
    const size_t lane = row % 8 * 4 + (s->values ? in % 8 / 2 : c % 32 / 8);
    const size_t half = s->values ? t / 16 : c % 8 / 4;
    const size_t byte = s->values ? in % 2 * 2 + in / 8 : c % 4;

    return (block * 32 + lane) * 16 + (half * 2 + row / 8 % 2) * 4 + byte;
}

static void put_codes(const struct packing *p, size_t t)
{
    const int zero = kv_gpu_bytes_zero(params_of(p->s));
    uint8_t *step =
        p->to + p->g.head_bytes + t / KV_BYTES_STEP * p->g.step_bytes;

    for (size_t c = 0; c < p->s->head_dim; c++) {
        const int code =
            (int)kv_store_code(p->s, tile_of(p, t), t % KV_TILE_TOKENS, c) -
            zero;

        assert(code >= INT8_MIN && code <= INT8_MAX);
        step[place_of(p->s, t % KV_BYTES_STEP, c)] = (uint8_t)code;
    }
}

/* The head of the group that value (t, c) is in, as the at-th of heads. */
static void put_head(const struct packing *p, size_t t, size_t c, size_t at,
                     uint8_t *heads)
{
    uint16_t *half = (uint16_t *)(void *)heads + at;
    float step, offset;

    kv_store_group(p->s, p->head, tile_of(p, t), t % KV_TILE_TOKENS, c, &step,
                   &offset);

    const float low = p->g.rests ? -offset * step : offset;

    half[0] = kv_f32_to_f16(step);
    if (p->g.lows)
        half[p->g.lows / 2] = kv_f16_clamp(low);
    if (p->g.rests)
        half[p->g.rests / 2] =
            kv_f16_clamp(low - kv_f16_to_f32(half[p->g.lows / 2]));
}

/* Heads that begin with token t of the tile: its own, or a step's. */
static void put_heads(const struct packing *p, size_t t, uint8_t *to)
{
    const bool tokens = of_tokens(p->s);
    const size_t n = tokens ? p->s->head_dim : KV_BYTES_STEP;

    for (size_t i = 0; i < p->g.n_groups; i++, to += p->g.heads)
        for (size_t j = 0; j < n; j++)
            if (tokens)
                put_head(p, t + (i << p->g.shift), j, j, to);
            else
                put_head(p, t + j, i << p->g.shift, j % 8 * 4 + j / 8, to);
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct packing p = {.s = side->store,
                              .g = kv_gpu_bytes_of(side->store),
                              .head = head,
                              .tile = i,
                              .to = to};
    const size_t codes = KV_BYTES_STEP * p.s->head_dim;

    if (p.g.in_head)
        put_heads(&p, 0, to);
    for (size_t t = 0; t < KV_GPU_TILE; t++) {
        uint8_t *step =
            to + p.g.head_bytes + t / KV_BYTES_STEP * p.g.step_bytes;

        put_codes(&p, t);
        if (t % KV_BYTES_STEP == 0 && !p.g.in_head)
            put_heads(&p, t, step + codes);
    }
}

bool kv_gpu_bytes_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    struct kv_gpu_integers_side g;

    if (side->path != KV_PATH_INT8 || s->family != &kv_family_integers ||
        !kv_gpu_integers_of(s, &g) || params_of(s)->bits != 8 ||
        (s->values && params_of(s)->negative))
        return false;

    const struct kv_gpu_bytes b = kv_gpu_bytes_of(s);

    side->tile_bytes =
        b.head_bytes + KV_GPU_TILE / KV_BYTES_STEP * (size_t)b.step_bytes;
    side->pack = pack;
    return true;
}
