/* Integers in the order of cuda_layout.h, from the CPU's tiles. */
#include "kernels/cuda/families.h"
#include "kernels/integers/cuda_layout.h"
#include "lib/base/half.h"

#include <assert.h>
#include <math.h>

enum { WORD_BITS = 128, MIN_GROUP = 32, MAX_GROUPS = 4 };

static const struct kv_integers *params_of(const struct kv_store *s)
{
    return s->params;
}

/* ---- the layout ---------------------------------------------------------- */

/* Tokens, or channels, of a group. */
static size_t group_len(const struct kv_store *s)
{
    const struct kv_integers *g = params_of(s);

    if (g->folded && !s->values)
        return g->run * g->span;
    return g->n_runs > 1 ? g->run : s->head_dim;
}

static unsigned log2_of(size_t n)
{
    unsigned i = 0;

    while ((size_t)1 << (i + 1) <= n)
        i++;
    return i;
}

static bool supported(const struct kv_store *s, enum kv_path path)
{
    const struct kv_integers *g = params_of(s);
    const size_t len = group_len(s);

    if (g->bits != 2 && g->bits != 4 && g->bits != 8)
        return false;
    if (path == KV_PATH_INT8 && (g->bits != 8 || (s->values && g->negative)))
        return false;
    if (s->head_dim * g->bits % WORD_BITS || s->head_dim % 64 ||
        s->head_dim > KV_GPU_MAX_DIM)
        return false;
    if (len < MIN_GROUP || len != (size_t)1 << log2_of(len))
        return false;
    if (s->values)
        return g->folded;
    return g->folded ? len <= KV_GPU_TILE : g->n_runs <= MAX_GROUPS;
}

bool kv_gpu_integers_of(const struct kv_store *s, enum kv_path path,
                        struct kv_gpu_integers_side *to)
{
    const struct kv_integers *g = params_of(s);
    const bool int8 = path == KV_PATH_INT8;
    const bool of_tokens = g->folded && !s->values;
    const bool same = g->offset == KV_OFFSET_SAME && (int8 || !of_tokens);
    const bool rests = !same && g->offset != KV_OFFSET_LOW;

    if (!supported(s, path))
        return false;

    const size_t len = group_len(s);
    const size_t tokens = int8 ? KV_INT8_TOKENS : WORD_BITS / g->bits;
    const bool in_head = of_tokens && len > tokens;
    const size_t n = (in_head     ? KV_GPU_TILE
                      : of_tokens ? tokens
                                  : s->head_dim) /
                     len;
    const size_t vector = (of_tokens ? s->head_dim : tokens) * sizeof(uint16_t);
    const size_t heads = vector * (same ? 1 : rests ? 3 : 2);

    *to = (struct kv_gpu_integers_side){
        .shift = log2_of(len),
        .n_groups = (unsigned)n,
        .heads = (unsigned)heads,
        .lows = same ? 0 : (unsigned)vector,
        .zero = g->zero,
        .rests = rests ? 2 * (unsigned)vector : 0,
        .in_head = in_head,
        .head_bytes = (unsigned)((g->folded && !int8 ? KV_UNIT_BYTES : 0) +
                                 (in_head ? n * heads : 0)),
        .int8 = int8,
        .values = s->values,
        .folded = g->folded,
        .of_tokens = of_tokens,
        .bits = g->bits,
        .head_dim = (unsigned)s->head_dim,
        .tokens = (unsigned)tokens,
        .subtract = !int8                         ? 0
                    : g->offset == KV_OFFSET_SAME ? (int)g->zero
                                                  : KV_INT8_MIDDLE,
    };
    to->piece_bytes =
        kv_gpu_integers_code_bytes(to) + (in_head ? 0 : (unsigned)(n * heads));
    return true;
}

/* ---- a tile ---------------------------------------------------------------
 */

/* A tile of the device that is being written: two of the store. */
struct packing {
    const struct kv_store *s;
    struct kv_gpu_integers_side g;
    size_t head, tile;
};

static const uint8_t *tile_of(const struct packing *p, size_t t)
{
    return kv_store_tile(p->s, p->head,
                         (p->tile * KV_GPU_TILE + t) / KV_TILE_TOKENS);
}

