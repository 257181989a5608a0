/* Integers in groups in the order of grouped_codes.h. */
#include "kernels/cuda/families.h"
#include "kernels/integers/cuda_codes.h"
#include "lib/base/half.h"

#include <math.h>

enum { WORD_BITS = 128, LEAST_GROUP = 32, MOST_GROUPS = 4, UNIT_BYTES = 16 };

static const struct kv_integers *params_of(const struct kv_store *s)
{
    return s->params;
}

static size_t step_tokens(const struct kv_store *s)
{
    return WORD_BITS / params_of(s)->bits;
}

/* ---- what there is ------------------------------------------------------- */

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

static bool there_is(const struct kv_store *s, size_t len)
{
    const struct kv_integers *g = params_of(s);
    const size_t words = s->head_dim * g->bits / WORD_BITS; /* of a row */

    if (g->bits != 2 && g->bits != 4 && g->bits != 8)
        return false;
    if (words * WORD_BITS != s->head_dim * g->bits || s->head_dim % 64 ||
        s->head_dim > KV_GPU_MAX_DIM)
        return false;
    if (len < LEAST_GROUP || len != (size_t)1 << log2_of(len))
        return false;
    if (s->values)
        return g->folded;
    return g->folded ? len <= KV_GPU_TILE : g->n_runs <= MOST_GROUPS;
}

int kv_gpu_integers_of(const struct kv_store *s, struct kv_gpu_integers_side *out)
{
    const struct kv_integers *g = params_of(s);
    const size_t len = group_len(s), step = step_tokens(s);
    const bool of_tokens = g->folded && !s->values;

    if (!there_is(s, len))
        return 0;

    const bool in_head = of_tokens && len > step;
    const size_t n =
        of_tokens ? (in_head ? KV_GPU_TILE : step) / len : g->n_runs;
    const bool same = !of_tokens && g->offset == KV_OFFSET_SAME;
    const size_t vector = (of_tokens ? s->head_dim : step) * sizeof(uint16_t);
    const bool rests = !same && g->offset != KV_OFFSET_LOW;
    const size_t heads = vector * (same ? 1 : rests ? 3 : 2);

    *out = (struct kv_gpu_integers_side){
        .shift = log2_of(len),
        .n_groups = (unsigned)n,
        .heads = (unsigned)heads,
        .lows = same ? 0 : (unsigned)vector,
        .zero = g->zero,
        .rests = rests ? 2 * (unsigned)vector : 0,
        .in_head = in_head,
        .head_bytes = (unsigned)((g->folded ? UNIT_BYTES : 0) +
                                 (in_head ? n * heads : 0)),
        .step_bytes = (unsigned)(s->head_dim * 16 + (in_head ? 0 : n * heads)),
    };
    return 1;
}

/* ---- a tile ---------------------------------------------------------------
 */

/* A tile of the device that is being written: of two of the store. */
struct packing {
    const struct kv_store *s;
    struct kv_gpu_integers_side g;
    size_t head, tile;
    float unit; /* of the tile */
    uint8_t *to;
};

static const uint8_t *tile_of(const struct packing *p, size_t t)
{
    return kv_store_tile(p->s, p->head,
                         (p->tile * KV_GPU_TILE + t) / KV_TILE_TOKENS);
}

static unsigned code_at(const struct packing *p, size_t t, size_t c)
{
    return kv_store_code(p->s, tile_of(p, t), t % KV_TILE_TOKENS, c);
}

/* Step and low of the group of value (t, c). */
static void group_at(const struct packing *p, size_t t, size_t c, float *step,
                     float *low)
{
    float offset;

    kv_store_group(p->s, p->head, tile_of(p, t), t % KV_TILE_TOKENS, c, step,
                   &offset);
    *low = params_of(p->s)->offset == KV_OFFSET_LOW ? offset : -offset * *step;
}

static uint8_t *step_at(const struct packing *p, size_t step)
{
    return p->to + p->g.head_bytes + step * p->g.step_bytes;
}

/* Codes of one step: a matrix whose columns meet queries or weights. */
static void put_codes(const struct packing *p, size_t step)
{
    const struct kv_store *s = p->s;
    const size_t bits = params_of(s)->bits, tokens = step_tokens(s);
    const size_t columns = s->values ? tokens : s->head_dim;
    const size_t pairs = 16 / bits, words = columns / 8 / pairs;
    uint32_t *word = (uint32_t *)(void *)step_at(p, step);

    for (size_t t = 0; t < tokens; t++)
        for (size_t c = 0; c < s->head_dim; c++) {
            const size_t row = s->values ? c : t, column = s->values ? t : c;
            const size_t pair = column / 8, lane = row % 8 * 4 + column % 8 / 2;
            const size_t i =
                (row / 16 * words + pair / pairs) * 2 + row / 8 % 2;
            const size_t bit = column % 2 * 16 + pair % pairs * bits;

            word[i / 4 * 128 + lane * 4 + i % 4] |=
                code_at(p, step * tokens + t, c) << bit;
        }
}