/* Word w of the codes of the piece that begins with token `first`. */
static uint32_t codes_word(const struct packing *p, size_t first, unsigned w)
{
    const unsigned mask = (1u << p->g.bits) - 1;
    uint32_t word = 0;

    for (unsigned k = 0; k < 32 / p->g.bits; k++) {
        const struct kv_gpu_integers_code at =
            kv_gpu_integers_code(&p->g, w, k);
        const size_t t = first + at.t;
        const int code =
            (int)kv_store_code(p->s, tile_of(p, t), t % KV_TILE_TOKENS, at.c) -
            p->g.subtract;

        assert(!p->g.int8 || (code >= INT8_MIN && code <= INT8_MAX));
        word |= ((uint32_t)code & mask) << at.bit;
    }
    return word;
}

/* Scale and low of the group of value (t, c). */
static void group_at(const struct packing *p, size_t t, size_t c, float *scale,
                     float *low)
{
    kv_store_group(p->s, p->head, tile_of(p, t), t % KV_TILE_TOKENS, c, scale,
                   low);
    if (params_of(p->s)->offset != KV_OFFSET_LOW)
        *low *= -*scale;
}

static void put_heads(const struct packing *p, float unit, uint8_t *to)
{
    for (unsigned i = 0; i < kv_gpu_integers_heads(&p->g); i++) {
        const struct kv_gpu_integers_head h = kv_gpu_integers_head(&p->g, i);
        uint16_t *half = (uint16_t *)(void *)(to + h.at);
        float scale, low;

        group_at(p, h.t, h.c, &scale, &low);
        half[0] = kv_f32_to_f16(scale * unit / (float)(1u << h.exponent));
        if (p->g.lows)
            half[p->g.lows / 2] = kv_f16_clamp(low);
        if (p->g.rests)
            half[p->g.rests / 2] =
                kv_f16_clamp(low - kv_f16_to_f32(half[p->g.lows / 2]));
    }
}

/* Writes the tile's unit at its start, if it is folded and on path exact;
 * returns the unit. */
static float put_unit(const struct packing *p, uint8_t *to)
{
    float max = 0, scale, low;

    if (!p->g.folded || p->g.int8)
        return 1;
    for (unsigned i = 0; i < kv_gpu_integers_heads(&p->g); i++) {
        const struct kv_gpu_integers_head h = kv_gpu_integers_head(&p->g, i);

        group_at(p, h.t, h.c, &scale, &low);
        max = fmaxf(max, fabsf(scale));
    }

    const float unit = kv_gpu_integers_unit(max);

    ((float *)(void *)to)[0] = unit * 0x1p-24f;
    ((float *)(void *)to)[1] = 0x1p24f / unit;
    return unit;
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    struct packing p = {.s = side->store, .head = head, .tile = i};

    kv_gpu_integers_of(side->store, side->path, &p.g);
    put_heads(&p, put_unit(&p, to), to);
    to += p.g.head_bytes;
    for (unsigned t = 0; t < KV_GPU_TILE; t += p.g.tokens) {
        uint32_t *word = (uint32_t *)(void *)to;

        for (unsigned w = 0; w < kv_gpu_integers_code_bytes(&p.g) / 4; w++)
            word[w] = codes_word(&p, t, w);
        to += p.g.piece_bytes;
    }
}

static bool open_side(struct kv_gpu_side *side, enum kv_path path)
{
    struct kv_gpu_integers_side g;

    if (side->store->family != &kv_family_integers ||
        !kv_gpu_integers_of(side->store, path, &g))
        return false;
    side->path = path;
    side->tile_bytes =
        g.head_bytes + KV_GPU_TILE / g.tokens * (size_t)g.piece_bytes;
    side->pack = pack;
    return true;
}

bool kv_gpu_integers_open(struct kv_gpu_side *side)
{
    return open_side(side, KV_PATH_EXACT);
}

bool kv_gpu_integers_int8_open(struct kv_gpu_side *side)
{
    return side->path == KV_PATH_INT8 && open_side(side, KV_PATH_INT8);
}