/* Where the half of column i of n is in a vector of pairs. */
static size_t place_of_pair(size_t i, size_t n)
{
    const size_t pair = i / 8, c = i % 8 / 2;
    const size_t wide = n / 8 < 4 ? n / 8 : 4; /* words side by side */

    return (pair / wide * 4 * wide + c * wide + pair % wide) * 2 + i % 2;
}

/* Where the half of row i of n is. */
static size_t place_of_row(size_t i, size_t n)
{
    return (i % 8 * (n / 16) + i / 16) * 2 + i / 8 % 2;
}

/* Column, or row, i of n in the heads of one group. */
static void put_head(const struct packing *p, size_t i, size_t n, float step,
                     float low, uint8_t *heads)
{
    const unsigned bits = params_of(p->s)->bits;
    const bool folded = params_of(p->s)->folded;
    const size_t at = folded ? place_of_pair(i, n) : place_of_row(i, n);
    const size_t pair = i / 8 % (16 / bits);
    uint16_t *half = (uint16_t *)(void *)heads;

    if (folded)
        step = ldexpf(step * p->unit, -(int)KV_FIELD_AT(bits, pair));
    half[at] = kv_f32_to_f16(step);
    if (p->g.lows)
        half[p->g.lows / 2 + at] = kv_f16_clamp(low);
    if (p->g.rests)
        half[p->g.rests / 2 + at] =
            kv_f16_clamp(low - kv_f16_to_f32(half[p->g.lows / 2 + at]));
}

/* Heads of groups of channels: of one step. */
static void put_token_heads(const struct packing *p, size_t step)
{
    const size_t tokens = step_tokens(p->s);
    uint8_t *to = step_at(p, step) + p->s->head_dim * 16;

    for (size_t i = 0; i < p->g.n_groups; i++)
        for (size_t t = 0; t < tokens; t++) {
            float x, low;

            group_at(p, step * tokens + t, i << p->g.shift, &x, &low);
            put_head(p, t, tokens, x, low, to + i * p->g.heads);
        }
}

/* Heads of groups of tokens, of which the first is of token t: of one step, or
 * of the tile. */
static void put_channel_heads(const struct packing *p, size_t t, uint8_t *to)
{
    const size_t d = p->s->head_dim;

    for (size_t i = 0; i < p->g.n_groups; i++)
        for (size_t c = 0; c < d; c++) {
            float x, low;

            group_at(p, t + (i << p->g.shift), c, &x, &low);
            put_head(p, c, d, x, low, to + i * p->g.heads);
        }
}

/* The power of two that makes the tile's largest step 2^14 or more. */
static float unit_of(const struct packing *p)
{
    const size_t d = p->s->head_dim;
    const size_t len = (size_t)1 << p->g.shift;
    const size_t tokens = p->s->values ? 1 : len;
    const size_t channels = p->s->values ? len : 1;
    float most = 0, step, low;
    int exponent;

    for (size_t t = 0; t < KV_GPU_TILE; t += tokens)
        for (size_t c = 0; c < d; c += channels) {
            group_at(p, t, c, &step, &low);
            most = fmaxf(most, fabsf(step));
        }
    frexpf(most, &exponent);
    return ldexpf(1, 15 - exponent);
}

static void put_unit(struct packing *p)
{
    float *head = (float *)(void *)p->to;

    p->unit = unit_of(p);
    head[0] = p->unit * 0x1p-24f;
    head[1] = 0x1p24f / p->unit;
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const bool of_tokens = params_of(s)->folded && !s->values;
    const size_t tokens = step_tokens(s);
    struct packing p = {.s = s, .head = head, .tile = i, .to = to};

    kv_gpu_integers_of(s, &p.g);
    if (params_of(s)->folded)
        put_unit(&p);
    if (p.g.in_head)
        put_channel_heads(&p, 0, to + UNIT_BYTES);
    for (size_t step = 0; step < KV_GPU_TILE / tokens; step++) {
        put_codes(&p, step);
        if (!of_tokens)
            put_token_heads(&p, step);
        else if (!p.g.in_head)
            put_channel_heads(&p, step * tokens,
                              step_at(&p, step) + s->head_dim * 16);
    }
}

bool kv_gpu_integers_open(struct kv_gpu_side *side)
{
    struct kv_gpu_integers_side g;

    if (side->store->family != &kv_family_integers ||
        !kv_gpu_integers_of(side->store, &g))
        return false;
    side->path = KV_PATH_EXACT;
    side->tile_bytes =
        g.head_bytes + params_of(side->store)->bits * (size_t)g.step_bytes;
    side->pack = pack;
    return true;
}
